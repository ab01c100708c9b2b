#include "server/table_partition.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::Payload;
using transport::PushState;
using transport::RetryReason;

namespace {

constexpr size_t kMaxParked = 256;   // of one rank at one segment; a worker sends fewer
constexpr size_t kMaxSent = 64;
constexpr size_t kMostKeptScratch = 1 << 20;   // values; a push of more rows is rare, and every segment has its own scratch

// The table's rate follows the schedule of the job's optimizer, as a factor.
absl::StatusOr<Schedule> TableSchedule(const proto::TableSpec& spec, const proto::OptimizerConfig& job) {
  proto::OptimizerConfig config = job;
  const double rate = spec.optimizer().rate() != 0 ? spec.optimizer().rate() : 0.01;
  const double base = job.rate() != 0 ? job.rate() : 0.01;
  config.set_kind("sgd");
  config.set_rate(rate);
  config.set_final_rate(job.final_rate() / base * rate);
  return Schedule::Create(config);
}

// Few sizes, so that blocks are used again.
size_t BlockElements(size_t n) {
  const size_t step = std::max<size_t>(1024, std::bit_floor(n) / 4);
  return (n + step - 1) / step * step;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Partition>> TablePartition::Create(PartitionShape shape, const proto::TableSpec& spec,
                                                                  uint32_t segments, const SegmentLimits& limits,
                                                                  JobContext* job) {
  SLUICE_ASSIGN_OR_RETURN(Schedule schedule, TableSchedule(spec, job->semantics->config.optimizer()));
  auto segment = TableSegment::Create(spec, limits);
  if (!segment.ok()) {
    return absl::Status(segment.status().code(),
                        absl::StrCat("table '", shape.name, "': ", segment.status().message()));
  }
  return std::unique_ptr<Partition>(
      new TablePartition(std::move(shape), spec, segments, schedule, *std::move(segment), job));
}

TablePartition::TablePartition(PartitionShape shape, const proto::TableSpec& spec, uint32_t segments, Schedule schedule,
                               std::unique_ptr<TableSegment> segment, JobContext* job)
    : Partition(std::move(shape), job),
      spec_(spec),
      segments_(segments),
      schedule_(schedule),
      async_(job->semantics->async()),
      segment_(std::move(segment)),
      sum_(spec.dim()),
      clocks_(job->workers.size()) {}

// --- pushes

absl::Status TablePartition::CheckPush(const FrameHeader& push, uint64_t max_message_bytes) const {
  const auto refuse = [&](std::string what) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", push.rank, " pushes to ", Name(), " ", what));
  };
  if (push.tensor != shape_.tensor) return refuse(absl::StrCat("as tensor ", push.tensor, ", not ", shape_.tensor));
  if (push.has(transport::kFlagAssign) || push.has(transport::kFlagNonfinite)) {
    return refuse("as a tensor is broadcast or skipped; it is a table");
  }
  if (push.has(transport::kFlagEmpty)) {
    return push.total_bytes == 0 ? absl::OkStatus()
                                 : refuse(absl::StrCat("an empty contribution that carries ", push.total_bytes, " bytes"));
  }
  const compression::Codec* codec = compression::DecoderFor(push.codec);
  if (codec == nullptr) return refuse(absl::StrCat("in codec ", push.codec, ", which this release does not know"));
  const uint64_t rows = push.elements;
  if (rows == 0 || rows > max_message_bytes) return refuse(absl::StrCat(rows, " rows"));
  const uint64_t most = std::min<uint64_t>(
      compression::MaxPackedIdBytes(rows) + codec->MaxEncodedBytes(rows * spec_.dim()), max_message_bytes);
  if (push.total_bytes == 0 || push.total_bytes > most) {
    return refuse(absl::StrCat(push.total_bytes, " bytes of ", rows, " rows in ", codec->name(), "; 1 to ", most,
                               " are possible: more segments or a larger data.pool_bytes of the servers allow more"));
  }
  return absl::OkStatus();
}

absl::Status TablePartition::CheckIds(std::span<const uint64_t> ids) const {
  uint32_t wrong = 0;   // nearly never: so no branch an id
  for (const uint64_t id : ids) {
    wrong |= compression::SegmentOf(id, segments_) ^ static_cast<uint32_t>(shape_.position);
    wrong |= static_cast<uint32_t>((spec_.vocabulary() != 0) & (id >= spec_.vocabulary()));
  }
  if (wrong == 0) return absl::OkStatus();
  for (const uint64_t id : ids) {
    if (const uint32_t segment = compression::SegmentOf(id, segments_); segment != shape_.position) {
      return absl::InvalidArgumentError(absl::StrCat("row ", id, " is of segment ", segment, " and was sent to ", Name(),
                                                     ": use one release everywhere"));
    }
    if (spec_.vocabulary() != 0 && id >= spec_.vocabulary()) {
      return absl::InvalidArgumentError(absl::StrCat("row ", id, " of ", Name(), " is not below its vocabulary of ",
                                                     spec_.vocabulary()));
    }
  }
  return absl::OkStatus();
}

Partition::Admission TablePartition::Admit(LinkId link, const FrameHeader& push) {
  Seat& seat = seats_[push.rank];
  const uint64_t open = NextRound(push.rank);
  if (push.round < open) {                                                                           // 2e
    AnswerAgain(link, push);
    return Admission::kAnswered;
  }
  if (push.round > open) {                                                                           // 2f
    job_->replier->SendRetry(link, push, RetryReason::kBusy, term());
    return Admission::kAnswered;
  }
  if (seat.HasContributed(open) || (async_ && clocks_[push.rank].held)) {                           // 2g
    ++job_->counters->duplicates;
    if (TakeSeat(link, push)) job_->replier->SendState(link, push, PushState::kReceived);
    return Admission::kAnswered;
  }
  if (async_ ? !clocks_[push.rank].counted : !Counts(push.rank, open) && !Joins(push.rank)) {
    job_->replier->SendError(link, push, RankIsOut(push.rank, open));
    return Admission::kAnswered;
  }
  if (!async_ && !Counts(push.rank, open)) {   // begun before it joined: when the round is closed, it is REJECTED
    job_->replier->SendRetry(link, push, RetryReason::kBusy, term());
    return Admission::kAnswered;
  }
  return Admission::kAccept;
}

void TablePartition::AnswerAgain(LinkId link, const FrameHeader& push) {
  Seat& seat = seats_[push.rank];
  ++job_->counters->duplicates;
  if (!TakeSeat(link, push)) return;
  if (waits()) {
    job_->replier->SendState(link, push, PushState::kReceived);
    return;
  }
  if (async_ && clocks_[push.rank].owed && push.round + 1 == clocks_[push.rank].next) {
    job_->replier->SendState(link, push, PushState::kReceived);
    return;
  }
  // A later contribution is proof that it had its answer for this one.
  const uint16_t flags = seat.contributed <= push.round ? transport::kFlagRejected : 0;
  job_->counters->rejected += flags != 0;
  SendApplied(push.rank, push.round, flags, async_ ? 1 : last_contributors_);
}

void TablePartition::SendApplied(uint32_t rank, uint64_t round, uint16_t flags, uint32_t contributors) {
  const Seat& seat = seats_[rank];
  if (seat.link == 0) return;   // it asks again when it is back, and gets the answer then
  FrameHeader header = AnswerHeader(rank, round, flags);
  header.type = FrameType::kApplied;
  header.rate_bits = NextRateBits(rank);
  header.aux = contributors;
  job_->replier->Send(seat.link, header);
}

bool TablePartition::Urgent(const FrameHeader& push) const {
  if (push.round != NextRound(push.rank)) return false;
  // While a round goes to copies a contribution is kept: it must leave the reserve to the copies' messages.
  if (async_) return !waits() && push.round == Slowest();
  if (push.rank == LowestMissing(open_)) return true;
  return semantics().leaves_out() && !waits() && CountMissing(open_) <= uint64_t{MayMiss()} + 1;
}

bool TablePartition::Complete() const {
  if (contributed_ == 0) return false;
  if (!semantics().leaves_out()) return LowestMissing(open_) == seats_.size();
  return CountMissing(open_) <= MayMiss();
}

void TablePartition::Join(uint32_t rank, uint64_t round, bool first) {
  if (!async_) {   // as in BspPartition
    const uint64_t least = first ? open_ + (contributed_ > 0 ? 1 : 0) : seats_[rank].joins_at;
    seats_[rank].joins_at = std::max(round, least);
    MembershipChanged();
    return;
  }
  Clock& clock = clocks_[rank];
  if (first) {
    std::erase_if(queued_, [&](const auto& queued) { return queued.first == rank; });   // of its former life
    clock.held = clock.owed = false;
  }
  clock.next = std::max({clock.next, round, Slowest()});   // so that it holds nobody up
  clock.counted = true;
}

absl::StatusOr<TablePartition::Held> TablePartition::Parse(const FrameHeader& push, Payload payload) const {
  Held held;
  if (push.has(transport::kFlagEmpty)) return held;
  const auto bad = [&](const absl::Status& why) {
    return absl::Status(why.code(), absl::StrCat("the payload of rank ", push.rank, " for round ", push.round, " of ",
                                                 Name(), ": ", why.message()));
  };
  auto rows = compression::ParseRows(payload.bytes(), push.elements);
  if (!rows.ok()) return bad(rows.status());
  if (rows->ids.size() != push.elements) {
    return bad(absl::DataLossError(absl::StrCat(rows->ids.size(), " rows, the header says ", push.elements)));
  }
  if (absl::Status status = CheckIds(rows->ids); !status.ok()) return bad(status);
  held.codec = compression::DecoderFor(push.codec);
  if (absl::Status status = held.codec->Validate(rows->values, rows->ids.size() * spec_.dim()); !status.ok()) {
    return bad(absl::DataLossError(status.message()));
  }
  held.ids = std::move(rows->ids);
  held.values = rows->values;
  held.payload = std::move(payload);
  return held;
}

absl::Status TablePartition::Contribute(LinkId link, const FrameHeader& push, Payload payload) {
  if (Admit(link, push) == Admission::kAnswered) return absl::OkStatus();   // things went on in the meantime
  const size_t bytes = payload.size();
  const ConstBytes all = payload.bytes();
  auto held = Parse(push, std::move(payload));
  if (!held.ok()) return held.status();
  TakeSeat(link, push);
  ++job_->counters->contributions;
  job_->counters->payload_in += bytes;
  if (job_->observer != nullptr) {
    job_->observer->OnContribution({job_->job, push.rank, push.incarnation, shape_.tensor, shape_.partition, push.round,
                                    push.codec, push.flags, push.elements, all});
  }
  if (async_) {
    if (waits()) {
      clocks_[push.rank].held = true;
      queued_.emplace_back(push.rank, *std::move(held));
    } else {
      ApplyNow(push.rank, *held);
    }
    return absl::OkStatus();
  }
  seats_[push.rank].contributed = push.round + 1;
  if (contributed_++ == 0) RoundBegins();
  const uint32_t rank = push.rank;
  held_.emplace(rank, *std::move(held));
  Consume(/*all=*/semantics().order == proto::ORDER_FAST);
  CloseIfComplete();
  return absl::OkStatus();
}

absl::Status TablePartition::Add(Held held) {
  if (held.codec == nullptr) return absl::OkStatus();
  decoded_.resize(held.ids.size() * spec_.dim());
  SLUICE_RETURN_IF_ERROR(held.codec->Decode(held.values, decoded_));
  sum_.Add(held.ids, decoded_);
  if (decoded_.size() > kMostKeptScratch) decoded_ = {};
  return absl::OkStatus();
}

void TablePartition::Consume(bool all) {
  const uint32_t floor = LowestMissing(open_);
  while (!held_.empty() && (all || held_.begin()->first < floor)) {
    auto first = held_.extract(held_.begin());
    contributors_.push_back(first.key());
    if (absl::Status status = Add(std::move(first.mapped())); !status.ok()) {
      // It was validated: a peer's memory changed under our eyes.
      job_->fail(absl::Status(status.code(), absl::StrCat("round ", open_, " of ", Name(), ": ", status.message())));
      return;
    }
  }
}

void TablePartition::OnTick() {
  if (!async_ && BecomesOverdue()) CloseIfComplete();
}

void TablePartition::CloseIfComplete() {
  if (waits() || !Complete()) return;
  Consume(/*all=*/true);   // those that had to wait for lower ranks which have not come
  if (semantics().reduction == proto::REDUCTION_MEAN && contributors_.size() > 1) {
    sum_.Divide(static_cast<float>(contributors_.size()));
  }
  unanswered_ = std::exchange(contributors_, {});
  contributed_ = 0;
  RoundEnds();
  last_contributors_ = static_cast<uint32_t>(unanswered_.size());
  ++open_;
  ApplyRound(open_ - 1, unanswered_, sum_.ids(), sum_.sums(), sum_.sightings(), schedule_.Rate(open_ - 1));
  sum_.Reset();
  if (!waits()) SendAnswers();
}

void TablePartition::ApplyRound(uint64_t round, const std::vector<uint32_t>& contributors,
                                std::span<const uint64_t> ids, std::span<const float> values,
                                std::span<const uint32_t> sightings, float rate) {
  segment_->Apply(ids, values, sightings, rate, applied_rounds_);
  segment_->EndRound(applied_rounds_);
  Record(round, contributors, ids, rate);
  ++applied_rounds_;
  if (owner()) ++job_->counters->rounds_applied;
  job_->counters->max_round = std::max(job_->counters->max_round, round + 1);
  if (!followed()) return;
  proto::ReplicaHead head;
  proto::RowsHead* rows = head.mutable_rows();
  rows->set_round(round);
  rows->mutable_contributors()->Assign(contributors.begin(), contributors.end());
  rows->set_rows(ids.size());
  rows->set_sightings(!sightings.empty());
  rows->set_rate_bits(std::bit_cast<uint32_t>(rate));
  if (HasDigest(applied_rounds_)) rows->set_digest(segment_->Digest(ids));
  Append(MakeReplicaMessage(head, {std::as_bytes(ids), std::as_bytes(values), std::as_bytes(sightings)}, job_->values));
}

void TablePartition::SendAnswers() {
  for (const uint32_t rank : std::exchange(unanswered_, {})) SendApplied(rank, open_ - 1, 0, last_contributors_);
  ServeParked();
}

void TablePartition::ApplyNow(uint32_t rank, const Held& held) {
  const Clock& clock = clocks_[rank];
  std::span<const uint64_t> ids;
  if (held.codec != nullptr) {
    decoded_.resize(held.ids.size() * spec_.dim());
    // Validated before, and read once: what a peer changes under our eyes is its own gradient.
    if (held.codec->Decode(held.values, decoded_).ok()) ids = held.ids;
  }
  const uint64_t round = clock.next;
  AdvanceClock(rank);
  ApplyRound(round, {rank}, ids, std::span(decoded_).first(ids.size() * spec_.dim()), {}, schedule_.Rate(round));
  if (decoded_.size() > kMostKeptScratch) decoded_ = {};
  ReleaseAnswers();
  ServeParked();
}

void TablePartition::AdvanceClock(uint32_t rank) {
  ++clocks_[rank].next;
  clocks_[rank].owed = true;
  seats_[rank].contributed = clocks_[rank].next;
}

void TablePartition::OnSettled() {
  if (waits()) return;
  if (!async_) {
    SendAnswers();
    CloseIfComplete();
    return;
  }
  ReleaseAnswers();
  ServeParked();
  while (!queued_.empty() && !waits()) {
    const auto [rank, held] = std::move(queued_.front());
    queued_.pop_front();
    clocks_[rank].held = false;
    if (clocks_[rank].counted) ApplyNow(rank, held);   // else it was declared out meanwhile
  }
}

// --- copies

absl::Status TablePartition::Malformed(const std::string& what) const {
  return absl::DataLossError(absl::StrCat("a message for the copy of ", Name(), " ", what));
}

absl::StatusOr<ReplicaMessage> TablePartition::Save() const {
  proto::ReplicaHead message;
  proto::SegmentHead* head = message.mutable_segment();
  head->set_open_round(open_);
  head->set_applied_rounds(applied_rounds_);
  head->set_last_contributors(last_contributors_);
  for (size_t r = 0; r < seats_.size(); ++r) {
    const uint64_t next = async_ ? clocks_[r].next : open_;
    proto::RankHead* rank = head->add_ranks();
    rank->set_next(next);
    rank->set_contributed(std::min(seats_[r].contributed, next));
  }
  return MakeReplicaMessage(message, segment_->SavedBytes(), [this](MutableBytes out) { segment_->Save(out); }, nullptr);
}

absl::Status TablePartition::Load(const proto::ReplicaHead& message, ConstBytes bulk) {
  if (!message.has_segment()) return Malformed("is no state of a segment");
  const proto::SegmentHead& head = message.segment();
  if (head.ranks_size() > static_cast<int>(seats_.size())) {
    return Malformed(absl::StrCat("speaks of ", head.ranks_size(), " ranks; the job has ", seats_.size()));
  }
  if (absl::Status status = segment_->Load(bulk); !status.ok()) return Malformed(std::string(status.message()));
  open_ = async_ ? 0 : head.open_round();
  applied_rounds_ = head.applied_rounds();
  last_contributors_ = head.last_contributors();
  for (size_t r = 0; r < static_cast<size_t>(head.ranks_size()); ++r) {
    const proto::RankHead& rank = head.ranks(static_cast<int>(r));
    seats_[r].contributed = rank.contributed();
    if (!async_) continue;
    clocks_[r].next = rank.next();
    clocks_[r].owed = rank.next() > 0;   // as if: those that have the answer do not ask again
  }
  return absl::OkStatus();
}

absl::Status TablePartition::Replay(const proto::ReplicaHead& message, ConstBytes bulk) {
  if (!message.has_rows()) return Malformed("is no round of a segment");
  const proto::RowsHead& round = message.rows();
  SLUICE_RETURN_IF_ERROR(CheckRanks(round.contributors()));
  const size_t row_bytes = sizeof(uint64_t) + spec_.dim() * sizeof(float) + (round.sightings() ? sizeof(uint32_t) : 0);
  if (round.rows() > bulk.size() / row_bytes || bulk.size() != round.rows() * row_bytes || round.contributors().empty() ||
      (!async_ && round.round() != open_)) {
    return Malformed(absl::StrCat("has round ", round.round(), ", ", round.rows(), " rows and ", bulk.size(),
                                  " bytes; the copy is at ", open_));
  }
  std::vector<uint64_t> ids(round.rows());
  decoded_.resize(round.rows() * spec_.dim());
  std::vector<uint32_t> sightings(round.sightings() ? round.rows() : 0);
  const auto take = [&](void* to, size_t bytes) {
    if (bytes > 0) std::memcpy(to, bulk.data(), bytes);
    bulk = bulk.subspan(bytes);
  };
  take(ids.data(), ids.size() * sizeof(uint64_t));
  take(decoded_.data(), decoded_.size() * sizeof(float));
  take(sightings.data(), sightings.size() * sizeof(uint32_t));
  SLUICE_RETURN_IF_ERROR(CheckIds(ids));
  const std::vector<uint32_t> contributors(round.contributors().begin(), round.contributors().end());
  if (async_) {
    clocks_[contributors[0]].next = round.round();   // one that came back has skipped some
    AdvanceClock(contributors[0]);
  } else {
    for (const uint32_t rank : contributors) seats_[rank].contributed = open_ + 1;
    last_contributors_ = static_cast<uint32_t>(contributors.size());
    ++open_;
  }
  ApplyRound(round.round(), contributors, ids, decoded_, sightings, std::bit_cast<float>(round.rate_bits()));
  if (round.digest() == 0) return absl::OkStatus();
  return CheckDigest(round.round(), round.digest(), segment_->Digest(ids));
}

void TablePartition::Record(uint64_t round, const std::vector<uint32_t>& contributors, std::span<const uint64_t> ids,
                            float rate) {
  if (job_->observer == nullptr) return;
  RoundRecord record{};
  record.job = job_->job;
  record.tensor = shape_.tensor;
  record.partition = shape_.partition;
  record.term = term();
  record.round = round;
  record.backup = !owner();
  record.contributors = contributors;
  record.rate_bits = std::bit_cast<uint32_t>(rate);
  record.segment = segment_.get();
  record.rows = ids;
  job_->observer->OnRound(record);
}

uint64_t TablePartition::Slowest() const {
  uint64_t slowest = std::numeric_limits<uint64_t>::max();
  for (const Clock& clock : clocks_) {
    if (clock.counted) slowest = std::min(slowest, clock.next);
  }
  return slowest == std::numeric_limits<uint64_t>::max() ? 0 : slowest;
}

void TablePartition::ReleaseAnswers() {
  if (waits() || !owner()) return;
  const uint64_t slowest = Slowest();
  for (uint32_t r = 0; r < clocks_.size(); ++r) {
    Clock& clock = clocks_[r];
    const bool early = semantics().mode == proto::MODE_SSP && clock.next > slowest + semantics().staleness;
    if (!clock.owed || early) continue;
    clock.owed = false;
    SendApplied(r, clock.next - 1, 0, 1);
  }
}

void TablePartition::MembershipChanged() {
  if (seats_.size() < job_->workers.size()) seats_.resize(job_->workers.size());
  if (clocks_.size() < job_->workers.size()) clocks_.resize(job_->workers.size());
  if (!async_) {
    LetIn(open_ + (contributed_ > 0));
    Consume(/*all=*/semantics().order == proto::ORDER_FAST);
    CloseIfComplete();
    ServeParked();
    return;
  }
  for (uint32_t r = 0; r < clocks_.size(); ++r) clocks_[r].counted = Counts(r, UINT64_MAX);
  ReleaseAnswers();
  ServeParked();
}

// --- pulls

absl::StatusOr<std::span<const uint64_t>> TablePartition::ParseIds(const FrameHeader& pull, ConstBytes payload) {
  std::span<const uint64_t> ids;
  if (payload.empty()) return ids;
  const auto bad = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", pull.rank, " pulls rows of ", Name(), ": ", what...));
  };
  const size_t most = job_->max_rows_bytes / (spec_.dim() * sizeof(float));
  const auto too_many = [&](size_t rows) {
    return bad(rows, " rows of ", spec_.dim(), " values in one request; at most ", most);
  };
  if (pull.codec == transport::kPackedIds) {
    auto rows = compression::ParseRows(payload, most);
    if (!rows.ok()) return bad(rows.status().message());
    if (!rows->values.empty()) return bad("a pull that carries values");
    ids = ids_ = std::move(rows->ids);
  } else if (pull.codec == transport::kPlainIds && payload.size() % sizeof(uint64_t) == 0) {
    const size_t count = payload.size() / sizeof(uint64_t);
    if (count > most) return too_many(count);
    if (ids_.size() < count) ids_.resize(count);   // never made smaller, as that would fill it again
    std::memcpy(ids_.data(), payload.data(), payload.size());   // read once, whatever the peer writes meanwhile
    ids = std::span(ids_).first(count);
  } else {
    return bad(payload.size(), " bytes of ids in form ", pull.codec);
  }
  if (ids.size() > most) return too_many(ids.size());
  SLUICE_RETURN_IF_ERROR(CheckIds(ids));
  return ids;
}

absl::Status TablePartition::Pull(LinkId link, const FrameHeader& pull, ConstBytes payload) {
  SLUICE_ASSIGN_OR_RETURN(const std::span<const uint64_t> ids, ParseIds(pull, payload));
  if (Due(pull, !ids.empty()) && !waits()) return SendRows(link, pull, ids);
  const std::pair<uint32_t, uint64_t> key{pull.rank, pull.aux64};
  if (!parked_.contains(key)) {
    const auto first = parked_.lower_bound({pull.rank, 0}), last = parked_.upper_bound({pull.rank, UINT64_MAX});
    if (static_cast<size_t>(std::distance(first, last)) >= kMaxParked) {
      job_->replier->SendRetry(link, pull, RetryReason::kBusy, term());
      return absl::OkStatus();
    }
  }
  parked_[key] = {link, pull, {ids.begin(), ids.end()}};
  return absl::OkStatus();
}

bool TablePartition::Due(const FrameHeader& pull, bool rows) const {
  if (pull.has(transport::kFlagAdmit) || NextRound(pull.rank) >= pull.round) return true;
  return !async_ && !rows && IsIn(pull.rank, open_);   // a joiner that names its round asks for no rows
}

absl::Status TablePartition::SendRows(LinkId link, const FrameHeader& pull, std::span<const uint64_t> ids) {
  std::deque<Sent>& sent = sent_[pull.rank];
  for (const Sent& one : sent) {
    if (one.request != pull.aux64) continue;
    if (one.slot == pull.reply_slot && job_->replier->UnderWay(one.key)) return absl::OkStatus();   // on its way there
    job_->replier->Cancel(one.key);
  }
  FrameHeader header;
  header.type = FrameType::kValue;
  header.job = pull.job;
  header.rank = pull.rank;
  header.incarnation = pull.incarnation;
  header.tensor = pull.tensor;
  header.partition = pull.partition;
  header.term = term();
  header.round = NextRound(pull.rank);
  header.attempt = ++answers_;
  if (ContributedToNext(pull.rank)) header.flags |= transport::kFlagContributed;
  header.codec = static_cast<uint16_t>(compression::CodecId::kNone);
  header.elements = static_cast<uint32_t>(ids.size() * spec_.dim());
  header.rate_bits = NextRateBits(pull.rank);
  header.plan_version = job_->plan_version;
  header.slot = pull.reply_slot;
  header.aux64 = pull.aux64;
  if (ids.empty()) {
    job_->replier->SendPayload(link, header, {}, nullptr, shape_.priority);
    return absl::OkStatus();
  }
  auto block = job_->values->Get(BlockElements(header.elements));
  if (!block.ok()) {
    job_->replier->SendError(link, pull, block.status());
    return absl::OkStatus();
  }
  const std::span<float> values = (*block)->values().first(header.elements);
  segment_->Read(ids, values);
  const uint64_t key = job_->replier->SendPayload(link, header, std::as_bytes(values), *block, shape_.priority);
  if (key == 0) return absl::OkStatus();
  sent.push_back({pull.aux64, pull.reply_slot, key});
  if (sent.size() > kMaxSent) sent.pop_front();
  return absl::OkStatus();
}

void TablePartition::ServeParked() {
  if (waits()) return;
  for (auto it = parked_.begin(); it != parked_.end();) {
    const FrameHeader& request = it->second.request;
    if (!Due(request, !it->second.ids.empty())) {
      ++it;
      continue;
    }
    const Parked parked = std::move(it->second);
    it = parked_.erase(it);
    (void)SendRows(parked.link, parked.request, parked.ids);   // it only sends
  }
}

void TablePartition::LinkDown(LinkId link) {
  Partition::LinkDown(link);
  std::erase_if(parked_, [&](const auto& entry) { return entry.second.link == link; });
}

// --- for people

void TablePartition::Report(proto::PartitionState* state) const {
  ReportRound(OldestOpenRound(), state);
  // Nobody has contributed to what comes next (as in AsyncPartition).
  if (async_) state->set_contributed(std::string((seats_.size() + 7) / 8, '\0'));
}

std::string TablePartition::WaitingFor() const {
  if (async_) {
    const auto owed = std::ranges::count_if(clocks_, &Clock::owed);
    return owed == 0 ? "" : absl::StrCat(owed, " ranks wait at ", Name(), " for the slowest, whose next round is ", Slowest());
  }
  if (contributed_ == 0) return "";
  const uint32_t missing = LowestMissing(open_);
  if (missing >= seats_.size()) return "";
  return absl::StrCat("round ", open_, " of ", Name(), " has ", contributed_, " of ", seats_.size(),
                      " contributions and waits for ", WorkerName(missing));
}

uint64_t TablePartition::state_bytes() const { return segment_->stats().bytes + sum_.bytes(); }

}  // namespace sluice::server
