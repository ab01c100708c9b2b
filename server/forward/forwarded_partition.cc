#include "server/forward/forwarded_partition.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/math/exact_wire.h"
#include "server/sent_sum.h"
#include "server/sparse_sum.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::Payload;
using transport::PushState;
using transport::RetryReason;
using transport::SlotId;

namespace {

constexpr TimeNs kRetryDelay = 100 * kMillisecond;

bool IsBroadcast(const FrameHeader& push) {
  return push.has(transport::kFlagAssign) ||
         (push.has(transport::kFlagEmpty) && !push.has(transport::kFlagNonfinite));
}

bool IsPermanent(absl::StatusCode code) {
  return code != absl::StatusCode::kDataLoss && code != absl::StatusCode::kUnavailable &&
         code != absl::StatusCode::kResourceExhausted && code != absl::StatusCode::kDeadlineExceeded;
}

size_t FloatsFor(size_t bytes) { return (bytes + sizeof(float) - 1) / sizeof(float); }

}  // namespace

ForwardedPartition::ForwardedPartition(PartitionShape shape, size_t largest_answer, const Env* env)
    : shape_(std::move(shape)),
      largest_answer_(largest_answer),
      env_(env),
      job_(env->job),
      // With order fast too: then the owner need not be told in which order this sum was made.
      reducer_(job_->semantics->order == proto::ORDER_EXACT ? proto::ORDER_EXACT : proto::ORDER_RANK, proto::REDUCTION_SUM,
               shape_.elements, job_->values, job_->exact) {}

bool ForwardedPartition::SetWay(std::shared_ptr<const control::TreeWay> way, size_t node, uint32_t term,
                                ReplicaChannel* channel) {
  const int32_t above = way->nodes[node].parent;
  const int64_t parent = above == -1 ? int64_t{-1} : int64_t{way->nodes[static_cast<size_t>(above)].server};
  const bool same = way_ != nullptr && way_->stamp == way->stamp && term_ == term && parent_ == parent && channel_ == channel;
  if (!same && state_ != State::kIdle) {
    ++job_->counters->partials_discarded;
    Drop();
  }
  if (!same) {
    seats_.clear();
    members_ = MembersOf(*way, node);
  }
  way_ = std::move(way);
  term_ = term;
  parent_ = parent;
  channel_ = channel;
  return !same;
}

void ForwardedPartition::Retire() {
  if (state_ != State::kIdle) ++job_->counters->partials_discarded;
  Drop();
}

const ForwardMember* ForwardedPartition::FindMember(uint32_t id) const {
  const auto it = std::ranges::find(members_, id, &ForwardMember::id);
  return it == members_.end() ? nullptr : &*it;
}

bool ForwardedPartition::Counts(const ForwardMember& member) const {
  return std::ranges::any_of(member.covers, [&](uint32_t rank) { return !job_->workers[rank].finished; });
}

uint32_t ForwardedPartition::Floor() const {
  for (const ForwardMember& member : members_) {
    const auto seat = seats_.find(member.id);
    const bool there = state_ != State::kIdle && seat != seats_.end() && seat->second.HasContributed(round_);
    if (!there && Counts(member)) return member.key;
  }
  return UINT32_MAX;
}

bool ForwardedPartition::TakeSeat(LinkId link, const FrameHeader& push) {
  Seat& seat = seats_[push.rank];
  if (seat.asked && seat.round == push.round && seat.incarnation == push.incarnation && push.attempt < seat.attempt) return false;
  seat.asked = true;
  seat.link = link;
  seat.slot = push.reply_slot;
  seat.round = push.round;
  seat.incarnation = push.incarnation;
  seat.attempt = push.attempt;
  seat.no_reply = push.has(transport::kFlagNoReply);
  return true;
}

// --- members

ForwardedPartition::Admission ForwardedPartition::Admit(LinkId link, const FrameHeader& push) {
  if (last_.has_value() && push.round == last_->header.round) {                                      // 2c
    AnswerAgain(link, push);
    return Admission::kAnswered;
  }
  if (state_ == State::kIdle ? last_.has_value() && push.round < last_->header.round : push.round < round_) {   // 2d
    job_->replier->SendRetry(link, push, RetryReason::kDirect, term_);
    return Admission::kAnswered;
  }
  if (state_ == State::kForwarded && push.round > round_) {                                          // 2e
    job_->replier->SendRetry(link, push, RetryReason::kBusy, term_);
    return Admission::kAnswered;
  }
  if (state_ == State::kGather && push.round > round_) DropTellingDirect();
  if (state_ == State::kIdle) return Admission::kAccept;
  if (seats_[push.rank].HasContributed(round_)) {                                                    // 2f
    ++job_->counters->duplicates;
    if (TakeSeat(link, push)) job_->replier->SendState(link, push, PushState::kReceived);
    return Admission::kAnswered;
  }
  if (state_ == State::kForwarded) {   // it did not count when the sum was made
    job_->replier->SendRetry(link, push, RetryReason::kBusy, term_);
    return Admission::kAnswered;
  }
  if (absl::Status status = CheckKind(push); !status.ok()) {
    ++job_->counters->refused;
    job_->replier->SendError(link, push, status);
    return Admission::kAnswered;
  }
  return Admission::kAccept;
}

absl::Status ForwardedPartition::CheckKind(const FrameHeader& push) const {
  if (!any_) return absl::OkStatus();
  const bool broadcast = IsBroadcast(push);
  if (broadcast != broadcast_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", FindMember(push.rank)->key, broadcast ? " broadcasts" : " pushes a gradient to", " round ", round_, " of ", Name(),
        ", and rank ", ranks_.front(), broadcast ? " has pushed a gradient to it" : " broadcasts it",
        "; all ranks must do the same operations on a tensor in the same order"));
  }
  if (push.has(transport::kFlagAssign) && assigned_ != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("two ranks broadcast as root to round ", round_, " of ", Name(),
                                                      "; all ranks must name the same root"));
  }
  return absl::OkStatus();
}

bool ForwardedPartition::Urgent(const FrameHeader& push) const {
  if (state_ == State::kForwarded || (state_ == State::kGather && push.round != round_)) return false;
  const ForwardMember* member = FindMember(push.rank);
  return member != nullptr && member->key == Floor();
}

absl::Status ForwardedPartition::Contribute(LinkId link, const FrameHeader& push, Payload payload) {
  if (Admit(link, push) == Admission::kAnswered) return absl::OkStatus();
  const ForwardMember* member = FindMember(push.rank);
  if (member == nullptr) return absl::InvalidArgumentError(absl::StrCat("not a member of ", Name()));
  if (state_ == State::kIdle) {
    round_ = push.round;
    any_ = has_values_ = asked_to_skip_ = false;
    ranks_.clear();
  }
  const size_t bytes = payload.size();
  if (push.has(transport::kFlagForward)) {
    SLUICE_RETURN_IF_ERROR(AddForward(*member, push, std::move(payload)));
  } else {
    const bool nothing = push.has(transport::kFlagEmpty) || push.has(transport::kFlagNonfinite);
    const compression::Codec* codec = nothing ? nullptr : compression::DecoderFor(push.codec);
    if (codec != nullptr) {
      if (absl::Status status = codec->Validate(payload.bytes(), shape_.elements); !status.ok()) {
        return absl::DataLossError(absl::StrCat("the payload of rank ", push.rank, " for round ", push.round, " of ", Name(),
                                                " is not valid ", codec->name(), ": ", status.message()));
      }
    }
    if (push.has(transport::kFlagAssign)) {
      SLUICE_ASSIGN_OR_RETURN(BlockPtr block, job_->values->Get(shape_.elements));
      SLUICE_RETURN_IF_ERROR(codec->Decode(payload.bytes(), block->values()));
      assigned_ = std::move(block);
    }
    if (job_->observer != nullptr) {
      job_->observer->OnContribution({job_->job, push.rank, push.incarnation, shape_.tensor, shape_.partition, push.round,
                                      push.codec, push.flags, push.elements, payload.bytes()});
    }
    ranks_.insert(std::ranges::upper_bound(ranks_, push.rank), push.rank);
    SLUICE_RETURN_IF_ERROR(Add(*member, push, IsBroadcast(push) ? nullptr : codec, std::move(payload)));
  }
  ++job_->counters->contributions;
  job_->counters->payload_in += bytes;
  TakeSeat(link, push);
  ForwardIfComplete();
  return absl::OkStatus();
}

// A sum of sums. Nothing has changed after an error.
absl::Status ForwardedPartition::AddForward(const ForwardMember& member, const FrameHeader& push, Payload payload) {
  SLUICE_ASSIGN_OR_RETURN(const ForwardParts parts, ParseForward(payload.bytes(), static_cast<uint32_t>(job_->workers.size())));
  for (const uint32_t rank : parts.ranks) {
    if (!std::ranges::binary_search(member.covers, rank)) {
      return absl::InvalidArgumentError(absl::StrCat("server ", push.rank & ~kForwardRank, " forwards round ", push.round, " of ", Name(),
                                                     " for rank ", rank, ", which does not push to it"));
    }
  }
  const bool empty = push.has(transport::kFlagEmpty), exact = job_->semantics->order == proto::ORDER_EXACT;
  const bool right = empty                              ? parts.form == kForwardNothing
                     : push.has(transport::kFlagAssign) ? parts.form == kSumDense
                     : exact                            ? parts.form == kForwardBins
                                                        : parts.form <= kSumBitmap;
  if (!right) return absl::InvalidArgumentError(absl::StrCat("a forward in form ", parts.form, ", which is not the job's"));
  const compression::Codec* plain = compression::DecoderFor(0);
  const auto ranks = static_cast<uint32_t>(parts.ranks.size());
  Payload sum;
  if (push.has(transport::kFlagAssign)) {
    SLUICE_ASSIGN_OR_RETURN(BlockPtr block, job_->values->Get(shape_.elements));
    SLUICE_RETURN_IF_ERROR(plain->Decode(parts.body, block->values()));
    assigned_ = std::move(block);
  } else if (!empty && exact) {
    SLUICE_RETURN_IF_ERROR(reducer_.AddBins(member.key, parts.body, ranks));
    has_values_ = true;
  } else if (!empty && parts.form != kSumDense) {
    SLUICE_ASSIGN_OR_RETURN(const SentSum sparse, SentSum::Parse(parts.form, parts.count, parts.body, shape_.elements));
    SLUICE_ASSIGN_OR_RETURN(BlockPtr block, job_->scratch->Get(shape_.elements));
    sparse.CopyTo(block->values());
    sum = Payload(std::as_const(*block).bytes(), block);
  } else if (!empty) {
    SLUICE_RETURN_IF_ERROR(plain->Validate(parts.body, shape_.elements));
    sum = payload.Slice(parts.body);
  }
  const size_t middle = ranks_.size();
  ranks_.insert(ranks_.end(), parts.ranks.begin(), parts.ranks.end());
  std::inplace_merge(ranks_.begin(), ranks_.begin() + static_cast<std::ptrdiff_t>(middle), ranks_.end());
  const bool values = !empty && !push.has(transport::kFlagAssign) && !exact;
  return Add(member, push, values ? plain : nullptr, std::move(sum));
}

absl::Status ForwardedPartition::Add(const ForwardMember& member, const FrameHeader& push, const compression::Codec* codec,
                                     Payload payload) {
  state_ = State::kGather;
  any_ = true;
  broadcast_ = IsBroadcast(push);
  asked_to_skip_ |= push.has(transport::kFlagNonfinite);
  has_values_ |= codec != nullptr;
  seats_[member.id].contributed = round_ + 1;
  if (codec == nullptr) return absl::OkStatus();   // the sum need not know of presence alone
  const uint32_t floor = Floor();
  if (absl::Status added = reducer_.Add(member.key, codec, std::move(payload), floor, floor == UINT32_MAX); !added.ok()) {
    job_->fail(absl::Status(added.code(), absl::StrCat("round ", round_, " of ", Name(), ": ", added.message())));
  }
  return absl::OkStatus();
}

void ForwardedPartition::MembershipChanged() {
  if (state_ == State::kGather) ForwardIfComplete();
}

// --- 4: the sum goes up

void ForwardedPartition::ForwardIfComplete() {
  if (state_ != State::kGather || Floor() != UINT32_MAX) return;
  if (absl::Status status = Forward(); !status.ok()) {
    job_->fail(absl::Status(status.code(), absl::StrCat("round ", round_, " of ", Name(), ": ", status.message())));
  }
}

absl::Status ForwardedPartition::Forward() {
  SLUICE_RETURN_IF_ERROR(reducer_.Raise(UINT32_MAX));
  const auto workers = static_cast<uint32_t>(job_->workers.size());
  const size_t head = ForwardHeadBytes(workers);
  up_ = FrameHeader{};
  if (asked_to_skip_) up_.flags |= transport::kFlagNonfinite;
  uint32_t form = kForwardNothing;
  uint64_t count = 0;
  BlockPtr values;
  std::optional<SparseSum> sparse;
  size_t body = 0;
  if (assigned_ != nullptr) {
    up_.flags |= transport::kFlagAssign;
    values = std::move(assigned_);
  } else if (!has_values_) {
    up_.flags |= transport::kFlagEmpty;
  } else if (job_->semantics->order == proto::ORDER_EXACT) {
    form = kForwardBins;
    body = ExactWireBytes(*reducer_.bins());
  } else {
    SLUICE_ASSIGN_OR_RETURN(const Reduced reduced, reducer_.Finish());
    values = reduced.sum;
    sparse = SparseSum::Of(std::as_const(*values).values());
  }
  if (values != nullptr) {
    form = sparse.has_value() ? sparse->form() : kSumDense;
    count = sparse.has_value() ? sparse->count() : 0;
    body = sparse.has_value() ? sparse->bytes() : shape_.elements * sizeof(float);
  }
  SLUICE_ASSIGN_OR_RETURN(sum_, job_->values->Get(FloatsFor(head + body)));
  const MutableBytes out = sum_->bytes().first(head + body);
  WriteForwardHead(form, count, ranks_, workers, out);
  if (form == kForwardBins) {
    WriteExact(*reducer_.bins(), out.subspan(head));
  } else if (sparse.has_value()) {
    sparse->Write(out.subspan(head));
  } else if (values != nullptr) {
    std::memcpy(out.data() + head, std::as_const(*values).bytes().data(), body);
  }
  reducer_.Discard();
  up_.type = FrameType::kPush;
  up_.flags |= transport::kFlagForward;
  up_.job = job_->job;
  up_.rank = kForwardRank | env_->server;
  up_.incarnation = env_->incarnation;
  up_.tensor = shape_.tensor;
  up_.partition = shape_.partition;
  up_.term = term_;
  up_.round = round_;
  up_.elements = static_cast<uint32_t>(shape_.elements);
  up_.total_bytes = head + body;
  up_.aux64 = way_->stamp;
  up_.plan_version = job_->plan_version;
  const bool wanted = std::ranges::any_of(seats_, [&](const auto& entry) {
    return entry.second.HasContributed(round_) && !entry.second.no_reply;
  });
  if (!wanted) up_.flags |= transport::kFlagNoReply;
  if (wanted) {
    SLUICE_ASSIGN_OR_RETURN(reply_, job_->values->Get(FloatsFor(largest_answer_)));
  }
  state_ = State::kForwarded;
  retry_at_ = 0;
  OpenSlot();
  up_.reply_slot = slot_;
  channel_->Send(up_, sum_->bytes().first(up_.total_bytes), sum_, shape_.priority);
  return absl::OkStatus();
}

void ForwardedPartition::OpenSlot() {
  reassembler_.reset();
  slot_ = 0;
  if (reply_ == nullptr || channel_->link() == 0) return;
  slot_link_ = channel_->link();
  slot_ = env_->endpoint->OpenSlot(slot_link_, reply_->bytes());
}

void ForwardedPartition::CloseSlot() {
  if (slot_ == 0) return;
  if (!env_->endpoint->CloseSlot(slot_link_, slot_)) {
    // Somebody writes there: another memory for what comes next.
    env_->closing(slot_link_, slot_, std::move(reply_));
    reply_.reset();
  }
  slot_ = 0;
}

void ForwardedPartition::SendUp() {
  retry_at_ = 0;
  CloseSlot();
  if (reply_ == nullptr && !up_.has(transport::kFlagNoReply)) {
    auto memory = job_->values->Get(FloatsFor(largest_answer_));
    if (!memory.ok()) {
      retry_at_ = job_->clock->Now() + kRetryDelay;
      return;
    }
    reply_ = *std::move(memory);
  }
  OpenSlot();
  channel_->Again(shape_.partition, slot_);
}

void ForwardedPartition::ParentUp() {
  if (state_ == State::kForwarded) SendUp();
}

void ForwardedPartition::OnTick() {
  if (state_ == State::kForwarded && retry_at_ != 0 && job_->clock->Now() >= retry_at_) SendUp();
}

void ForwardedPartition::LinkDown(LinkId link) {
  for (auto& [id, seat] : seats_) {
    if (seat.link == link) seat.link = 0;
  }
  if (slot_ != 0 && slot_link_ == link) slot_ = 0;
}

void ForwardedPartition::Drop() {
  if (state_ == State::kForwarded) channel_->Abandon(shape_.partition);
  state_ = State::kIdle;
  reducer_.Discard();
  assigned_.reset();
  sum_.reset();
  CloseSlot();
  reply_.reset();
  retry_at_ = 0;
  for (auto& [id, seat] : seats_) seat.contributed = 0;
}

void ForwardedPartition::DropTellingDirect() {
  std::vector<uint32_t> contributors;
  for (const auto& [id, seat] : seats_) {
    if (seat.HasContributed(round_)) contributors.push_back(id);
  }
  Drop();
  for (const uint32_t id : contributors) TellDirect(id, round_);
}

// --- 5 to 7: answers

absl::Status ForwardedPartition::OnAnswer(const FrameHeader& header, const Payload& payload) {
  if (state_ != State::kForwarded || header.round != round_) return absl::OkStatus();   // about what is over
  switch (header.type) {
    case FrameType::kReply: return OnReply(header, payload);
    case FrameType::kApplied: Answered(header, 0); return absl::OkStatus();
    case FrameType::kRetry:
      if (static_cast<RetryReason>(header.aux) == RetryReason::kDirect) {
        DropTellingDirect();
        return absl::OkStatus();
      }
      if (static_cast<RetryReason>(header.aux) != RetryReason::kBusy) env_->request_plan();
      retry_at_ = job_->clock->Now() + kRetryDelay;
      return absl::OkStatus();
    default: break;
  }
  const auto code = static_cast<absl::StatusCode>(header.status);
  if (!IsPermanent(code) || code == absl::StatusCode::kOk) {
    retry_at_ = job_->clock->Now() + kRetryDelay;
    return absl::OkStatus();
  }
  // What no repeat can cure is everybody's who is in it.
  const std::string text(reinterpret_cast<const char*>(payload.data()), std::min<size_t>(payload.size(), 1024));
  for (const auto& [id, seat] : seats_) {
    if (seat.HasContributed(round_) && seat.link != 0) {
      job_->replier->SendError(seat.link, AnswerHeader(id, seat, round_), absl::Status(code, text));
    }
  }
  Drop();
  return absl::OkStatus();
}

absl::Status ForwardedPartition::OnReply(const FrameHeader& header, const Payload& payload) {
  if (reply_ == nullptr) return absl::OkStatus();   // was not asked for
  if (header.total_bytes > largest_answer_) {
    return absl::InvalidArgumentError(absl::StrCat("an answer of more than ", largest_answer_, " bytes: ", transport::DebugString(header)));
  }
  if (payload.size() == header.total_bytes) {
    if (payload.data() != reply_->bytes().data()) std::memcpy(reply_->bytes().data(), payload.data(), payload.size());
    Answered(header, payload.size());
    return absl::OkStatus();
  }
  if (header.slot == 0) return absl::InvalidArgumentError(absl::StrCat("a stripe without a slot: ", transport::DebugString(header)));
  if (header.slot != slot_) return absl::OkStatus();
  if (const std::pair<uint32_t, uint64_t> answer{header.attempt, header.round};
      !reassembler_.has_value() || reassembling_ != answer || reassembler_->total() != header.total_bytes) {
    reassembler_.emplace(header.total_bytes);
    reassembling_ = answer;
  }
  SLUICE_RETURN_IF_ERROR(reassembler_->Add(header.stripe_offset, header.payload_bytes));
  std::byte* place = reply_->bytes().data() + header.stripe_offset;
  if (payload.data() != place) std::memcpy(place, payload.data(), payload.size());
  if (reassembler_->complete()) Answered(header, header.total_bytes);
  return absl::OkStatus();
}

void ForwardedPartition::Answered(const FrameHeader& header, size_t bytes) {
  channel_->Finish(shape_.partition, round_);
  ++job_->counters->forwards;
  job_->counters->forwarded += up_.total_bytes;
  Answer answer{header, nullptr, {}, up_.has(transport::kFlagNoReply)};
  if (bytes > 0) {
    answer.memory = reply_;
    answer.payload = std::as_const(*reply_).bytes().first(bytes);
  }
  // What may still be written there are the same bytes once more.
  if (slot_ != 0 && !env_->endpoint->CloseSlot(slot_link_, slot_)) env_->closing(slot_link_, slot_, reply_);
  slot_ = 0;
  reply_.reset();
  sum_.reset();
  state_ = State::kIdle;
  last_ = std::move(answer);
  for (auto& [id, seat] : seats_) {
    if (seat.asked && seat.round == round_) SendAnswer(id);
  }
}

FrameHeader ForwardedPartition::AnswerHeader(uint32_t id, const Seat& seat, uint64_t round) const {
  FrameHeader header;
  header.job = job_->job;
  header.rank = id;
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

void ForwardedPartition::SendAnswer(uint32_t id) {
  Seat& seat = seats_[id];
  if (seat.link == 0) return;   // it asks again
  if (!seat.no_reply && last_->bare) return TellDirect(id, last_->header.round);
  job_->replier->Cancel(seat.reply_key);
  seat.reply_key = 0;
  FrameHeader header = AnswerHeader(id, seat, last_->header.round);
  header.flags = last_->header.flags & static_cast<uint16_t>(~transport::kFlagHash);
  header.rate_bits = last_->header.rate_bits;
  header.aux = last_->header.aux;
  if (seat.no_reply || last_->payload.empty()) {
    header.type = FrameType::kApplied;
    header.flags &= static_cast<uint16_t>(~transport::kFlagChange);
    job_->replier->Send(seat.link, header);
    return;
  }
  header.type = FrameType::kReply;
  header.attempt = ++seat.answers;
  header.codec = last_->header.codec;
  header.slot = seat.slot;
  seat.reply_key = job_->replier->SendPayload(seat.link, header, last_->payload, last_->memory, shape_.priority);
}

void ForwardedPartition::TellDirect(uint32_t id, uint64_t round) {
  const Seat& seat = seats_[id];
  if (seat.link == 0) return;
  job_->replier->SendRetry(seat.link, AnswerHeader(id, seat, round), RetryReason::kDirect, term_);
}

void ForwardedPartition::AnswerAgain(LinkId link, const FrameHeader& push) {
  ++job_->counters->duplicates;
  Seat& seat = seats_[push.rank];
  if (seat.asked && push.round == seat.round && seat.link == link && seat.slot == push.reply_slot &&
      job_->replier->UnderWay(seat.reply_key)) {
    job_->replier->SendState(link, push, PushState::kReceived);
    return;
  }
  if (TakeSeat(link, push)) SendAnswer(push.rank);
}

std::string ForwardedPartition::Name() const {
  return absl::StrCat("tensor '", shape_.name, "' partition ", shape_.position, " (job-wide ", shape_.partition, "), forwarded");
}

std::string ForwardedPartition::WaitingFor() const {
  if (state_ == State::kIdle) return "";
  if (state_ == State::kForwarded) {
    return absl::StrCat("round ", round_, " of ", Name(), ", waits for the answer of ",
                        parent_ == -1 ? "its owner" : absl::StrCat("server ", parent_));
  }
  const uint32_t missing = Floor();
  return absl::StrCat("round ", round_, " of ", Name(), ", has ", ranks_.size(), " contributions and waits for rank ", missing);
}

}  // namespace sluice::server
