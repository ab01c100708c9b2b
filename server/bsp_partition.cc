#include "server/bsp_partition.h"

#include <algorithm>
#include <cstring>
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
  if (push.has(transport::kFlagForward)) return AdmitForward(link, push);
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
  if (!Counts(push.rank, open_) && !Joins(push.rank)) {
    job_->replier->SendError(link, push, RankIsOut(push.rank, open_));
    return Admission::kAnswered;
  }
  if (state_ != State::kOpen || !Counts(push.rank, open_) || (way_ != nullptr && way_->NodeOf(push.rank) != -1)) {
    // It comes by its node alone; or summed without it, or begun before it joined: when the round is closed, it is REJECTED.
    job_->replier->SendRetry(link, push, RetryReason::kBusy, term());
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
  Seat& seat = SeatOf(push.rank);
  const bool forward = push.has(transport::kFlagForward);
  ++job_->counters->duplicates;
  if (waits()) {
    if (TakeSeat(link, push)) job_->replier->SendState(link, push, PushState::kReceived);
    return;
  }
  if (push.round == seat.round && UnderWay(seat, link, push.reply_slot)) {
    job_->replier->SendState(link, push, PushState::kReceived);
    return;
  }
  if (!TakeSeat(link, push)) return;
  // A later contribution is proof that it had its answer for this one.
  // (No round of this way was closed without the ranks of a forward.)
  const bool rejected = !forward && seat.contributed <= push.round;
  job_->counters->rejected += rejected;
  // A change is of no use to whose replica may be another than that of the round before.
  const bool last = push.round + 1 == open_ && !(rejected && semantics().reply == proto::REPLY_CHANGE);
  Result result = last ? last_ : CurrentValue(push.round, NextRateBits(push.rank));
  if (rejected) result.flags |= transport::kFlagRejected;
  if (!last && seat.contributed == push.round + 1) result.flags |= seat.verdict;
  SendResult(push.rank, result);
}

bool BspPartition::Urgent(const FrameHeader& push) const {
  if (push.has(transport::kFlagForward)) return UrgentForward(push);
  if (state_ != State::kOpen || push.round != open_) return false;
  if (push.rank == LowestMissing(open_)) return true;
  // The one that closes the round, and so is not kept: whoever is missing below it may never come.
  return semantics().leaves_out() && !waits() && CountMissing(open_) <= uint64_t{MayMiss()} + 1;
}

bool BspPartition::Complete() const {
  if (contributed_ == 0) return false;
  if (!semantics().leaves_out() || kind_ == Kind::kBroadcast) return LowestMissing(open_) == seats_.size();
  return CountMissing(open_) <= MayMiss();
}

void BspPartition::Join(uint32_t rank, uint64_t round, bool first) {
  // What has been added in order of rank stays in order: a round that is begun is not joined. (One that waits for this rank
  // has been joined when it was not.)
  const uint64_t least = first ? open_ + (contributed_ > 0 ? 1 : 0) : seats_[rank].joins_at;
  seats_[rank].joins_at = std::max(round, least);
  MembershipChanged();   // the open round may have waited for it
}

absl::Status BspPartition::Contribute(LinkId link, const FrameHeader& push, Payload payload) {
  if (push.has(transport::kFlagForward)) return ContributeForward(link, push, std::move(payload));
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
  if (contributed_ == 0) first_rank_ = push.rank, RoundBegins();
  kind_ = IsBroadcast(push) ? Kind::kBroadcast : Kind::kGradient;
  asked_to_skip_ |= push.has(transport::kFlagNonfinite);
  ++contributed_;
  Seat& seat = seats_[push.rank];
  seat.before = seat.contributed;
  seat.contributed = open_ + 1;
  TakeSeat(link, push);
  ++job_->counters->contributions;
  job_->counters->payload_in += payload.size();
  if (job_->observer != nullptr) {
    job_->observer->OnContribution({job_->job, push.rank, push.incarnation, shape_.tensor, shape_.partition, open_,
                                    push.codec, push.flags, push.elements, payload.bytes()});
  }
  uint32_t missing = LowestMissing(open_);
  bool last = missing == seats_.size();
  if (semantics().leaves_out()) {
    last = Complete() && !waits();   // as long as it is not closed others may come
    if (last) missing = static_cast<uint32_t>(seats_.size());
  }
  absl::Status added =
      reducer_.Add(push.rank, kind_ == Kind::kGradient ? codec : nullptr, std::move(payload), missing, last);
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
  LetIn(open_ + (contributed_ > 0));
  if (state_ != State::kOpen) return;
  if (absl::Status status = reducer_.Raise(LowestMissing(open_)); !status.ok()) {
    job_->fail(absl::Status(status.code(), absl::StrCat("round ", open_, " of ", Name(), ": ", status.message())));
    return;
  }
  CloseIfComplete();
  ServePulls();
}

void BspPartition::OnTick() {
  if (BecomesOverdue()) CloseIfComplete();
}

void BspPartition::CloseIfComplete() {
  if (state_ != State::kOpen || waits() || !Complete()) return;
  // Those that had to wait for lower ranks which have not come.
  if (absl::Status status = reducer_.Raise(static_cast<uint32_t>(seats_.size())); !status.ok()) {
    job_->fail(absl::Status(status.code(), absl::StrCat("round ", open_, " of ", Name(), ": ", status.message())));
    return;
  }
  contributors_ = Unfold(reducer_.added(), &nesting_);
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
  EndRound(decision, assigned, assigned ? std::as_const(*values_.value()).values() : std::span<const float>());
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
    if (absl::Status status = ApplyGradient(decision); !status.ok()) job_->fail(status);
    return;
  }
  state_ = State::kDeciding;
  phase_ = kPhaseNorm;
  StepRecord record;
  record.partition = shape_.partition;
  record.flags = (finite ? 0 : kRecordNonfinite) | (asked_to_skip_ ? kRecordSkip : 0);
  if (finite) record.values[0] = SumOfSquares(std::as_const(*sum_).values());
  norm_ = record;
  job_->submit(step_, kPhaseNorm, record);
}

void BspPartition::OnVerdict(uint64_t step, uint32_t phase, const Verdict& verdict) {
  if (state_ != State::kDeciding || step != step_ || phase != phase_) return;   // a repeat
  if (phase == kPhaseNorm) {
    decision_ = Decision{verdict.skip, verdict.scale, 1.0, verdict.rate_bits};
    if (decision_.skip || !semantics().layerwise) {
      if (absl::Status status = ApplyGradient(decision_); !status.ok()) job_->fail(status);
      return;
    }
    phase_ = kPhaseLayers;
    ApplyParams params;
    params.rate = std::bit_cast<float>(decision_.rate_bits);
    params.scale = decision_.scale;
    const LayerNorms norms = values_.Norms(std::as_const(*sum_).values(), params);
    StepRecord record;
    record.partition = shape_.partition;
    record.values[0] = norms.parameters;
    record.values[1] = norms.update;
    layers_ = record;
    job_->submit(step_, kPhaseLayers, record);
    return;
  }
  decision_.trust = verdict.TrustOf(shape_.tensor);
  if (absl::Status status = ApplyGradient(decision_); !status.ok()) job_->fail(status);
}

void BspPartition::Resubmit() {
  if (decided_.has_value()) {
    StepRecord record;
    record.partition = shape_.partition;
    record.flags = kRecordDecided | (decided_->skip ? kRecordSkip : 0);
    record.values[0] = decided_->scale;
    job_->submit(step_ - 1, kPhaseNorm, record);
    record.values[0] = decided_->trust;
    if (semantics().layerwise && !decided_->skip) job_->submit(step_ - 1, kPhaseLayers, record);
  }
  if (state_ != State::kDeciding) return;
  job_->submit(step_, kPhaseNorm, norm_);
  if (phase_ == kPhaseLayers) job_->submit(step_, kPhaseLayers, layers_);
}

absl::Status BspPartition::ApplyGradient(const Decision& decision, const SentSum* sent) {
  last_ = Result{};   // lets go of the value before it is written
  if (!decision.skip) {
    if (absl::Status status = UpdateValue(decision, sent); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("round ", open_, " of ", Name(), ": ", status.message()));
    }
  }
  ++step_;
  BuildResult(decision.skip, sum_);
  if (semantics().needs_verdict()) decided_ = decision;
  const BlockPtr sum = std::move(sum_);
  const bool given = !decision.skip && sum != nullptr;
  EndRound(decision, /*assigned=*/false, given ? std::as_const(*sum).values() : std::span<const float>());
  return absl::OkStatus();
}

absl::Status BspPartition::UpdateValue(const Decision& decision, const SentSum* sent) {
  ApplyParams params;
  params.rate = std::bit_cast<float>(decision.rate_bits);
  params.scale = decision.scale;
  params.trust = decision.trust;
  // An aggregate that is sent is the clipped one. (Scaled here or by the optimizer: the same bits.)
  if (decision.scale != 1.0 && (!semantics().has_optimizer || semantics().reply == proto::REPLY_AGGREGATE)) {
    if (sent == nullptr) Multiply(sum_->values(), static_cast<float>(decision.scale));
    params.scale = 1.0;
  }
  if (sum_ == nullptr) return values_.Update(*sent, params);
  return values_.Update(sum_, params);
}

void BspPartition::BuildResult(bool skipped, const BlockPtr& aggregate) {
  last_ = CurrentValue(open_, semantics().RateBits(step_));
  if (skipped) last_.flags |= transport::kFlagSkipped;
  if (!skipped && semantics().reply == proto::REPLY_AGGREGATE) {
    last_.owner = aggregate;
    last_.payload = std::as_const(*aggregate).bytes();
  }
  // A skipped step has no aggregate and no change; the parameters are what they were.
  if (skipped && semantics().reply != proto::REPLY_PARAMETERS) {
    last_.payload = {};
    last_.owner.reset();
  }
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

// given: what the optimizer or the broadcast was given, for copies.
void BspPartition::EndRound(const Decision& decision, bool assigned, std::span<const float> given) {
  last_.contributors = static_cast<uint32_t>(contributors_.size());
  for (const uint32_t rank : contributors_) seats_[rank].verdict = decision.skip ? transport::kFlagSkipped : 0;
  if (owner()) {
    ++job_->counters->rounds_applied;
    if (decision.skip) ++job_->counters->rounds_skipped;
  }
  if (job_->observer != nullptr) {
    RoundRecord record{};
    record.job = job_->job;
    record.tensor = shape_.tensor;
    record.partition = shape_.partition;
    record.term = term();
    record.round = open_;
    record.backup = !owner();
    record.contributors = contributors_;
    record.nesting = nesting_;
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
  const uint64_t round = open_++;
  applied_rounds_ = open_;
  job_->counters->max_round = std::max(job_->counters->max_round, open_);
  const bool broadcast = kind_ == Kind::kBroadcast;
  state_ = State::kOpen;
  kind_ = Kind::kUnknown;
  asked_to_skip_ = false;
  contributed_ = 0;
  forwards_.clear();
  nesting_.clear();
  RoundEnds();
  unanswered_ = std::exchange(contributors_, {});
  if (followed()) {
    proto::RoundHead head;
    head.set_round(round);
    head.mutable_contributors()->Assign(unanswered_.begin(), unanswered_.end());
    head.set_skipped(decision.skip);
    head.set_assigned(assigned);
    head.set_broadcast(broadcast);
    head.set_scale(decision.scale);
    head.set_trust(decision.trust);
    head.set_rate_bits(decision.rate_bits);
    if (HasDigest(round)) head.set_digest(transport::HashBytes(std::as_const(*values_.value()).bytes()));
    Append(RoundMessage(head, given));
  }
  if (owner() && !waits()) SendAnswers();
}

void BspPartition::SendAnswers() {
  // Who came through a tree is answered there, unless it has asked here since.
  const std::vector<uint32_t> unanswered = std::exchange(unanswered_, {});
  for (const uint32_t rank : unanswered) {
    if (seats_[rank].round == last_.round) SendResult(rank, last_);
  }
  for (const auto& [server, seat] : forwarders_) {
    if (!unanswered.empty() && seat.round == last_.round) SendResult(server, last_);
  }
  ServePulls();
}

void BspPartition::OnSettled() {
  if (waits()) return;
  SendAnswers();
  CloseIfComplete();
}

// --- copies

absl::StatusOr<ReplicaMessage> BspPartition::Save() const {
  proto::ReplicaHead message;
  proto::DenseHead* head = message.mutable_dense();
  const SavedValues saved = SaveValues(head);
  head->set_open_round(open_);
  head->set_step(step_);
  head->set_last_round(last_.round);
  head->set_last_flags(last_.flags);
  head->set_last_codec(last_.codec);
  head->set_last_contributors(last_.contributors);
  head->set_last_rate_bits(last_.rate_bits);
  ConstBytes answer;
  if (last_.payload.empty()) {
    head->set_last_source(kAnswerEmpty);
  } else if (last_.payload.data() == saved.value.data()) {
    head->set_last_source(kAnswerValue);
  } else if (last_.payload.data() == saved.replica.data()) {
    head->set_last_source(kAnswerReplica);
  } else {
    head->set_last_source(kAnswerApart);
    answer = last_.payload;
    head->set_last_bytes(answer.size());
  }
  for (const Seat& seat : seats_) {
    // Of the closed rounds: what the open one has is sent again to whoever becomes the owner.
    proto::RankHead* rank = head->add_ranks();
    rank->set_contributed(std::min(seat.contributed, open_));
    rank->set_flags(seat.verdict);
  }
  if (decided_.has_value()) {
    head->set_decided(true);
    head->set_last_skipped(decided_->skip);
    head->set_last_scale(decided_->scale);
    head->set_last_trust(decided_->trust);
    head->set_decided_rate_bits(decided_->rate_bits);
  }
  // On the heap: it is rare, and the pool keeps what it has once given.
  return MakeReplicaMessage(message, {saved.value, saved.replica, saved.state, answer}, nullptr);
}

absl::Status BspPartition::Load(const proto::ReplicaHead& message, ConstBytes bulk) {
  if (!message.has_dense()) return Malformed("is no state of a tensor's partition");
  const proto::DenseHead& head = message.dense();
  if (head.ranks_size() > static_cast<int>(seats_.size())) {
    return Malformed(absl::StrCat("speaks of ", head.ranks_size(), " ranks; the job has ", seats_.size()));
  }
  const size_t values = shape_.elements * sizeof(float) * (head.replica() ? 2 : 1) + head.state_floats() * sizeof(float);
  if (head.last_source() > kAnswerApart || bulk.size() < values ||
      bulk.size() - values != (head.last_source() == kAnswerApart ? head.last_bytes() : 0)) {
    return Malformed(absl::StrCat("has ", bulk.size(), " bytes that do not fit its head"));
  }
  Result last;
  if (head.last_source() == kAnswerApart) {
    const ConstBytes answer = bulk.last(head.last_bytes());
    SLUICE_ASSIGN_OR_RETURN(BlockPtr block, job_->values->Get((answer.size() + sizeof(float) - 1) / sizeof(float)));
    std::memcpy(block->bytes().data(), answer.data(), answer.size());
    last.payload = std::as_const(*block).bytes().first(answer.size());
    last.owner = std::move(block);
  }
  SLUICE_RETURN_IF_ERROR(LoadValues(head, &bulk));
  if (head.last_source() == kAnswerValue || head.last_source() == kAnswerReplica) {
    const BlockPtr& block = head.last_source() == kAnswerValue ? values_.value() : values_.pulled();
    last.owner = block;
    last.payload = std::as_const(*block).bytes();
  }
  last.round = head.last_round();
  last.flags = static_cast<uint16_t>(head.last_flags());
  last.codec = static_cast<uint16_t>(head.last_codec());
  last.contributors = head.last_contributors();
  last.rate_bits = head.last_rate_bits();
  last_ = std::move(last);
  open_ = head.open_round();
  step_ = head.step();
  for (int rank = 0; rank < head.ranks_size(); ++rank) {
    seats_[static_cast<size_t>(rank)].contributed = head.ranks(rank).contributed();
    seats_[static_cast<size_t>(rank)].verdict = static_cast<uint16_t>(head.ranks(rank).flags() & transport::kFlagSkipped);
  }
  decided_.reset();
  if (head.decided()) decided_ = Decision{head.last_skipped(), head.last_scale(), head.last_trust(), head.decided_rate_bits()};
  return absl::OkStatus();
}

absl::Status BspPartition::Replay(const proto::ReplicaHead& message, ConstBytes bulk) {
  if (!message.has_round()) return Malformed("is no round of a tensor's partition");
  const proto::RoundHead& round = message.round();
  if (round.round() != open_) {
    return Malformed(absl::StrCat("is of round ", round.round(), "; the copy is at ", open_));
  }
  SLUICE_RETURN_IF_ERROR(CheckRanks(round.contributors()));
  SLUICE_ASSIGN_OR_RETURN(const std::optional<SentSum> given, GivenBy(round, bulk));
  BlockPtr block;   // what becomes the value or an answer; else the optimizer reads it where it lies
  const bool kept = !semantics().has_optimizer || semantics().reply == proto::REPLY_AGGREGATE || round.broadcast();
  if (given.has_value() && kept) {
    SLUICE_ASSIGN_OR_RETURN(block, BlockOf(*given, job_->values));
  }
  contributors_.assign(round.contributors().begin(), round.contributors().end());
  for (const uint32_t rank : contributors_) seats_[rank].contributed = open_ + 1;
  Decision decision{round.skipped(), round.scale(), round.trust(), round.rate_bits()};
  if (round.broadcast()) {
    kind_ = Kind::kBroadcast;
    assigned_ = std::move(block);
    CloseBroadcast();
  } else {
    kind_ = Kind::kGradient;
    sum_ = std::move(block);
    SLUICE_RETURN_IF_ERROR(ApplyGradient(decision, given.has_value() ? &*given : nullptr));
  }
  if (round.digest() == 0) return absl::OkStatus();
  return CheckDigest(round.round(), round.digest(), transport::HashBytes(std::as_const(*values_.value()).bytes()));
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
