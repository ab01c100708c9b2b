// A partition under BSP: one open round, closed when every counted rank has contributed, or all but job.backup_workers of
// them, or whoever has when job.round_deadline_ms have passed (not broadcasts: these need everybody). Who comes later is
// REJECTED.
//
//   OPEN     Contribute, until nobody (or nobody who is waited for) is missing
//   SUMMED   reduced; where a step-wide decision is configured its record goes to the coordinator ->
//   VERDICT  OnVerdict(phase 0), for layer-wise optimizers again with phase 1
//   APPLIED  in one act: value, optimizer state, replica, reply, open round; then the answers go out, and the round is OPEN
//            again. (SUMMED and VERDICT are one state here, kDeciding: the record is sent in the act of summing.)
//
// A round is a gradient round (sums) or a broadcast (one rank's ASSIGN replaces the value, the others are EMPTY). A push
// of the other kind is refused. Broadcasts are rounds but not steps: rates, verdicts and bias corrections count steps.
// A gradient round in which every counted rank was EMPTY is a broadcast without a root: nothing is applied, SKIPPED.
// A sum that is not finite, or a push flagged NONFINITE, skips: the whole step where a coordinator decides it, else this
// partition's round (finite gradients whose sum overflowed).
#pragma once

#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/dense_partition.h"
#include "server/round_reducer.h"

namespace sluice::server {

//
// Forwards (docs/wire.md, "A push through a tree"; bsp_forwards.cc): the sum of several ranks is one part of the round, and each of
// its ranks a contributor. A rank that has a node in the tree counts by a forward alone.
class BspPartition final : public DensePartition {
 public:
  BspPartition(PartitionShape shape, std::unique_ptr<compression::Codec> reply_codec, ValueState values,
               JobContext* job);

  Admission Admit(LinkId link, const FrameHeader& push) override;
  bool Urgent(const FrameHeader& push) const override;
  absl::Status Contribute(LinkId link, const FrameHeader& push, transport::Payload payload) override;
  void MembershipChanged() override;
  bool SetWay(std::shared_ptr<const control::TreeWay> way) override;
  const control::TreeWay* way() const override { return way_.get(); }
  void OnTick() override;
  void OnVerdict(uint64_t step, uint32_t phase, const Verdict& verdict) override;
  absl::StatusOr<ReplicaMessage> Save() const override;
  void OnSettled() override;
  void Resubmit() override;
  absl::Status Load(const proto::ReplicaHead& head, ConstBytes bulk) override;
  absl::Status Replay(const proto::ReplicaHead& head, ConstBytes bulk) override;
  void Report(proto::PartitionState* state) const override;
  std::string WaitingFor() const override;
  uint64_t OldestOpenRound() const override { return open_; }

 protected:
  uint64_t NextRound(uint32_t) const override { return open_; }
  uint32_t NextRateBits(uint32_t) const override { return semantics().RateBits(step_); }
  bool ContributedToNext(uint32_t rank) const override { return seats_[rank].HasContributed(open_); }

 private:
  enum class State { kOpen, kDeciding };
  enum class Kind { kUnknown, kGradient, kBroadcast };

  // Nobody is missing whom the open round waits for.
  bool Complete() const;
  void Join(uint32_t rank, uint64_t round, bool first) override;
  // The round can take this push beside those that it has.
  absl::Status CheckKind(const FrameHeader& push) const;
  // Step 2e: a round that is closed already.
  void AnswerAgain(LinkId link, const FrameHeader& push);
  // The same four of a forward, and what it adds to the round.
  Admission AdmitForward(LinkId link, const FrameHeader& push);
  bool UrgentForward(const FrameHeader& push) const;
  absl::Status ContributeForward(LinkId link, const FrameHeader& push, transport::Payload payload);
  absl::Status CheckForwarded(const FrameHeader& push, const ForwardParts& parts) const;
  absl::Status AddForward(const FrameHeader& push, const ForwardParts& parts, const transport::Payload& payload);
  // Everything of the open round; everybody sends it again.
  void DiscardOpenRound();
  // In place of each forward's smallest rank all of its ranks.
  std::vector<uint32_t> Unfold(const std::vector<uint32_t>& added, std::vector<int32_t>* nesting) const;
  void CloseIfComplete();
  void CloseGradient();
  void CloseBroadcast();
  struct Decision {
    bool skip = false;
    double scale = 1.0;
    double trust = 1.0;
    uint32_t rate_bits = 0;
  };
  // sent: at a copy, the sum as it came, already scaled where it is to be; sum_ is it too where it is needed in a block.
  absl::Status ApplyGradient(const Decision& decision, const SentSum* sent = nullptr);
  absl::Status UpdateValue(const Decision& decision, const SentSum* sent);
  void BuildResult(bool skipped, const BlockPtr& aggregate);
  void EndRound(const Decision& decision, bool assigned, std::span<const float> given);
  void SendAnswers();
  // Where the last answer's payload lies (DenseHead.last_source).
  static constexpr uint32_t kAnswerEmpty = 0, kAnswerValue = 1, kAnswerReplica = 2, kAnswerApart = 3;

  State state_ = State::kOpen;
  uint64_t open_ = 0;            // the open round = rounds applied
  uint64_t step_ = 0;            // gradient rounds closed
  Kind kind_ = Kind::kUnknown;
  bool asked_to_skip_ = false;   // a push of the open round was not finite
  uint32_t contributed_ = 0;     // ranks that have contributed to the open round
  uint32_t first_rank_ = 0;      // the first of them, for messages
  RoundReducer reducer_;
  BlockPtr assigned_;            // a broadcast's payload
  uint32_t root_ = 0;
  std::vector<uint32_t> contributors_;   // from SUMMED on, in the order of reduction
  BlockPtr sum_;                 // from SUMMED on: the reduced gradient
  Decision decision_;            // of phase 0
  uint32_t phase_ = 0;           // kDeciding: what is waited for
  StepRecord norm_, layers_;     // kDeciding: what the coordinator was told
  std::optional<Decision> decided_;   // of step step_ - 1, where a coordinator decides
  std::shared_ptr<const control::TreeWay> way_;
  std::map<uint32_t, std::pair<uint32_t, std::vector<uint32_t>>> forwards_;   // of the open round, by smallest rank: server, ranks
  std::vector<int32_t> nesting_;         // as contributors_; empty: no forwards
  Result last_;                  // of round open_ - 1
  std::vector<uint32_t> unanswered_;     // contributors of that round, until it is settled
};

}  // namespace sluice::server
