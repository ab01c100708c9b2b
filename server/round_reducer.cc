#include "server/round_reducer.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "server/vector_ops.h"

namespace sluice::server {
namespace {

constexpr uint64_t kKeptExactBytes = 256 << 20;

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
                               uint32_t floor) {
  if (order_ != proto::ORDER_RANK) return Consume(rank, Held{codec, std::move(payload)});
  held_.emplace(rank, Held{codec, std::move(payload)});
  return Raise(floor);
}

absl::Status RoundReducer::Raise(uint32_t floor) {
  while (!held_.empty() && held_.begin()->first < floor) {
    const uint32_t rank = held_.begin()->first;
    const Held held = std::move(held_.begin()->second);   // its memory goes back to the pool at the end of this turn
    held_.erase(held_.begin());
    SLUICE_RETURN_IF_ERROR(Consume(rank, held));
  }
  return absl::OkStatus();
}

absl::Status RoundReducer::Consume(uint32_t rank, const Held& held) {
  if (held.codec != nullptr) {
    if (order_ == proto::ORDER_EXACT) {
      if (exact_ == nullptr) exact_ = exact_pool_->Get(elements_);
      SLUICE_RETURN_IF_ERROR(exact_->Add(*held.codec, held.payload.bytes()));
    } else if (sum_ == nullptr) {
      SLUICE_ASSIGN_OR_RETURN(BlockPtr sum, blocks_->Get(elements_));
      SLUICE_RETURN_IF_ERROR(held.codec->Decode(held.payload.bytes(), sum->values()));
      sum_ = std::move(sum);
    } else {
      SLUICE_RETURN_IF_ERROR(held.codec->DecodeAdd(held.payload.bytes(), sum_->values()));
    }
  }
  added_.push_back(rank);
  return absl::OkStatus();
}

absl::StatusOr<BlockPtr> RoundReducer::Finish(proto::Reduction reduction) {
  const uint32_t contributors = std::max<uint32_t>(1, static_cast<uint32_t>(added_.size()));
  BlockPtr result = std::move(sum_);
  if (exact_ != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(result, blocks_->Get(elements_));
    exact_->Finish(reduction, contributors, result->values());
  } else if (result == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(result, blocks_->GetZeroed(elements_));
  } else if (reduction == proto::REDUCTION_MEAN && contributors > 1) {
    Divide(result->values(), static_cast<float>(contributors));
  }
  Discard();
  return result;
}

void RoundReducer::Discard() {
  held_.clear();
  sum_.reset();
  if (exact_ != nullptr) exact_pool_->Put(std::move(exact_));
  exact_.reset();
  added_.clear();
}

}  // namespace sluice::server
