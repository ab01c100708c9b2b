#include "server/async_partition.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::LinkId;
using transport::Payload;
using transport::PushState;
using transport::RetryReason;

AsyncPartition::AsyncPartition(PartitionShape shape, ValueState values, JobContext* job)
    : DensePartition(std::move(shape), nullptr, std::move(values), job), ranks_(job->workers.size()) {}

void AsyncPartition::Join(uint32_t rank, uint64_t round, bool first) {
  if (first) {
    std::erase_if(held_, [&](const Held& held) { return held.push.rank == rank; });   // of its former life
    ranks_[rank].held = ranks_[rank].owed = false;
  }
  ranks_[rank].next = std::max({ranks_[rank].next, round, Slowest()});   // so that it holds nobody up
  ranks_[rank].counted = true;
  seats_[rank].joins_at = 0;
}

uint64_t AsyncPartition::Slowest() const {
  uint64_t slowest = UINT64_MAX;
  for (const Rank& rank : ranks_) {
    if (rank.counted) slowest = std::min(slowest, rank.next);
  }
  return slowest == UINT64_MAX ? 0 : slowest;
}

Partition::Admission AsyncPartition::Admit(LinkId link, const FrameHeader& push) {
  Rank& rank = ranks_[push.rank];
  Seat& seat = seats_[push.rank];
  if (push.round < rank.next) {                                                                      // 2e
    ++job_->counters->duplicates;
    const bool coming = waits() || (rank.owed && push.round + 1 == rank.next) ||
                        (push.round == seat.round && UnderWay(seat, link, push.reply_slot));
    if (!TakeSeat(link, push)) return Admission::kAnswered;
    if (coming) {
      job_->replier->SendState(link, push, PushState::kReceived);
      return Admission::kAnswered;
    }
    Result result = CurrentValue(push.round, NextRateBits(push.rank));
    result.contributors = rank.contributors;
    if (push.round + 1 == rank.next) result.flags = rank.flags;
    if (seat.contributed <= push.round) result.flags |= transport::kFlagRejected;
    SendResult(push.rank, result);
    return Admission::kAnswered;
  }
  if (push.round > rank.next) {                                                                      // 2f
    job_->replier->SendRetry(link, push, RetryReason::kBusy, term());
    return Admission::kAnswered;
  }
  if (rank.gathered || rank.held) {                                                                  // 2g
    ++job_->counters->duplicates;
    if (TakeSeat(link, push)) job_->replier->SendState(link, push, PushState::kReceived);
    return Admission::kAnswered;
  }
  if (!rank.counted) {
    job_->replier->SendError(link, push, RankIsOut(push.rank, push.round));
    return Admission::kAnswered;
  }
  if (push.has(transport::kFlagAssign) && assigned_ != nullptr) {
    ++job_->counters->refused;
    job_->replier->SendError(
        link, push,
        absl::FailedPreconditionError(absl::StrCat("rank ", push.rank, " and rank ", root_, " both broadcast ", Name(),
                                                   " as root; all ranks must name the same root")));
    return Admission::kAnswered;
  }
  return Admission::kAccept;
}

bool AsyncPartition::Urgent(const FrameHeader& push) const {
  // While a round goes to copies a contribution is kept: it must leave the reserve to the copies' messages.
  return !waits() && push.round == ranks_[push.rank].next && push.round == Slowest();
}

absl::Status AsyncPartition::Contribute(LinkId link, const FrameHeader& push, Payload payload) {
  if (Admit(link, push) == Admission::kAnswered) return absl::OkStatus();   // things went on in the meantime
  const bool nothing = push.has(transport::kFlagEmpty) || push.has(transport::kFlagNonfinite);
  const compression::Codec* codec = nothing ? nullptr : compression::DecoderFor(push.codec);
  if (codec != nullptr) {
    if (absl::Status status = codec->Validate(payload.bytes(), shape_.elements); !status.ok()) {
      return absl::DataLossError(absl::StrCat("the payload of rank ", push.rank, " for its round ", push.round, " of ",
                                              Name(), " is not valid ", codec->name(), ": ", status.message()));
    }
  }
  TakeSeat(link, push);
  if (waits()) {
    ranks_[push.rank].held = true;
    held_.push_back({push, codec, std::move(payload)});
    return absl::OkStatus();
  }
  SLUICE_RETURN_IF_ERROR(Take(push, codec, payload.bytes()));
  ServePulls();
  return absl::OkStatus();
}

absl::Status AsyncPartition::Take(const FrameHeader& push, const compression::Codec* codec, ConstBytes payload) {
  const bool nothing = codec == nullptr;
  const bool broadcast = push.has(transport::kFlagAssign) || (nothing && !push.has(transport::kFlagNonfinite));
  return broadcast ? Gather(push, codec, payload) : Apply(push, codec, payload);
}

void AsyncPartition::OnSettled() {
  if (waits()) return;
  ReleaseAnswers();
  ServePulls();
  CloseBroadcastIfComplete();
  while (!held_.empty() && !waits()) {
    const Held held = std::move(held_.front());
    held_.pop_front();
    ranks_[held.push.rank].held = false;
    if (!ranks_[held.push.rank].counted) continue;   // declared out meanwhile
    if (absl::Status status = Take(held.push, held.codec, held.payload.bytes()); !status.ok()) {
      // It was validated: memory, ours or a peer's that changed under our eyes.
      job_->fail(absl::Status(status.code(), absl::StrCat("round ", held.push.round, " of rank ", held.push.rank, " of ",
                                                          Name(), ": ", status.message())));
      return;
    }
    ServePulls();
  }
}

absl::Status AsyncPartition::Apply(const FrameHeader& push, const compression::Codec* codec, ConstBytes payload) {
  SLUICE_ASSIGN_OR_RETURN(BlockPtr gradient, job_->scratch->Get(shape_.elements));
  if (codec != nullptr) SLUICE_RETURN_IF_ERROR(codec->Decode(payload, gradient->values()));
  const bool skip = codec == nullptr || compression::FirstNonfinite(gradient->values()) != shape_.elements;
  ++job_->counters->contributions;
  job_->counters->payload_in += payload.size();
  if (job_->observer != nullptr) {
    job_->observer->OnContribution({job_->job, push.rank, push.incarnation, shape_.tensor, shape_.partition, push.round,
                                    push.codec, push.flags, push.elements, payload});
  }
  if (skip) gradient.reset();
  return ApplyGradient(push.rank, gradient, nullptr, semantics().RateBits(ranks_[push.rank].step));
}

absl::Status AsyncPartition::ApplyGradient(uint32_t r, const BlockPtr& gradient, const SentSum* sent,
                                           uint32_t rate_bits) {
  Rank& rank = ranks_[r];
  const bool skip = gradient == nullptr && sent == nullptr;
  ApplyParams params;
  params.rate = std::bit_cast<float>(rate_bits);
  if (gradient != nullptr) SLUICE_RETURN_IF_ERROR(values_.Update(gradient, params));
  if (sent != nullptr) SLUICE_RETURN_IF_ERROR(values_.Update(*sent, params));
  if (owner()) {
    ++job_->counters->rounds_applied;
    job_->counters->rounds_skipped += skip;
  }
  if (job_->observer != nullptr) {
    RoundRecord record{};
    record.job = job_->job;
    record.tensor = shape_.tensor;
    record.partition = shape_.partition;
    record.term = term();
    record.round = rank.next;
    record.backup = !owner();
    record.contributors = {r};
    record.skipped = skip;
    record.rate_bits = rate_bits;
    record.value = std::as_const(*values_.value()).values();
    job_->observer->OnRound(record);
  }
  ++rank.step;
  ++rank.next;
  ++applied_rounds_;
  rank.flags = skip ? transport::kFlagSkipped : 0;
  rank.contributors = 1;
  rank.owed = true;
  seats_[r].contributed = rank.next;
  job_->counters->max_round = std::max(job_->counters->max_round, rank.next);
  if (followed()) {
    proto::RoundHead head;
    head.set_round(rank.next - 1);
    head.add_contributors(r);
    head.set_skipped(skip);
    head.set_rate_bits(rate_bits);
    if (HasDigest(applied_rounds_)) head.set_digest(transport::HashBytes(std::as_const(*values_.value()).bytes()));
    Append(RoundMessage(head, skip ? std::span<const float>() : std::as_const(*gradient).values()));
  }
  ReleaseAnswers();
  return absl::OkStatus();
}

absl::Status AsyncPartition::Gather(const FrameHeader& push, const compression::Codec* codec, ConstBytes payload) {
  if (codec != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(BlockPtr block, job_->values->Get(shape_.elements));
    SLUICE_RETURN_IF_ERROR(codec->Decode(payload, block->values()));
    assigned_ = std::move(block);
    root_ = push.rank;
  }
  ranks_[push.rank].gathered = true;
  seats_[push.rank].contributed = push.round + 1;
  ++job_->counters->contributions;
  job_->counters->payload_in += payload.size();
  if (job_->observer != nullptr) {
    job_->observer->OnContribution({job_->job, push.rank, push.incarnation, shape_.tensor, shape_.partition, push.round,
                                    push.codec, push.flags, push.elements, payload});
  }
  CloseBroadcastIfComplete();
  return absl::OkStatus();
}

void AsyncPartition::CloseBroadcastIfComplete() {
  if (waits()) return;
  std::vector<uint32_t> contributors;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].gathered) {
      contributors.push_back(r);
    } else if (ranks_[r].counted) {
      return;
    }
  }
  if (!contributors.empty()) CloseBroadcast(contributors);
}

void AsyncPartition::CloseBroadcast(const std::vector<uint32_t>& contributors) {
  const bool assigned = assigned_ != nullptr;
  if (assigned) values_.Assign(std::move(assigned_));
  assigned_.reset();
  if (owner()) {
    ++job_->counters->rounds_applied;
    job_->counters->rounds_skipped += !assigned;
  }
  if (job_->observer != nullptr) {
    RoundRecord record{};
    record.job = job_->job;
    record.tensor = shape_.tensor;
    record.partition = shape_.partition;
    record.term = term();
    record.round = ranks_[contributors.front()].next;
    record.backup = !owner();
    record.contributors = contributors;
    record.skipped = !assigned;
    record.assigned = assigned;
    record.value = std::as_const(*values_.value()).values();
    job_->observer->OnRound(record);
  }
  ++applied_rounds_;
  for (const uint32_t r : contributors) {
    Rank& rank = ranks_[r];
    rank.gathered = false;
    ++rank.next;
    rank.flags = assigned ? 0 : transport::kFlagSkipped;
    rank.contributors = static_cast<uint32_t>(contributors.size());
    rank.owed = true;
    seats_[r].contributed = rank.next;
    job_->counters->max_round = std::max(job_->counters->max_round, rank.next);
  }
  if (followed()) {
    proto::RoundHead head;
    head.set_round(ranks_[contributors.front()].next - 1);
    head.mutable_contributors()->Assign(contributors.begin(), contributors.end());
    head.set_skipped(!assigned);
    head.set_assigned(assigned);
    head.set_broadcast(true);
    Append(RoundMessage(head, assigned ? std::as_const(*values_.value()).values() : std::span<const float>()));
  }
  ReleaseAnswers();
}

void AsyncPartition::ReleaseAnswers() {
  if (waits() || !owner()) return;
  const uint64_t slowest = Slowest();
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    const bool early = semantics().mode == proto::MODE_SSP && rank.next > slowest + semantics().staleness;
    if (rank.owed && !early) Answer(r);
  }
}

void AsyncPartition::Answer(uint32_t r) {
  Rank& rank = ranks_[r];
  rank.owed = false;
  Result result = CurrentValue(rank.next - 1, NextRateBits(r));
  result.flags = rank.flags;
  result.contributors = rank.contributors;
  SendResult(r, result);
}

void AsyncPartition::MembershipChanged() {
  if (ranks_.size() < job_->workers.size()) {
    ranks_.resize(job_->workers.size());
    seats_.resize(job_->workers.size());
  }
  for (uint32_t r = 0; r < ranks_.size(); ++r) ranks_[r].counted = Counts(r, UINT64_MAX);
  CloseBroadcastIfComplete();
  ReleaseAnswers();
  ServePulls();
}

// --- copies

absl::StatusOr<ReplicaMessage> AsyncPartition::Save() const {
  proto::ReplicaHead message;
  proto::DenseHead* head = message.mutable_dense();
  const SavedValues saved = SaveValues(head);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    proto::RankHead* rank = head->add_ranks();
    rank->set_next(ranks_[r].next);
    rank->set_step(ranks_[r].step);
    rank->set_flags(ranks_[r].flags);
    rank->set_contributors(ranks_[r].contributors);
    rank->set_contributed(std::min(seats_[r].contributed, ranks_[r].next));
  }
  return MakeReplicaMessage(message, {saved.value, saved.replica, saved.state}, nullptr);
}

absl::Status AsyncPartition::Load(const proto::ReplicaHead& message, ConstBytes bulk) {
  if (!message.has_dense()) return Malformed("is no state of a tensor's partition");
  const proto::DenseHead& head = message.dense();
  if (head.ranks_size() > static_cast<int>(ranks_.size())) {
    return Malformed(absl::StrCat("speaks of ", head.ranks_size(), " ranks; the job has ", ranks_.size()));
  }
  SLUICE_RETURN_IF_ERROR(LoadValues(head, &bulk));
  for (size_t r = 0; r < static_cast<size_t>(head.ranks_size()); ++r) {
    const proto::RankHead& rank = head.ranks(static_cast<int>(r));
    ranks_[r].next = rank.next();
    ranks_[r].step = rank.step();
    ranks_[r].flags = static_cast<uint16_t>(rank.flags());
    ranks_[r].contributors = rank.contributors();
    ranks_[r].owed = rank.next() > 0;   // as if: those that have it do not ask again
    seats_[r].contributed = rank.contributed();
  }
  return absl::OkStatus();
}

absl::Status AsyncPartition::Replay(const proto::ReplicaHead& message, ConstBytes bulk) {
  if (!message.has_round()) return Malformed("is no round of a tensor's partition");
  const proto::RoundHead& round = message.round();
  SLUICE_RETURN_IF_ERROR(CheckRanks(round.contributors()));
  if (round.contributors().empty()) return Malformed("has no contributors");
  SLUICE_ASSIGN_OR_RETURN(const std::optional<SentSum> given, GivenBy(round, bulk));
  if (round.broadcast()) {
    if (given.has_value()) {
      SLUICE_ASSIGN_OR_RETURN(assigned_, BlockOf(*given, job_->values));
    }
    CloseBroadcast({round.contributors().begin(), round.contributors().end()});
    return absl::OkStatus();
  }
  Rank& rank = ranks_[round.contributors(0)];
  rank.next = round.round();   // one that came back has skipped some
  const SentSum* sent = given.has_value() ? &*given : nullptr;
  SLUICE_RETURN_IF_ERROR(ApplyGradient(round.contributors(0), nullptr, sent, round.rate_bits()));
  if (round.digest() == 0) return absl::OkStatus();
  return CheckDigest(round.round(), round.digest(), transport::HashBytes(std::as_const(*values_.value()).bytes()));
}

void AsyncPartition::Report(proto::PartitionState* state) const {
  // No round is open for all: the slowest rank's stands for it, and nobody has contributed to what comes next.
  state->set_partition(shape_.partition);
  state->set_open_round(Slowest());
  state->set_contributed(std::string((ranks_.size() + 7) / 8, '\0'));
}

std::string AsyncPartition::WaitingFor() const {
  uint32_t waiting = 0, slow = 0;
  uint64_t slowest = UINT64_MAX;
  bool gathers = false;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    waiting += ranks_[r].owed || ranks_[r].gathered;
    gathers |= ranks_[r].gathered;
    if (ranks_[r].counted && !ranks_[r].gathered && ranks_[r].next < slowest) {
      slowest = ranks_[r].next;
      slow = r;
    }
  }
  if (waiting == 0) return "";
  return absl::StrCat(waiting, " ranks wait at ", Name(), gathers ? " in a broadcast for " : " for the slowest, ",
                      WorkerName(slow), ", whose next round is ", ranks_[slow].next);
}

}  // namespace sluice::server
