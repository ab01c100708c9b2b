// Sends bytes to other servers at the scheduler's word, to learn what the links between them carry (docs/topology.md, "Probes";
// the messages: docs/wire.md, "A probe"). No I/O, no thread, no clock of its own: a part of ServerCore.
//
// One peer after the other:
//   t=0  OnProbe(Probe)       -> Connect to the first of the peer's addresses that has one, never by shared memory
//   t=1  OnUp                 -> Send(ANNOUNCE)
//   t=2  OnFrame(GRANT slot)  -> Send(PUSH without payload)
//   t=3  OnFrame(STATE 0)        the round-trip time is known; -> Send(PUSH …) until kProbeWindow is unacknowledged
//   t=4  OnFrame(STATE n)     -> Send(PUSH …) for what has arrived
//   t=9  OnFrame(STATE all)      the result is there: done(result), Close, the next peer
// A link that goes, a refusal, or the time limit ends a peer's turn with an error in the result. Another Probe ends what is left of
// the one before; each of its peers has a result, too.
//
// The link is a probe's own, so what waits on others does not count, and nobody waits for it but at the network itself: at most
// kProbeWindow is on its way.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "proto/control.pb.h"
#include "transport/transport.h"

namespace sluice::server {

inline constexpr size_t kProbeWindow = 4 << 20;        // at most; the granted slot may be smaller
inline constexpr size_t kProbeStripe = 256 << 10;      // in a frame
inline constexpr uint64_t kMaxProbeBytes = 256 << 20;  // to a peer
inline constexpr int kMaxProbePeers = 256;
inline constexpr TimeNs kMaxProbeTime = 600 * kSecond; // of a peer
inline constexpr TimeNs kDefaultProbeTime = 10 * kSecond;

class Prober {
 public:
  // done is called from inside the calls below. endpoint and clock outlive this.
  Prober(transport::Endpoint* endpoint, const Clock* clock, transport::Hello self, std::function<void(const proto::ProbeResult&)> done);

  // Ignored: a request whose number is not larger than the last one's.
  void OnProbe(const proto::Probe& probe);
  void OnTick();

  // A link of a probe, from Connect to OnDown. Its events belong here, and nothing else's do.
  bool Owns(transport::LinkId link) const { return links_.count(link) > 0; }
  void OnUp(transport::LinkId link);
  void OnDown(transport::LinkId link, const absl::Status& reason);
  void OnFrame(transport::LinkId link, const transport::FrameHeader& header, ConstBytes payload);
  void OnWritable(transport::LinkId link);

  bool idle() const { return turns_.empty(); }

 private:
  struct Turn {
    proto::ProbePeer peer;
    uint64_t request = 0, bytes = 0;
    TimeNs limit = 0;
  };
  enum class State { kNone, kConnecting, kAsked, kEmpty, kSending };

  void Next();                                  // begins the first turn, if none has begun
  void End(const std::string& error);           // the first turn's
  void Pump();
  void Push(uint64_t bytes);
  transport::FrameHeader Header(transport::FrameType type) const;
  std::string WhatItWaitsFor() const;

  transport::Endpoint* const endpoint_;
  const Clock* const clock_;
  const transport::Hello self_;
  const std::function<void(const proto::ProbeResult&)> done_;

  uint64_t newest_ = 0;                         // request
  std::deque<Turn> turns_;
  std::set<transport::LinkId> links_;           // those that are closing, too
  std::shared_ptr<std::byte> zeros_;            // kProbeStripe of them, lent to links

  // Of the first turn.
  State state_ = State::kNone;
  transport::LinkId link_ = 0;
  uint32_t attempt_ = 0;                        // counts turns
  std::string address_;
  TimeNs began_ = 0, asked_ = 0, rtt_ = 0, first_sent_ = 0;
  transport::SlotId slot_ = 0;
  uint64_t slot_bytes_ = 0;
  uint64_t sent_ = 0, arrived_ = 0;
};

}  // namespace sluice::server
