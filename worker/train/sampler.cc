#include "worker/train/sampler.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/philox.h"

namespace sluice::worker {
namespace {

constexpr uint64_t kShuffleStream = uint64_t{1} << 32;  // apart from the streams of initial values

}  // namespace

absl::StatusOr<Sampler> Sampler::Create(uint64_t examples, uint32_t batch, uint32_t workers, uint32_t rank,
                                        uint64_t seed) {
  if (batch == 0 || workers == 0 || rank >= workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch ", batch, ", workers ", workers, ", rank ", rank, " cannot be"));
  }
  const uint64_t global = uint64_t{batch} * workers;
  if (examples < global || examples > UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("the training data has ", examples, " examples; a batch of ", batch,
                                                   " on each of ", workers, " workers needs ", global, " to ",
                                                   UINT32_MAX, ": choose a smaller --batch"));
  }
  Sampler sampler;
  sampler.batch_ = batch;
  sampler.workers_ = workers;
  sampler.rank_ = rank;
  sampler.seed_ = seed;
  sampler.steps_per_epoch_ = examples / global;
  sampler.order_.resize(examples);
  return sampler;
}

// Fisher-Yates from the identity, so that it depends on seed and epoch only.
void Sampler::Shuffle(uint64_t epoch) {
  std::iota(order_.begin(), order_.end(), 0u);
  PhiloxRandom random(seed_, kShuffleStream + epoch);
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.Below(static_cast<uint32_t>(i))]);
  shuffled_epoch_ = epoch;
}

std::span<const uint32_t> Sampler::Batch(uint64_t step) {
  const uint64_t epoch = step / steps_per_epoch_;
  if (epoch != shuffled_epoch_) Shuffle(epoch);
  const uint64_t begin = (step % steps_per_epoch_) * batch_ * workers_ + uint64_t{rank_} * batch_;
  return std::span<const uint32_t>(order_).subspan(begin, batch_);
}

}  // namespace sluice::worker
