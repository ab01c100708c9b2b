// A partition under SSP and ASP: every contribution is applied on arrival, each rank has a next round of its own.
//
//   t=0  rank 0 pushes its round 0: applied, its next round is 1. The reply (current parameters) goes out at once (ASP),
//        or when 1 - (lowest next round of the counted ranks) <= staleness (SSP)
//   t=1  rank 0 pushes round 0 again (it lost the reply): answered with the parameters as they are now
//   t=2  rank 1 pushes its round 0: applied; replies that waited for it go out
// The mean over one contributor is the contribution: order and reduction make no difference. Rates follow the rank's own
// steps, so a schedule means the same as under BSP; bias corrections follow the updates of the partition.
// A broadcast gathers all counted ranks, each at its own next round. A rank that was declared out does not count from then
// on; one that comes back starts at the round that it names when it is ready (server/partition.h), so it holds nobody up.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "server/dense_partition.h"

namespace sluice::server {

class AsyncPartition final : public DensePartition {
 public:
  AsyncPartition(PartitionShape shape, ValueState values, JobContext* job);

  Admission Admit(LinkId link, const FrameHeader& push) override;
  bool Urgent(const FrameHeader& push) const override;
  absl::Status Contribute(LinkId link, const FrameHeader& push, transport::Payload payload) override;
  void MembershipChanged() override;
  absl::StatusOr<ReplicaMessage> Save() const override;
  void OnSettled() override;
  absl::Status Load(const proto::ReplicaHead& head, ConstBytes bulk) override;
  absl::Status Replay(const proto::ReplicaHead& head, ConstBytes bulk) override;
  void Report(proto::PartitionState* state) const override;
  std::string WaitingFor() const override;
  uint64_t OldestOpenRound() const override { return Slowest(); }

 protected:
  uint64_t NextRound(uint32_t rank) const override {
    return ranks_[rank].counted ? ranks_[rank].next : std::max(ranks_[rank].next, Slowest());
  }
  uint32_t NextRateBits(uint32_t rank) const override { return semantics().RateBits(ranks_[rank].step); }
  bool ContributedToNext(uint32_t rank) const override { return ranks_[rank].gathered; }

 private:
  struct Rank {
    uint64_t next = 0;        // round of the next contribution
    uint64_t step = 0;        // gradient rounds so far
    uint16_t flags = 0;       // of the last answer
    uint32_t contributors = 0;
    bool counted = true;
    bool gathered = false;    // has contributed to the broadcast that gathers
    bool held = false;        // its contribution waits in held_
    bool owed = false;        // the answer to round next - 1 waits for the slowest rank
  };

  void Join(uint32_t rank, uint64_t round, bool first) override;
  uint64_t Slowest() const;   // lowest next round of the counted ranks
  struct Held {
    FrameHeader push;
    const compression::Codec* codec = nullptr;
    transport::Payload payload;
  };
  absl::Status Take(const FrameHeader& push, const compression::Codec* codec, ConstBytes payload);
  absl::Status Apply(const FrameHeader& push, const compression::Codec* codec, ConstBytes payload);
  // Of gradient and sent, the sum as it came to a copy, one; neither if it is skipped.
  absl::Status ApplyGradient(uint32_t rank, const BlockPtr& gradient, const SentSum* sent, uint32_t rate_bits);
  absl::Status Gather(const FrameHeader& push, const compression::Codec* codec, ConstBytes payload);
  void CloseBroadcastIfComplete();
  void CloseBroadcast(const std::vector<uint32_t>& contributors);
  void ReleaseAnswers();
  void Answer(uint32_t rank);

  std::vector<Rank> ranks_;
  std::deque<Held> held_;
  BlockPtr assigned_;         // the root's payload of the broadcast that gathers
  uint32_t root_ = 0;
};

}  // namespace sluice::server
