// Forwards at the owner: sums of several ranks' contributions, each taken as one part of the round (docs/wire.md, "A push through a
// tree", steps 5 and 8). Terms, stamps and who may forward are Job's, sizes are CheckForward's.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/bsp_partition.h"
#include "server/forward/members.h"
#include "server/sparse_sum.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::LinkId;
using transport::Payload;
using transport::PushState;
using transport::RetryReason;

namespace {

uint32_t ServerOf(const FrameHeader& push) { return push.rank & ~kForwardRank; }

}  // namespace

bool BspPartition::SetWay(std::shared_ptr<const control::TreeWay> way) {
  const uint64_t before = stamp();
  way_ = std::move(way);
  if (stamp() == before) return false;
  forwarders_.clear();
  if (state_ == State::kOpen && contributed_ > 0) DiscardOpenRound();
  return true;
}

void BspPartition::DiscardOpenRound() {
  ++job_->counters->partials_discarded;
  reducer_.Discard();
  assigned_.reset();
  forwards_.clear();
  kind_ = Kind::kUnknown;
  asked_to_skip_ = false;
  contributed_ = 0;
  RoundEnds();
  for (Seat& seat : seats_) {
    if (seat.HasContributed(open_)) seat.contributed = seat.before;
  }
}

Partition::Admission BspPartition::AdmitForward(LinkId link, const FrameHeader& push) {
  if (push.round < open_) {                                                                          // 2e
    AnswerAgain(link, push);
    return Admission::kAnswered;
  }
  if (push.round > open_) {                                                                          // 2f
    job_->replier->SendRetry(link, push, RetryReason::kBusy, term());
    return Admission::kAnswered;
  }
  const control::TreeWay::Node* node = way_->Find(ServerOf(push));   // Job has looked
  const bool all = std::ranges::all_of(
      node->covers, [&](uint32_t rank) { return seats_[rank].HasContributed(open_) || !Counts(rank, open_); });
  if (all) {                                                                                         // 2g
    ++job_->counters->duplicates;
    if (TakeSeat(link, push)) job_->replier->SendState(link, push, PushState::kReceived);
    return Admission::kAnswered;
  }
  if (state_ != State::kOpen) {
    job_->replier->SendRetry(link, push, RetryReason::kBusy, term());
    return Admission::kAnswered;
  }
  return Admission::kAccept;
}

bool BspPartition::UrgentForward(const FrameHeader& push) const {
  if (state_ != State::kOpen || push.round != open_ || way_ == nullptr) return false;
  const control::TreeWay::Node* node = way_->Find(ServerOf(push));
  return node != nullptr && std::ranges::binary_search(node->covers, LowestMissing(open_));
}

absl::Status BspPartition::CheckForwarded(const FrameHeader& push, const ForwardParts& parts) const {
  const control::TreeWay::Node* node = way_->Find(ServerOf(push));
  const auto server = [&] { return absl::StrCat("server ", ServerOf(push), " forwards round ", push.round, " of ", Name()); };
  for (const uint32_t rank : parts.ranks) {
    if (!std::ranges::binary_search(node->covers, rank)) {
      return absl::InvalidArgumentError(absl::StrCat(server(), " for rank ", rank, ", which does not push to it"));
    }
    if (seats_[rank].HasContributed(open_)) {
      return absl::FailedPreconditionError(absl::StrCat(server(), " for rank ", rank, ", which has contributed already"));
    }
    if (!Counts(rank, open_)) return RankIsOut(rank, open_);
  }
  const bool empty = push.has(transport::kFlagEmpty), exact = semantics().order == proto::ORDER_EXACT;
  const bool right = empty                                ? parts.form == kForwardNothing
                     : push.has(transport::kFlagAssign)   ? parts.form == kSumDense
                     : exact                              ? parts.form == kForwardBins
                                                          : parts.form <= kSumBitmap;
  if (!right) return absl::InvalidArgumentError(absl::StrCat(server(), " in form ", parts.form, ", which is not the job's"));
  FrameHeader first = push;
  first.rank = parts.ranks.front();
  return CheckKind(first);
}

absl::Status BspPartition::ContributeForward(LinkId link, const FrameHeader& push, Payload payload) {
  if (AdmitForward(link, push) == Admission::kAnswered) return absl::OkStatus();
  // The head is read once, whoever else can write there; the body is only ever numbers.
  SLUICE_ASSIGN_OR_RETURN(const ForwardParts parts, ParseForward(payload.bytes(), static_cast<uint32_t>(seats_.size())));
  SLUICE_RETURN_IF_ERROR(CheckForwarded(push, parts));
  if (push.has(transport::kFlagAssign)) {
    SLUICE_ASSIGN_OR_RETURN(BlockPtr block, job_->values->Get(shape_.elements));
    SLUICE_RETURN_IF_ERROR(compression::DecoderFor(0)->Decode(parts.body, block->values()));
    assigned_ = std::move(block);
    root_ = parts.ranks.front();
  }
  SLUICE_RETURN_IF_ERROR(AddForward(push, parts, payload));
  TakeSeat(link, push);
  CloseIfComplete();
  return absl::OkStatus();
}

absl::Status BspPartition::AddForward(const FrameHeader& push, const ForwardParts& parts, const Payload& payload) {
  const bool gradient = !push.has(transport::kFlagAssign) && !push.has(transport::kFlagEmpty);
  const auto ranks = static_cast<uint32_t>(parts.ranks.size());
  Payload sum = payload.Slice(parts.body);
  if (gradient && parts.form == kForwardBins) {
    SLUICE_RETURN_IF_ERROR(reducer_.AddBins(parts.ranks.front(), parts.body, ranks));   // refused, or added
  } else if (gradient && parts.form != kSumDense) {
    SLUICE_ASSIGN_OR_RETURN(const SentSum sparse, SentSum::Parse(parts.form, parts.count, parts.body, shape_.elements));
    SLUICE_ASSIGN_OR_RETURN(const BlockPtr block, BlockOf(sparse, job_->scratch));
    sum = Payload(std::as_const(*block).bytes(), block);
  } else if (gradient) {
    SLUICE_RETURN_IF_ERROR(compression::DecoderFor(0)->Validate(parts.body, shape_.elements));
  }
  if (contributed_ == 0) first_rank_ = parts.ranks.front(), RoundBegins();
  const bool broadcast = push.has(transport::kFlagAssign) ||
                         (push.has(transport::kFlagEmpty) && !push.has(transport::kFlagNonfinite));
  kind_ = broadcast ? Kind::kBroadcast : Kind::kGradient;
  asked_to_skip_ |= push.has(transport::kFlagNonfinite);
  contributed_ += ranks;
  for (const uint32_t rank : parts.ranks) {
    seats_[rank].before = seats_[rank].contributed;
    seats_[rank].contributed = open_ + 1;
  }
  forwards_[parts.ranks.front()] = {ServerOf(push), parts.ranks};
  job_->counters->contributions += ranks;
  job_->counters->payload_in += payload.size();
  if (!gradient || parts.form != kForwardBins) {
    const uint32_t missing = LowestMissing(open_);
    const absl::Status added = reducer_.Add(parts.ranks.front(), gradient ? compression::DecoderFor(0) : nullptr, std::move(sum),
                                            missing, missing == seats_.size(), ranks);
    if (!added.ok()) {
      job_->fail(absl::Status(added.code(), absl::StrCat("round ", open_, " of ", Name(), ": ", added.message())));
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

std::vector<uint32_t> BspPartition::Unfold(const std::vector<uint32_t>& added, std::vector<int32_t>* nesting) const {
  nesting->clear();
  if (forwards_.empty()) return added;
  std::vector<uint32_t> ranks;
  for (const uint32_t first : added) {
    const auto forward = forwards_.find(first);
    if (forward == forwards_.end()) {
      nesting->push_back(static_cast<int32_t>(first));
      ranks.push_back(first);
      continue;
    }
    const size_t begin = nesting->size();
    const control::TreeWay::Node* node = way_->Find(forward->second.first);
    AppendNesting(*way_, static_cast<size_t>(node - way_->nodes.data()), forward->second.second, nesting);
    for (size_t i = begin; i < nesting->size(); ++i) {
      if ((*nesting)[i] >= 0) ranks.push_back(static_cast<uint32_t>((*nesting)[i]));
    }
  }
  return ranks;
}

}  // namespace sluice::server
