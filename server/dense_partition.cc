#include "server/dense_partition.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/stream_copy.h"
#include "server/async_partition.h"
#include "server/bsp_partition.h"
#include "server/math/exact_wire.h"
#include "server/sparse_sum.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;

absl::StatusOr<std::unique_ptr<Partition>> DensePartition::Create(PartitionShape shape,
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

DensePartition::DensePartition(PartitionShape shape, std::unique_ptr<compression::Codec> reply_codec, ValueState values,
                               JobContext* job)
    : Partition(std::move(shape), job), reply_codec_(std::move(reply_codec)), values_(std::move(values)) {}

absl::Status DensePartition::CheckPush(const FrameHeader& push, uint64_t max_message_bytes) const {
  return push.has(transport::kFlagForward)
             ? CheckForward(shape_, static_cast<uint32_t>(seats_.size()), semantics().order, push, max_message_bytes)
             : CheckDensePush(shape_, push, max_message_bytes);
}

absl::Status CheckForward(const PartitionShape& shape, uint32_t workers, proto::Order order, const FrameHeader& push,
                          uint64_t max_message_bytes) {
  const uint64_t body = order == proto::ORDER_EXACT ? MaxExactWireBytes(shape.elements) : shape.elements * sizeof(float);
  const uint64_t most = std::min<uint64_t>(ForwardHeadBytes(workers) + std::max<uint64_t>(body, shape.elements * sizeof(float)),
                                           max_message_bytes);
  if (push.tensor == shape.tensor && push.elements == shape.elements && push.codec == 0 && push.total_bytes <= most &&
      push.total_bytes >= ForwardHeadBytes(workers)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "server ", push.rank & ~kForwardRank, " forwards ", push.total_bytes, " bytes of ", push.elements, " elements in codec ", push.codec,
      " to tensor '", shape.name, "' partition ", shape.position, " (job-wide ", shape.partition, "), which has ", shape.elements,
      ": ", ForwardHeadBytes(workers), " to ", most, " bytes are possible"));
}

absl::Status CheckDensePush(const PartitionShape& shape, const FrameHeader& push, uint64_t max_message_bytes) {
  const auto refuse = [&](std::string what) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", push.rank, " pushes to tensor '", shape.name,
                                                   "' partition ", shape.position, " (job-wide ", shape.partition, ") ",
                                                   what));
  };
  if (push.tensor != shape.tensor) return refuse(absl::StrCat("as tensor ", push.tensor, ", not ", shape.tensor));
  const bool nothing = push.has(transport::kFlagEmpty) || push.has(transport::kFlagNonfinite);
  if (nothing) {
    if (push.total_bytes != 0 || push.has(transport::kFlagAssign)) {
      return refuse(absl::StrCat("an empty contribution that carries ", push.total_bytes, " bytes"));
    }
    return absl::OkStatus();
  }
  if (push.elements != shape.elements) {
    return refuse(absl::StrCat(push.elements, " elements; the plan has ", shape.elements));
  }
  const compression::Codec* codec = compression::DecoderFor(push.codec);
  if (codec == nullptr) return refuse(absl::StrCat("in codec ", push.codec, ", which this release does not know"));
  const uint64_t most = std::min<uint64_t>(codec->MaxEncodedBytes(shape.elements), max_message_bytes);
  if (push.total_bytes == 0 || push.total_bytes > most) {
    return refuse(absl::StrCat(push.total_bytes, " bytes of ", codec->name(), "; 1 to ", most, " are possible"));
  }
  return absl::OkStatus();
}

void DensePartition::SendResult(uint32_t rank, const Result& result) {
  Seat& seat = SeatOf(rank);
  if (seat.link == 0) return;   // it asks again when it is back, and gets the answer then
  job_->replier->Cancel(seat.reply_key);
  seat.reply_key = 0;
  FrameHeader header = AnswerHeader(rank, result.round, result.flags);
  header.rate_bits = result.rate_bits;
  header.aux = result.contributors;
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

DensePartition::Result DensePartition::CurrentValue(uint64_t round, uint32_t rate_bits) const {
  Result result;
  result.round = round;
  result.rate_bits = rate_bits;
  result.codec = static_cast<uint16_t>(compression::CodecId::kNone);
  result.owner = values_.pulled();
  result.payload = std::as_const(*values_.pulled()).bytes();
  return result;
}

absl::Status DensePartition::Pull(LinkId link, const FrameHeader& pull, ConstBytes payload) {
  if (!payload.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", pull.rank, " pulls rows of ", Name(), ", which is a tensor and no table"));
  }
  if (waits() || !Due(pull)) {
    pulls_[pull.rank] = {link, pull};
    return absl::OkStatus();
  }
  SendValue(link, pull);
  return absl::OkStatus();
}

void DensePartition::SendValue(LinkId link, const FrameHeader& pull) {
  Seat& seat = seats_[pull.rank];
  if (job_->replier->InFlight(seat.value_key)) {
    if (seat.value_slot == pull.reply_slot) return;   // on its way there
    job_->replier->Cancel(seat.value_key);
  }
  FrameHeader header = AnswerTo(pull, FrameType::kValue);
  header.term = term();
  header.round = NextRound(pull.rank);
  if (ContributedToNext(pull.rank)) header.flags |= transport::kFlagContributed;
  header.codec = static_cast<uint16_t>(compression::CodecId::kNone);
  header.elements = static_cast<uint32_t>(shape_.elements);
  header.rate_bits = NextRateBits(pull.rank);
  header.plan_version = job_->plan_version;
  header.slot = pull.reply_slot;
  header.attempt = ++seat.answers;
  seat.value_slot = pull.reply_slot;
  const bool bare = pull.has(transport::kFlagNoReply);   // the round is all that is asked for
  if (bare) header.slot = 0;
  seat.value_key = bare ? job_->replier->SendPayload(link, header, {}, nullptr, shape_.priority)
                        : job_->replier->SendPayload(link, header, std::as_const(*values_.pulled()).bytes(),
                                                     values_.pulled(), shape_.priority);
}

bool DensePartition::Due(const FrameHeader& pull) const {
  if (pull.has(transport::kFlagAdmit)) return true;
  const uint64_t next = NextRound(pull.rank);
  return next >= pull.round || (!semantics().async() && IsIn(pull.rank, next));
}

void DensePartition::ServePulls() {
  if (waits()) return;
  for (auto it = pulls_.begin(); it != pulls_.end();) {
    if (!Due(it->second.request)) {
      ++it;
      continue;
    }
    SendValue(it->second.link, it->second.request);
    it = pulls_.erase(it);
  }
}

// --- copies

absl::Status DensePartition::Malformed(const std::string& what) const {
  return absl::DataLossError(absl::StrCat("a message for the copy of ", Name(), " ", what));
}

absl::StatusOr<BlockPtr> DensePartition::BlockOf(ConstBytes values, BlockPool* pool) const {
  SLUICE_ASSIGN_OR_RETURN(BlockPtr block, pool->Get(values.size() / sizeof(float)));
  StreamCopy(values, block->bytes());   // most of a backup's values are never read
  return block;
}

absl::StatusOr<ReplicaMessage> DensePartition::RoundMessage(const proto::RoundHead& round,
                                                            std::span<const float> given) const {
  proto::ReplicaHead head;
  *head.mutable_round() = round;
  const std::optional<SparseSum> sparse = given.empty() ? std::nullopt : SparseSum::Of(given);
  if (!sparse.has_value()) return MakeReplicaMessage(head, {std::as_bytes(given)}, job_->values);
  head.mutable_round()->set_form(sparse->form());
  head.mutable_round()->set_nonzero(sparse->count());
  return MakeReplicaMessage(head, sparse->bytes(), [&](MutableBytes out) { sparse->Write(out); }, job_->values);
}

absl::StatusOr<std::optional<SentSum>> DensePartition::GivenBy(const proto::RoundHead& round, ConstBytes bulk) const {
  if (round.broadcast() ? !round.assigned() : round.skipped()) {
    if (!bulk.empty()) return Malformed(absl::StrCat("has ", bulk.size(), " bytes of values where none belong"));
    return std::optional<SentSum>();
  }
  auto sum = SentSum::Parse(round.form(), round.nonzero(), bulk, shape_.elements);
  if (!sum.ok()) return Malformed(absl::StrCat("has ", sum.status().message()));
  return *std::move(sum);
}

absl::StatusOr<BlockPtr> DensePartition::BlockOf(const SentSum& sum, BlockPool* pool) const {
  SLUICE_ASSIGN_OR_RETURN(BlockPtr block, pool->Get(sum.elements()));
  sum.CopyTo(block->values());
  return block;
}

DensePartition::SavedValues DensePartition::SaveValues(proto::DenseHead* head) const {
  SavedValues saved;
  saved.value = std::as_const(*values_.value()).bytes();
  if (values_.replica() != nullptr && values_.replica() != values_.value()) {
    head->set_replica(true);
    saved.replica = std::as_const(*values_.replica()).bytes();
  }
  saved.state = std::as_bytes(values_.state());
  head->set_state_floats(values_.state().size());
  head->set_updates(values_.updates());
  head->set_applied_rounds(applied_rounds_);
  return saved;
}

absl::Status DensePartition::LoadValues(const proto::DenseHead& head, ConstBytes* bulk) {
  const size_t value_bytes = shape_.elements * sizeof(float);
  const size_t state_bytes = values_.state().size() * sizeof(float);
  if (head.state_floats() != values_.state().size() || (head.replica() && values_.replica() == nullptr) ||
      bulk->size() < value_bytes * (head.replica() ? 2 : 1) + state_bytes) {
    return Malformed(absl::StrCat("has ", bulk->size(), " bytes with ", head.state_floats(), " values of state",
                                  head.replica() ? " and a replica" : "", "; the plan has ", shape_.elements,
                                  " elements and ", values_.state().size(), ": use one release everywhere"));
  }
  const auto take = [&](size_t bytes) {
    const ConstBytes part = bulk->first(bytes);
    *bulk = bulk->subspan(bytes);
    return part;
  };
  SLUICE_ASSIGN_OR_RETURN(BlockPtr value, BlockOf(take(value_bytes), job_->values));
  BlockPtr replica;
  if (head.replica()) {
    SLUICE_ASSIGN_OR_RETURN(replica, BlockOf(take(value_bytes), job_->values));
  }
  const ConstBytes raw = take(state_bytes);
  std::vector<float> state(values_.state().size());
  if (!raw.empty()) std::memcpy(state.data(), raw.data(), raw.size());
  values_.Restore(std::move(value), std::move(replica), state, head.updates());
  applied_rounds_ = head.applied_rounds();
  return absl::OkStatus();
}

void DensePartition::LinkDown(LinkId link) {
  Partition::LinkDown(link);
  std::erase_if(pulls_, [&](const auto& entry) { return entry.second.link == link; });
}

}  // namespace sluice::server
