#include "server/partition.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/async_partition.h"
#include "server/bsp_partition.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::SlotId;

absl::StatusOr<std::unique_ptr<Partition>> Partition::Create(PartitionShape shape,
                                                             std::unique_ptr<compression::Codec> reply_codec,
                                                             JobContext* job) {
  const Semantics& semantics = *job->semantics;
  const bool replica = semantics.reply == proto::REPLY_CHANGE && reply_codec != nullptr;
  SLUICE_ASSIGN_OR_RETURN(
      ValueState values,
      ValueState::Create(shape.elements, &semantics.optimizer(shape.kind), replica, job->values));
  if (semantics.async()) return std::make_unique<AsyncPartition>(std::move(shape), std::move(values), job);
  return std::make_unique<BspPartition>(std::move(shape), std::move(reply_codec), std::move(values), job);
}

Partition::Partition(PartitionShape shape, std::unique_ptr<compression::Codec> reply_codec, ValueState values,
                     JobContext* job)
    : shape_(std::move(shape)),
      reply_codec_(std::move(reply_codec)),
      job_(job),
      values_(std::move(values)),
      seats_(job->workers.size()) {}

bool Partition::Counts(uint32_t rank, uint64_t round) const {
  const WorkerView& worker = job_->workers[rank];
  if (worker.finished) return false;
  return shape_.partition >= worker.out_from_round.size() || round < worker.out_from_round[shape_.partition];
}

bool Partition::TakeSeat(LinkId link, const FrameHeader& push) {
  Seat& seat = seats_[push.rank];
  if (seat.round == push.round && seat.incarnation == push.incarnation && push.attempt < seat.attempt) return false;
  seat.link = link;
  seat.slot = push.reply_slot;
  seat.round = push.round;
  seat.incarnation = push.incarnation;
  seat.attempt = push.attempt;
  seat.no_reply = push.has(transport::kFlagNoReply);
  return true;
}

bool Partition::UnderWay(const Seat& seat, LinkId link, SlotId slot) const {
  return seat.link == link && seat.slot == slot && job_->replier->UnderWay(seat.reply_key);
}

void Partition::SendResult(uint32_t rank, const Result& result) {
  Seat& seat = seats_[rank];
  if (seat.link == 0) return;   // it asks again when it is back, and gets the answer then
  job_->replier->Cancel(seat.reply_key);
  seat.reply_key = 0;
  FrameHeader header;
  header.flags = result.flags;
  header.job = job_->job;
  header.rank = rank;
  header.incarnation = seat.incarnation;
  header.tensor = shape_.tensor;
  header.partition = shape_.partition;
  header.term = term_;
  header.round = result.round;
  header.attempt = seat.attempt;
  header.elements = static_cast<uint32_t>(shape_.elements);
  header.rate_bits = result.rate_bits;
  header.aux = result.contributors;
  header.plan_version = job_->plan_version;
  if (seat.no_reply || result.payload.empty()) {
    header.type = FrameType::kApplied;
    header.flags &= static_cast<uint16_t>(~transport::kFlagChange);
    job_->replier->Send(seat.link, header);
    return;
  }
  header.type = FrameType::kReply;
  header.attempt = ++seat.answers;   // a repeat may carry a newer value (SSP, ASP)
  header.codec = result.codec;
  header.slot = seat.slot;
  seat.reply_key = job_->replier->SendPayload(seat.link, header, result.payload, result.owner, shape_.priority);
}

Partition::Result Partition::CurrentValue(uint64_t round, uint32_t rate_bits) const {
  Result result;
  result.round = round;
  result.rate_bits = rate_bits;
  result.codec = static_cast<uint16_t>(compression::CodecId::kNone);
  result.owner = values_.pulled();
  result.payload = std::as_const(*values_.pulled()).bytes();
  return result;
}

void Partition::Pull(LinkId link, const FrameHeader& pull) {
  if (!pull.has(transport::kFlagAdmit) && NextRound(pull.rank) < pull.round) {
    pulls_[pull.rank] = {link, pull};
    return;
  }
  SendValue(link, pull);
}

void Partition::SendValue(LinkId link, const FrameHeader& pull) {
  Seat& seat = seats_[pull.rank];
  if (job_->replier->InFlight(seat.value_key)) {
    if (seat.value_slot == pull.reply_slot) return;   // on its way there
    job_->replier->Cancel(seat.value_key);
  }
  FrameHeader header = AnswerTo(pull, FrameType::kValue);
  header.term = term_;
  header.round = NextRound(pull.rank);
  if (ContributedToNext(pull.rank)) header.flags |= transport::kFlagContributed;
  header.codec = static_cast<uint16_t>(compression::CodecId::kNone);
  header.elements = static_cast<uint32_t>(shape_.elements);
  header.rate_bits = NextRateBits(pull.rank);
  header.plan_version = job_->plan_version;
  header.slot = pull.reply_slot;
  header.attempt = ++seat.answers;
  seat.value_slot = pull.reply_slot;
  seat.value_key = job_->replier->SendPayload(link, header, std::as_const(*values_.pulled()).bytes(),
                                              values_.pulled(), shape_.priority);
}

void Partition::ServePulls() {
  for (auto it = pulls_.begin(); it != pulls_.end();) {
    if (NextRound(it->first) < it->second.request.round) {
      ++it;
      continue;
    }
    SendValue(it->second.link, it->second.request);
    it = pulls_.erase(it);
  }
}

void Partition::LinkDown(LinkId link) {
  for (Seat& seat : seats_) {
    if (seat.link == link) seat.link = 0;
  }
  std::erase_if(pulls_, [&](const auto& entry) { return entry.second.link == link; });
}

std::string Partition::Name() const {
  return absl::StrCat("tensor '", shape_.name, "' partition ", shape_.position, " (job-wide ", shape_.partition, ")");
}

std::string Partition::WorkerName(uint32_t rank) const {
  const WorkerView& worker = job_->workers[rank];
  return absl::StrCat("rank ", rank, " (", worker.address.empty() ? "not seen yet" : worker.address,
                      worker.finished ? ", finished" : worker.alive || worker.address.empty() ? "" : ", lost", ")");
}

absl::Status Partition::RankIsOut(uint32_t rank, uint64_t round) const {
  const WorkerView& worker = job_->workers[rank];
  if (worker.finished) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " has finished the job, and pushes round ", round, " of ", Name()));
  }
  return absl::AbortedError(absl::StrCat("rank ", rank, " was lost and the job goes on without it from round ",
                                         worker.out_from_round[shape_.partition], " of ", Name(),
                                         "; this push is of round ", round, ": start the worker again to rejoin"));
}

}  // namespace sluice::server
