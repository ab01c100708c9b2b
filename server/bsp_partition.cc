#include "server/bsp_partition.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fixed_sum.h"
#include "base/status_macros.h"
#include "server/vector_ops.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::LinkId;
using transport::Payload;
using transport::PushState;
using transport::RetryReason;

namespace {

bool IsBroadcast(const FrameHeader& push) {
  return push.has(transport::kFlagAssign) ||
         (push.has(transport::kFlagEmpty) && !push.has(transport::kFlagNonfinite));
}

}  // namespace

BspPartition::BspPartition(PartitionShape shape, std::unique_ptr<compression::Codec> reply_codec, ValueState values,
                           JobContext* job)
    : DensePartition(std::move(shape), std::move(reply_codec), std::move(values), job),
      reducer_(job->semantics->order, job->semantics->reduction, shape_.elements, job->values, job->exact) {}

Partition::Admission BspPartition::Admit(LinkId link, const FrameHeader& push) {
  Seat& seat = seats_[push.rank];
  if (push.round < open_) {                                                                          // 2e
    AnswerAgain(link, push);
    return Admission::kAnswered;
  }
  if (push.round > open_) {                                                                          // 2f
    job_->replier->SendRetry(link, push, RetryReason::kBusy, term());
    return Admission::kAnswered;
  }
  if (seat.HasContributed(open_)) {                                                                  // 2g
    ++job_->counters->duplicates;
    if (TakeSeat(link, push)) job_->replier->SendState(link, push, PushState::kReceived);
    return Admission::kAnswered;
  }
  if (!Counts(push.rank, open_)) {
    job_->replier->SendError(link, push, RankIsOut(push.rank, open_));
    return Admission::kAnswered;
  }
  if (absl::Status status = CheckKind(push); !status.ok()) {
    ++job_->counters->refused;
    job_->replier->SendError(link, push, status);
    return Admission::kAnswered;
  }
  return Admission::kAccept;
}

absl::Status BspPartition::CheckKind(const FrameHeader& push) const {
  if (kind_ == Kind::kUnknown) return absl::OkStatus();
  const bool broadcast = IsBroadcast(push);
  if (broadcast != (kind_ == Kind::kBroadcast)) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", push.rank, broadcast ? " broadcasts" : " pushes a gradient to", " round ", open_, " of ",
                     Name(), ", and rank ", first_rank_, broadcast ? " has pushed a gradient to it" : " broadcasts it",
                     "; all ranks must do the same operations on a tensor in the same order"));
  }
  if (push.has(transport::kFlagAssign) && assigned_ != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", push.rank, " and rank ", root_,
                                                      " both broadcast as root to round ", open_, " of ", Name(),
                                                      "; all ranks must name the same root"));
  }
  return absl::OkStatus();
}

void BspPartition::AnswerAgain(LinkId link, const FrameHeader& push) {
  Seat& seat = seats_[push.rank];
  ++job_->counters->duplicates;
  if (push.round == seat.round && UnderWay(seat, link, push.reply_slot)) {
    job_->replier->SendState(link, push, PushState::kReceived);
    return;
  }
  if (!TakeSeat(link, push)) return;
  Result result = push.round + 1 == open_ ? last_ : CurrentValue(push.round, NextRateBits(push.rank));
  // A later contribution is proof that it had its answer for this one.
  if (seat.contributed <= push.round) result.flags |= transport::kFlagRejected;
  SendResult(push.rank, result);
}

bool BspPartition::Urgent(const FrameHeader& push) const {
  return state_ == State::kOpen && push.round == open_ && push.rank == LowestMissing(open_);
}

absl::Status BspPartition::Contribute(LinkId link, const FrameHeader& push, Payload payload) {
  if (Admit(link, push) == Admission::kAnswered) return absl::OkStatus();   // the round went on in the meantime
  const bool nothing = push.has(transport::kFlagEmpty) || push.has(transport::kFlagNonfinite);
  const compression::Codec* codec = nothing ? nullptr : compression::DecoderFor(push.codec);
  if (codec != nullptr) {
    if (absl::Status status = codec->Validate(payload.bytes(), shape_.elements); !status.ok()) {
      return absl::DataLossError(absl::StrCat("the payload of rank ", push.rank, " for round ", open_, " of ", Name(),
                                              " is not valid ", codec->name(), ": ", status.message()));
    }
  }
  if (push.has(transport::kFlagAssign)) {
    auto block = job_->values->Get(shape_.elements);
    SLUICE_RETURN_IF_ERROR(block.status());
    SLUICE_RETURN_IF_ERROR(codec->Decode(payload.bytes(), (*block)->values()));
    assigned_ = *std::move(block);
    root_ = push.rank;
  }
  if (contributed_ == 0) first_rank_ = push.rank;
  kind_ = IsBroadcast(push) ? Kind::kBroadcast : Kind::kGradient;
  asked_to_skip_ |= push.has(transport::kFlagNonfinite);
  ++contributed_;
  seats_[push.rank].contributed = open_ + 1;
  TakeSeat(link, push);
  ++job_->counters->contributions;
  job_->counters->payload_in += payload.size();
  if (job_->observer != nullptr) {
    job_->observer->OnContribution({job_->job, push.rank, push.incarnation, shape_.tensor, shape_.partition, open_,
                                    push.codec, push.flags, push.elements, payload.bytes()});
  }
  const uint32_t missing = LowestMissing(open_);
  absl::Status added = reducer_.Add(push.rank, kind_ == Kind::kGradient ? codec : nullptr, std::move(payload), missing,
                                    /*last=*/missing == seats_.size());
  if (!added.ok()) {
    // It was validated, so this is memory: ours, or a peer's that changed under our eyes. The sum is lost.
    job_->fail(absl::Status(added.code(), absl::StrCat("round ", open_, " of ", Name(), ": ", added.message())));
    return absl::OkStatus();
  }
  CloseIfComplete();
  return absl::OkStatus();
}

void BspPartition::MembershipChanged() {
  if (seats_.size() < job_->workers.size()) seats_.resize(job_->workers.size());
  if (state_ != State::kOpen) return;
  if (absl::Status status = reducer_.Raise(LowestMissing(open_)); !status.ok()) {
    job_->fail(absl::Status(status.code(), absl::StrCat("round ", open_, " of ", Name(), ": ", status.message())));
    return;
  }
  CloseIfComplete();
}

void BspPartition::CloseIfComplete() {
  if (state_ != State::kOpen || contributed_ == 0 || LowestMissing(open_) < seats_.size()) return;
  contributors_ = reducer_.added();
  if (semantics().order == proto::ORDER_EXACT) std::ranges::sort(contributors_);
  if (kind_ == Kind::kBroadcast) {
    CloseBroadcast();
  } else {
    CloseGradient();
  }
}

void BspPartition::CloseBroadcast() {
  reducer_.Discard();
  const bool assigned = assigned_ != nullptr;
  last_ = Result{};   // lets go of the value before it is written
  if (assigned) values_.Assign(std::move(assigned_));
  assigned_.reset();
  // Whole and in fp32 whatever the job's replies are: x = y = the root's payload.
  last_ = CurrentValue(open_, semantics().RateBits(step_));
  if (!assigned) last_.flags |= transport::kFlagSkipped;
  Decision decision;
  decision.skip = !assigned;
  EndRound(decision, assigned);
}

void BspPartition::CloseGradient() {
  auto reduced = reducer_.Finish();
  if (!reduced.ok()) {
    job_->fail(absl::Status(reduced.status().code(), absl::StrCat(Name(), ": ", reduced.status().message())));
    return;
  }
  sum_ = std::move(reduced->sum);
  const bool finite = reduced->finite;
  if (!semantics().needs_verdict()) {
    Decision decision;
    decision.skip = asked_to_skip_ || !finite;
    decision.rate_bits = semantics().RateBits(step_);
    ApplyGradient(decision);
    return;
  }
  state_ = State::kDeciding;
  StepRecord record;
  record.partition = shape_.partition;
  record.flags = (finite ? 0 : kRecordNonfinite) | (asked_to_skip_ ? kRecordSkip : 0);
  if (finite) record.values[0] = SumOfSquares(std::as_const(*sum_).values());
  job_->submit(step_, kPhaseNorm, record);
}

void BspPartition::OnVerdict(uint32_t phase, const Verdict& verdict) {
  if (state_ != State::kDeciding) return;
  if (phase == kPhaseNorm) {
    decision_ = Decision{verdict.skip, verdict.scale, 1.0, verdict.rate_bits};
    if (decision_.skip || !semantics().layerwise) {
      ApplyGradient(decision_);
      return;
    }
    ApplyParams params;
    params.rate = std::bit_cast<float>(decision_.rate_bits);
    params.scale = decision_.scale;
    const LayerNorms norms = values_.Norms(std::as_const(*sum_).values(), params);
    StepRecord record;
    record.partition = shape_.partition;
    record.values[0] = norms.parameters;
    record.values[1] = norms.update;
    job_->submit(step_, kPhaseLayers, record);
    return;
  }
  decision_.trust = verdict.TrustOf(shape_.tensor);
  ApplyGradient(decision_);
}

void BspPartition::ApplyGradient(const Decision& decision) {
  last_ = Result{};   // lets go of the value before it is written
  if (!decision.skip) {
    if (absl::Status status = UpdateValue(decision); !status.ok()) {
      job_->fail(absl::Status(status.code(), absl::StrCat("round ", open_, " of ", Name(), ": ", status.message())));
      return;
    }
  }
  ++step_;
  BuildResult(decision.skip, sum_);
  sum_.reset();
  EndRound(decision, /*assigned=*/false);
}

absl::Status BspPartition::UpdateValue(const Decision& decision) {
  ApplyParams params;
  params.rate = std::bit_cast<float>(decision.rate_bits);
  params.scale = decision.scale;
  params.trust = decision.trust;
  // An aggregate that is sent is the clipped one. (Scaled here or by the optimizer: the same bits.)
  if (decision.scale != 1.0 && (!semantics().has_optimizer || semantics().reply == proto::REPLY_AGGREGATE)) {
    Multiply(sum_->values(), static_cast<float>(decision.scale));
    params.scale = 1.0;
  }
  return values_.Update(sum_, params);
}

void BspPartition::BuildResult(bool skipped, const BlockPtr& aggregate) {
  last_ = CurrentValue(open_, semantics().RateBits(step_));
  if (skipped) last_.flags |= transport::kFlagSkipped;
  if (semantics().reply == proto::REPLY_AGGREGATE) {
    last_.owner = aggregate;
    last_.payload = std::as_const(*aggregate).bytes();
  }
  // A skipped step has no aggregate and no change; the parameters are what they were.
  if (skipped && semantics().reply != proto::REPLY_PARAMETERS) last_.payload = {};
  if (skipped || semantics().reply != proto::REPLY_CHANGE) return;
  if (reply_codec_ != nullptr) {
    auto change = values_.TakeChange(*reply_codec_, job_->scratch);
    if (change.ok()) {
      last_.owner = change->owner;
      last_.payload = change->bytes;
      last_.codec = change->codec;
      last_.flags |= transport::kFlagChange;
      return;
    }
    values_.Resync();   // parameters that are no longer finite: the replicas get them whole
  }
  last_.owner = values_.pulled();
  last_.payload = std::as_const(*values_.pulled()).bytes();
}

void BspPartition::EndRound(const Decision& decision, bool assigned) {
  last_.contributors = static_cast<uint32_t>(contributors_.size());
  ++job_->counters->rounds_applied;
  if (decision.skip) ++job_->counters->rounds_skipped;
  if (job_->observer != nullptr) {
    RoundRecord record{};
    record.job = job_->job;
    record.tensor = shape_.tensor;
    record.partition = shape_.partition;
    record.term = term();
    record.round = open_;
    record.contributors = contributors_;
    record.skipped = decision.skip;
    record.assigned = assigned;
    record.scale = decision.scale;
    record.trust = decision.trust;
    record.rate_bits = decision.rate_bits;
    // With an optimizer the parameters, else the aggregate: the value is either.
    record.value = std::as_const(*values_.value()).values();
    if (last_.payload.data() != std::as_bytes(record.value).data()) record.reply = last_.payload;
    job_->observer->OnRound(record);
  }
  ++open_;
  applied_rounds_ = open_;
  job_->counters->max_round = std::max(job_->counters->max_round, open_);
  state_ = State::kOpen;
  kind_ = Kind::kUnknown;
  asked_to_skip_ = false;
  contributed_ = 0;
  const std::vector<uint32_t> contributors = std::exchange(contributors_, {});
  for (const uint32_t rank : contributors) SendResult(rank, last_);
  ServePulls();
}

void BspPartition::Report(proto::PartitionState* state) const { ReportRound(open_, state); }

std::string BspPartition::WaitingFor() const {
  if (state_ == State::kDeciding) return absl::StrCat("round ", open_, " of ", Name(), " waits for the step's verdict");
  if (contributed_ == 0) return "";
  const uint32_t missing = LowestMissing(open_);
  if (missing >= seats_.size()) return "";
  return absl::StrCat("round ", open_, " of ", Name(), " has ", contributed_, " of ", seats_.size(),
                      " contributions and waits for ", WorkerName(missing));
}

}  // namespace sluice::server
