#include "worker/exchange/tensor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/policy.h"

namespace sluice::worker {

absl::StatusOr<std::unique_ptr<ExchangedTensor>> ExchangedTensor::Create(const proto::TensorInfo& info, const proto::JobConfig& job,
                                                                         uint32_t rank, SlabAllocator* memory) {
  const uint32_t ranks = job.workers();
  if ((info.exchange() != proto::EXCHANGE_ALLREDUCE && info.exchange() != proto::EXCHANGE_SHARDED) || info.spec().has_table() ||
      rank >= ranks) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", info.spec().name(), ": exchange ", static_cast<int>(info.exchange()),
                                                   " of the plan is not known here; use one release everywhere"));
  }
  std::unique_ptr<ExchangedTensor> tensor(new ExchangedTensor);
  tensor->id_ = info.tensor();
  tensor->name_ = info.spec().name();
  tensor->priority_ = info.spec().priority();
  tensor->sharded_ = info.exchange() == proto::EXCHANGE_SHARDED;
  tensor->elements_ = tensor->padded_ = tensor->block_ = tensor->own_count_ = compression::ElementsOf(info.spec());
  if (tensor->sharded_) {
    const size_t even = (tensor->elements_ + ranks - 1) / ranks;
    tensor->block_ = (even + kBlockMultiple - 1) / kBlockMultiple * kBlockMultiple;
    tensor->padded_ = tensor->block_ * ranks;
    tensor->own_block_ = tensor->block_ * rank;
    tensor->own_begin_ = std::min(tensor->own_block_, tensor->elements_);
    tensor->own_count_ = std::min(tensor->own_block_ + tensor->block_, tensor->elements_) - tensor->own_begin_;
  }
  SLUICE_ASSIGN_OR_RETURN(const Optimizer optimizer, Optimizer::Create(job.optimizer(), info.spec().kind()));
  tensor->replies_sum_ = job.reply() == proto::REPLY_AGGREGATE || (job.reply() == proto::REPLY_DEFAULT && optimizer.none());
  tensor->optimizer_ = optimizer;
  tensor->state_.assign(optimizer.StateFloats(tensor->own_count_), 0.0f);
  SLUICE_ASSIGN_OR_RETURN(tensor->codec_, compression::CodecFor(job, info.spec()));
  if (tensor->codec_ != "none") {
    SLUICE_ASSIGN_OR_RETURN(const bool residual, compression::NeedsResidual(job, tensor->codec_));
    if (residual) tensor->residual_.assign(tensor->padded_, 0.0f);
  }
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> values, memory->Allocate(tensor->padded_ * sizeof(float)));
  tensor->values_ = std::shared_ptr<float>(values, reinterpret_cast<float*>(values.get()));
  std::ranges::fill(tensor->padded_values(), 0.0f);
  return tensor;
}

void ExchangedTensor::Update(std::span<const float> sum, size_t first, float rate) {
  optimizer_->Apply(own_values(), sum, state_, {.step = updates_ + 1, .rate = rate}, first);
}

void ExchangedTensor::EndStep(bool skipped) {
  ++next_round_;
  ++steps_;
  if (!skipped) ++updates_;
}

}  // namespace sluice::worker
