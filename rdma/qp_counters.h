// What a queue pair has carried. Plain numbers that only grow: sums over QPs, rails and links are sums of these.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace sluice::rdma {

struct QpCounters {
  static constexpr size_t kStatuses = 24;        // of ibv_wc_status; the last also counts what is beyond
  static constexpr size_t kLatencyBuckets = 24;  // [i]: below 2^i microseconds; the last also what is longer

  // Posted by this side:
  uint64_t packets_out = 0, packet_bytes_out = 0;
  uint64_t inline_packets_out = 0;               // of packets_out: those that the device took with the request
  uint64_t writes_out = 0, write_bytes_out = 0;  // each followed by a notice
  uint64_t posts = 0;                            // chains of work requests
  uint64_t signalled = 0;                        // work requests that asked for a completion
  // Of the peer's, arrived here:
  uint64_t packets_in = 0, packet_bytes_in = 0;
  uint64_t notices_in = 0;
  uint64_t receives_posted = 0;
  // Completions of both directions, by status (IBV_WC_*).
  std::array<uint64_t, kStatuses> completions{};
  // From posting a packet, or a write and its notice, until this side knew that the peer has it.
  std::array<uint64_t, kLatencyBuckets> latency{};
  uint64_t latency_microseconds = 0;             // the sum

  void CountCompletion(unsigned status) { ++completions[status < kStatuses ? status : kStatuses - 1]; }

  void CountLatency(TimeNs time) {
    const uint64_t microseconds = time > 0 ? static_cast<uint64_t>(time) / kMicrosecond : 0;
    latency_microseconds += microseconds;
    const size_t bucket = static_cast<size_t>(std::bit_width(microseconds));
    ++latency[bucket < kLatencyBuckets ? bucket : kLatencyBuckets - 1];
  }

  void Add(const QpCounters& other) {
    packets_out += other.packets_out;
    packet_bytes_out += other.packet_bytes_out;
    inline_packets_out += other.inline_packets_out;
    writes_out += other.writes_out;
    write_bytes_out += other.write_bytes_out;
    posts += other.posts;
    signalled += other.signalled;
    packets_in += other.packets_in;
    packet_bytes_in += other.packet_bytes_in;
    notices_in += other.notices_in;
    receives_posted += other.receives_posted;
    latency_microseconds += other.latency_microseconds;
    for (size_t i = 0; i < kStatuses; ++i) completions[i] += other.completions[i];
    for (size_t i = 0; i < kLatencyBuckets; ++i) latency[i] += other.latency[i];
  }
};

}  // namespace sluice::rdma
