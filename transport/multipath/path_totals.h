// What paths have carried, for people and metrics: plain structs, so that whoever shows them knows no device.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace sluice::transport {

// Counters grow for the endpoint's life, whatever becomes of links and paths; up and goodput are as of now.
struct RailTotals {
  uint64_t bytes_out = 0, bytes_in = 0;
  uint64_t messages_out = 0, messages_in = 0;   // packets and chunks; of a TCP connection that is a link's base: frames
  uint64_t up = 0;                              // paths
  double goodput = 0;                           // bytes a second, the sum over paths as measured last
};

struct PathTotals {
  // By kind and rail, as in PathRow: as many as a host has devices, and two of TCP.
  std::map<std::pair<std::string, std::string>, RailTotals> rails;
  uint64_t reconnects = 0;       // paths that were made again after a loss
  uint64_t chunks_resent = 0;    // because a path was lost, or they were late on it
  uint64_t duplicates = 0;       // packets that came twice, for the same reason
  TimeNs credit_stall = 0;       // that something waited for, on paths whose peer had posted no receive
  // Of queue pairs.
  uint64_t broken = 0;
  uint64_t registered_bytes = 0;
  uint64_t refused_regions = 0;  // memory that goes without registration
  std::map<std::string, uint64_t> completions;   // by status
  std::vector<uint64_t> latency; // from post to completion; [i]: below 2^i microseconds, the last also what is longer
  double latency_seconds = 0;    // the sum
  std::vector<std::pair<std::string, uint32_t>> ports;   // device and port of each rail

  void Add(const PathTotals& other);   // ports: the union
};

// A path of one link.
struct PathRow {
  std::string kind;      // "tcp", "rdma", "shm"
  std::string rail;      // rdma: "mlx5_0:1"; tcp: "base", or "further" for a connection over another network
  std::string address;   // of the peer
  double goodput = 0;    // bytes a second as measured last: of chunks, or of all by the kernel where there are none
  uint64_t bytes_out = 0, bytes_in = 0, chunks = 0;
  double rtt_s = 0;      // 0 = not known
  uint64_t retransmits = 0, congestion_marks = 0;   // of TCP, by its kernel
  uint64_t resent = 0;   // of the link, on its first row
  std::string note;      // why the link does not use RDMA; on its first row
};

}  // namespace sluice::transport
