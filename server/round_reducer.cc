#include "server/round_reducer.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "server/vector_ops.h"

namespace sluice::server {
namespace {

constexpr uint64_t kKeptExactBytes = 256 << 20;
constexpr size_t kPieceElements = 4 << 10;   // 16 KiB of the sum: within L1 from the addition to the check

}  // namespace

std::unique_ptr<RoundSum> ExactPool::Get(size_t elements) {
  if (auto it = free_.find(elements); it != free_.end() && !it->second.empty()) {
    std::unique_ptr<RoundSum> sum = std::move(it->second.back());
    it->second.pop_back();
    kept_bytes_ -= sum->MemoryBytes();
    return sum;
  }
  return std::make_unique<RoundSum>(proto::ORDER_EXACT, elements);
}

void ExactPool::Put(std::unique_ptr<RoundSum> sum) {
  sum->Reset();
  if (kept_bytes_ + sum->MemoryBytes() > kKeptExactBytes) return;
  kept_bytes_ += sum->MemoryBytes();
  const size_t elements = sum->elements();
  free_[elements].push_back(std::move(sum));
}

absl::Status RoundReducer::Add(uint32_t rank, const compression::Codec* codec, transport::Payload payload,
                               uint32_t floor, bool last, uint32_t ranks) {
  if (order_ != proto::ORDER_RANK) return Consume(rank, Held{codec, std::move(payload), ranks}, last);
  held_.emplace(rank, Held{codec, std::move(payload), ranks});
  while (!held_.empty() && held_.begin()->first < floor) {
    const uint32_t next = held_.begin()->first;
    Held held = std::move(held_.begin()->second);
    held_.erase(held_.begin());
    SLUICE_RETURN_IF_ERROR(Consume(next, std::move(held), last && held_.empty()));
  }
  return absl::OkStatus();
}

absl::Status RoundReducer::AddBins(uint32_t rank, ConstBytes bins, uint32_t ranks) {
  if (exact_ == nullptr) exact_ = exact_pool_->Get(elements_);
  SLUICE_RETURN_IF_ERROR(exact_->MergeBins(bins, ranks));
  added_.push_back(rank);
  contributors_ += ranks;
  return absl::OkStatus();
}

absl::Status RoundReducer::Raise(uint32_t floor) {
  while (!held_.empty() && held_.begin()->first < floor) {
    const uint32_t rank = held_.begin()->first;
    Held held = std::move(held_.begin()->second);
    held_.erase(held_.begin());
    SLUICE_RETURN_IF_ERROR(Consume(rank, std::move(held), /*last=*/false));
  }
  return absl::OkStatus();
}

absl::Status RoundReducer::Consume(uint32_t rank, Held held, bool last) {
  added_.push_back(rank);
  contributors_ += held.ranks;
  if (held.codec == nullptr) return absl::OkStatus();
  if (order_ == proto::ORDER_EXACT) {
    if (exact_ == nullptr) exact_ = exact_pool_->Get(elements_);
    return exact_->Add(*held.codec, held.payload.bytes());
  }
  const bool plain = held.codec->id() == compression::CodecId::kNone;
  const bool first = sum_ == nullptr && lent_.codec == nullptr;
  if (first && plain && !last && held.payload.by_reference()) {
    lent_ = std::move(held);
    return absl::OkStatus();
  }
  if (sum_ == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(sum_, blocks_->Get(elements_));
  }
  if (plain && (last || lent_.codec != nullptr)) return AddPlain(held, first, last);
  if (const Held lent = std::exchange(lent_, {}); lent.codec != nullptr) {
    SLUICE_RETURN_IF_ERROR(lent.codec->Decode(lent.payload.bytes(), sum_->values()));
  }
  return first ? held.codec->Decode(held.payload.bytes(), sum_->values())
               : held.codec->DecodeAdd(held.payload.bytes(), sum_->values());
}

absl::Status RoundReducer::AddPlain(const Held& held, bool first, bool last) {
  const std::span<float> sum = sum_->values();
  const ConstBytes bytes = held.payload.bytes();
  const bool divide = last && reduction_ == proto::REDUCTION_MEAN && contributors_ > 1;
  const auto by = static_cast<float>(contributors_);
  finished_ = last;
  if (const Held lent = std::exchange(lent_, {}); lent.codec != nullptr) {
    finite_ = divide ? MeanOfBytes(lent.payload.bytes(), bytes, by, sum) : AddBytes(lent.payload.bytes(), bytes, sum);
    return absl::OkStatus();
  }
  for (size_t begin = 0; begin < sum.size(); begin += kPieceElements) {
    const std::span<float> piece = sum.subspan(begin, std::min(kPieceElements, sum.size() - begin));
    const ConstBytes part = bytes.subspan(begin * sizeof(float), piece.size_bytes());
    SLUICE_RETURN_IF_ERROR(first ? held.codec->Decode(part, piece) : held.codec->DecodeAdd(part, piece));
    if (divide) Divide(piece, by);
    if (last) finite_ = finite_ && compression::FirstNonfinite(piece) == piece.size();
  }
  return absl::OkStatus();
}

absl::StatusOr<Reduced> RoundReducer::Finish() {
  const uint32_t contributors = std::max<uint32_t>(1, contributors_);
  Reduced reduced;
  if (const Held lent = std::exchange(lent_, {}); lent.codec != nullptr) {   // the others had nothing to add
    SLUICE_ASSIGN_OR_RETURN(sum_, blocks_->Get(elements_));
    SLUICE_RETURN_IF_ERROR(lent.codec->Decode(lent.payload.bytes(), sum_->values()));
  }
  reduced.sum = std::move(sum_);
  if (exact_ != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(reduced.sum, blocks_->Get(elements_));
    exact_->Finish(reduction_, contributors, reduced.sum->values());
  } else if (reduced.sum == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(reduced.sum, blocks_->GetZeroed(elements_));
  }
  const bool divide = exact_ == nullptr && reduction_ == proto::REDUCTION_MEAN && contributors > 1;
  const std::span<float> sum = reduced.sum->values();
  for (size_t begin = 0; !finished_ && begin < sum.size(); begin += kPieceElements) {
    const std::span<float> piece = sum.subspan(begin, std::min(kPieceElements, sum.size() - begin));
    if (divide) Divide(piece, static_cast<float>(contributors));
    finite_ = finite_ && compression::FirstNonfinite(piece) == piece.size();
  }
  reduced.finite = finite_;
  Discard();
  return reduced;
}

void RoundReducer::Discard() {
  held_.clear();
  sum_.reset();
  lent_ = {};
  if (exact_ != nullptr) exact_pool_->Put(std::move(exact_));
  exact_.reset();
  added_.clear();
  contributors_ = 0;
  finished_ = false;
  finite_ = true;
}

}  // namespace sluice::server
