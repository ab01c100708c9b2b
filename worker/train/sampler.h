// Which examples a worker trains on in each step: a permutation of the data set for each epoch, drawn from (seed,
// epoch) alone, cut into global batches, and each global batch into equal parts by rank. So all workers agree without a
// word, each example comes once an epoch, and a step's examples do not depend on what happened before it (a restarted
// worker finds its place by the number of the step). What does not fill a global batch is left out of this epoch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::worker {

class Sampler {
 public:
  // INVALID_ARGUMENT if the data does not fill one global batch.
  static absl::StatusOr<Sampler> Create(uint64_t examples, uint32_t batch, uint32_t workers, uint32_t rank,
                                        uint64_t seed);

  uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  uint64_t EpochOf(uint64_t step) const { return step / steps_per_epoch_; }
  // The examples of this worker in step `step`, counted from the beginning of the training. Valid until the next call.
  std::span<const uint32_t> Batch(uint64_t step);

 private:
  Sampler() = default;
  void Shuffle(uint64_t epoch);

  uint32_t batch_ = 0, workers_ = 0, rank_ = 0;
  uint64_t seed_ = 0;
  uint64_t steps_per_epoch_ = 0;
  uint64_t shuffled_epoch_ = UINT64_MAX;
  std::vector<uint32_t> order_;
};

}  // namespace sluice::worker
