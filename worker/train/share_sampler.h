// Which examples of its share a worker trains on in each step, where every worker has a share of its own in memory.
//
// An epoch is a permutation of the share, drawn from (seed, rank, epoch) alone, cut into batches. All workers make the
// same number of steps, that of `examples`, which all of them know; a share that is a little smaller (lines were
// malformed) leaves the last batches of an epoch short or empty, one that is larger leaves some of it out of this
// epoch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::worker {

class ShareSampler {
 public:
  // share: this worker's examples; examples: those that every worker's epoch is made for. A batch is at most `batch`,
  // and `examples` if that is less. INVALID_ARGUMENT if there is none.
  static absl::StatusOr<ShareSampler> Create(uint64_t share, uint64_t examples, uint32_t batch, uint32_t rank,
                                             uint64_t seed);

  uint32_t batch() const { return batch_; }
  uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  // Of step `step`, counted from the beginning of the training. Valid until the next call.
  std::span<const uint32_t> Batch(uint64_t step);

 private:
  ShareSampler() = default;
  void Shuffle(uint64_t epoch);

  uint32_t batch_ = 0, rank_ = 0;
  uint64_t seed_ = 0, steps_per_epoch_ = 0;
  uint64_t shuffled_epoch_ = UINT64_MAX;
  std::vector<uint32_t> order_;
};

}  // namespace sluice::worker
