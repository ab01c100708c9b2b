// The receiving end of probes (server/prober.h): takes their bytes into memory that nobody reads, and says how many have come. A part
// of ServerCore.
//
// One link at a time has memory here, kProbeWindow at most, however many ask: the others are told RETRY(BUSY). It is given back when
// the link goes, or has been silent for kProbeSilence. Probe bytes that nobody granted are dropped without a word.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "transport/transport.h"

namespace sluice::server {

inline constexpr TimeNs kProbeSilence = 5 * kSecond;

class ProbeSink {
 public:
  ProbeSink(transport::Endpoint* endpoint, const Clock* clock) : endpoint_(endpoint), clock_(clock) {}

  // ANNOUNCE or PUSH of job 0, from a server. False: it was dropped.
  bool OnFrame(transport::LinkId link, const transport::FrameHeader& header);
  void OnDown(transport::LinkId link);
  void OnSlotClosed(transport::LinkId link, transport::SlotId slot);
  void OnTick();

  bool idle() const { return memory_ == nullptr; }
  bool Owns(transport::LinkId link) const { return link == link_ && link_ != 0; }   // probe bytes come over it

 private:
  void Grant(transport::LinkId link, const transport::FrameHeader& announce);
  void Answer(transport::LinkId link, const transport::FrameHeader& to, transport::FrameHeader answer);
  void Release();

  transport::Endpoint* const endpoint_;
  const Clock* const clock_;
  transport::LinkId link_ = 0;            // that has the memory; 0 = none
  transport::SlotId slot_ = 0;
  bool closing_ = false;                  // the peer may still write there: nobody else gets memory meanwhile
  std::shared_ptr<std::byte> memory_;     // kProbeWindow
  uint32_t attempt_ = 0;
  uint64_t arrived_ = 0;
  TimeNs heard_ = 0;
};

}  // namespace sluice::server
