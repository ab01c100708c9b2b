#include "worker/train/share_sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/philox.h"

namespace sluice::worker {

absl::StatusOr<ShareSampler> ShareSampler::Create(uint64_t share, uint64_t examples, uint32_t batch, uint32_t rank,
                                                  uint64_t seed) {
  if (batch == 0) return absl::InvalidArgumentError("a batch has one example at least");
  if (examples == 0) {
    return absl::InvalidArgumentError(
        "the training data has fewer examples than there are workers: start fewer, or train on more");
  }
  if (share > UINT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat(share, " examples are too many for one worker, which takes 2^32 - 1: start more workers"));
  }
  ShareSampler sampler;
  sampler.batch_ = static_cast<uint32_t>(std::min<uint64_t>(batch, examples));
  sampler.rank_ = rank;
  sampler.seed_ = seed;
  sampler.steps_per_epoch_ = examples / sampler.batch_;
  sampler.order_.resize(share);
  return sampler;
}

// Fisher-Yates from the identity, so that it depends on seed, rank and epoch only.
void ShareSampler::Shuffle(uint64_t epoch) {
  std::iota(order_.begin(), order_.end(), 0u);
  PhiloxRandom random(seed_, uint64_t{1} << 63 | uint64_t{rank_} << 40 | epoch);
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.Below(static_cast<uint32_t>(i))]);
  shuffled_epoch_ = epoch;
}

std::span<const uint32_t> ShareSampler::Batch(uint64_t step) {
  const uint64_t epoch = step / steps_per_epoch_;
  if (epoch != shuffled_epoch_) Shuffle(epoch);
  const uint64_t begin = std::min<uint64_t>((step % steps_per_epoch_) * batch_, order_.size());
  return std::span<const uint32_t>(order_).subspan(begin, std::min<uint64_t>(batch_, order_.size() - begin));
}

}  // namespace sluice::worker
