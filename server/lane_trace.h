// A lane's part of a partition's way, as a trace: "aggregate" from a round's first contribution to its application,
// "reply" from there until the transport has let go of the answer, and "send" the part of it from the answer's first byte.
#pragma once

#include <map>
#include <utility>

#include "base/clock.h"
#include "base/trace.h"
#include "server/core.h"

namespace sluice::server {

class LaneTrace final : public ServerObserver {
 public:
  LaneTrace(TraceTrack* track, const Clock* clock) : track_(track), clock_(clock) {}

  void OnContribution(const ContributionRecord& record) override {
    first_.try_emplace({record.job, record.partition}, clock_->Now());
  }
  void OnRound(const RoundRecord& record) override {
    const auto first = first_.find({record.job, record.partition});
    if (first == first_.end()) return;
    track_->Wait("aggregate", first->second, clock_->Now(),
                 {.tensor = record.tensor, .partition = record.partition, .round = record.round});
    first_.erase(first);
  }
  void OnAnswered(const transport::FrameHeader& header, const transport::SendTimes& times) override {
    const TraceArgs args{
        .tensor = header.tensor, .partition = header.partition, .round = header.round, .rank = header.rank};
    track_->Wait("reply", times.queued, times.done, args);
    track_->Wait("send", times.begun, times.done, args);
  }

 private:
  TraceTrack* const track_;
  const Clock* const clock_;
  std::map<std::pair<uint32_t, uint32_t>, TimeNs> first_;   // by job and partition: at most one open round each
};

}  // namespace sluice::server
