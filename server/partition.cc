#include "server/partition.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/replication.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::LinkId;
using transport::SlotId;

Partition::Partition(PartitionShape shape, JobContext* job)
    : shape_(std::move(shape)), job_(job), seats_(job->workers.size()) {}

bool Partition::waits() const { return job_->replication != nullptr && !job_->replication->Settled(shape_.partition); }

bool Partition::followed() const {
  return owner_ && job_->replication != nullptr && job_->replication->Follows(shape_.partition);
}

void Partition::Append(const absl::StatusOr<ReplicaMessage>& message) {
  if (message.ok()) {
    job_->replication->Append(this, *message);
  } else {
    // The round is closed here and can be nowhere else.
    job_->fail(absl::Status(message.status().code(),
                            absl::StrCat("a closed round of ", Name(), " cannot be sent to its copies: ",
                                         message.status().message())));
  }
}

absl::Status Partition::CheckDigest(uint64_t round, uint64_t owners, uint64_t own) const {
  if (owners == 0 || owners == own) return absl::OkStatus();
  ++job_->counters->copies_that_differed;
  return absl::DataLossError(absl::StrCat("the copy of ", Name(), " differs from its owner after round ", round,
                                          " and is made anew; if that happens again, look at this machine's memory"));
}

absl::Status Partition::CheckRanks(const google::protobuf::RepeatedField<uint32_t>& ranks) const {
  for (const uint32_t rank : ranks) {
    if (rank >= seats_.size()) {
      return absl::DataLossError(absl::StrCat("a message for the copy of ", Name(), " names rank ", rank, " of ", seats_.size()));
    }
  }
  return absl::OkStatus();
}

bool Partition::Counts(uint32_t rank, uint64_t round) const {
  const WorkerView& worker = job_->workers[rank];
  if (worker.finished) return false;
  // Declared out: it counts where its contribution is, and sends no more. (A new owner may lack one that the former had.)
  if (shape_.partition < worker.out_from_round.size()) {
    if (worker.joining == 0) return false;
    return Returned(rank) || (seats_[rank].joined == worker.joining && seats_[rank].joins_at <= round);
  }
  return true;
}

bool Partition::Joins(uint32_t rank) const {
  const WorkerView& worker = job_->workers[rank];
  return worker.joining != 0 && worker.alive && !worker.finished && shape_.partition < worker.out_from_round.size();
}

void Partition::Named(uint32_t rank, uint64_t round, bool by_name) {
  if (!Joins(rank)) return;
  Seat& seat = seats_[rank];
  const uint32_t life = job_->workers[rank].joining;
  const bool first = seat.joined != life;
  if (first ? Counts(rank, round) : !by_name || Returned(rank)) return;
  if (first) seat.joins_at = 0;
  seat.joined = life;
  Join(rank, round, first);
}

bool Partition::Returned(uint32_t rank) const {
  const WorkerView& worker = job_->workers[rank];
  // Rounds of SSP and ASP are the rank's own: there the number says nothing.
  return !semantics().async() && seats_[rank].contributed > worker.out_from_round[shape_.partition];
}

void Partition::LetIn(uint64_t free) {
  if (!job_->only_joiners) return;
  for (uint32_t rank = 0; rank < seats_.size(); ++rank) {
    if (!Joins(rank) || Returned(rank) || Counts(rank, free)) continue;
    seats_[rank].joined = job_->workers[rank].joining;
    seats_[rank].joins_at = free;
  }
}

bool Partition::IsIn(uint32_t rank, uint64_t open) const {
  return Joins(rank) && (Counts(rank, open) || job_->only_joiners) && !seats_[rank].HasContributed(open);
}

uint32_t Partition::CountMissing(uint64_t round) const {
  uint32_t missing = 0;
  for (uint32_t rank = 0; rank < seats_.size(); ++rank) missing += !seats_[rank].HasContributed(round) && Counts(rank, round);
  return missing;
}

bool Partition::BecomesOverdue() {
  if (overdue_ || begun_at_ == 0 || job_->clock->Now() - begun_at_ < semantics().round_deadline) return false;
  return overdue_ = true;
}

uint32_t Partition::LowestMissing(uint64_t round) const {
  uint32_t rank = 0;
  while (rank < seats_.size() && (seats_[rank].HasContributed(round) || !Counts(rank, round))) ++rank;
  return rank;
}

void Partition::ReportRound(uint64_t round, proto::PartitionState* state) const {
  state->set_partition(shape_.partition);
  state->set_open_round(round);
  std::string bitmap((seats_.size() + 7) / 8, '\0');
  for (size_t rank = 0; rank < seats_.size(); ++rank) {
    if (seats_[rank].HasContributed(round)) bitmap[rank / 8] = static_cast<char>(bitmap[rank / 8] | (1 << rank % 8));
  }
  state->set_contributed(std::move(bitmap));
}

const Partition::Seat& Partition::SeatOf(uint32_t rank) const {
  static const Seat kNobody;
  if ((rank & kForwardRank) == 0) return seats_[rank];
  const auto it = forwarders_.find(rank);
  return it == forwarders_.end() ? kNobody : it->second;
}

bool Partition::TakeSeat(LinkId link, const FrameHeader& push) {
  Seat& seat = SeatOf(push.rank);
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

FrameHeader Partition::AnswerHeader(uint32_t rank, uint64_t round, uint16_t flags) const {
  const Seat& seat = SeatOf(rank);
  FrameHeader header;
  header.flags = flags;
  header.job = job_->job;
  header.rank = rank;
  header.incarnation = seat.incarnation;
  header.tensor = shape_.tensor;
  header.partition = shape_.partition;
  header.term = term_;
  header.round = round;
  header.attempt = seat.attempt;
  header.elements = static_cast<uint32_t>(shape_.elements);
  header.plan_version = job_->plan_version;
  return header;
}

void Partition::LinkDown(LinkId link) {
  for (Seat& seat : seats_) {
    if (seat.link == link) seat.link = 0;
  }
  for (auto& [server, seat] : forwarders_) {
    if (seat.link == link) seat.link = 0;
  }
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
