// One tensor that workers exchange among themselves: parameters, optimizer state, residual and rounds of this rank. Pure.
//
//   all-reduce   every rank has all of the optimizer's state and does the whole update. The sums have equal bits on all ranks,
//                and so have the parameters after it.
//   sharded      rank r owns block r: it gets the block's sum, has the optimizer state of the block alone, updates it, and all
//                gather the blocks. Blocks are of equal size, a multiple of kBlockMultiple elements; what lies beyond the
//                tensor's end is zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/optimizer/optimizer.h"
#include "proto/plan.pb.h"
#include "worker/slab.h"

namespace sluice::worker {

class ExchangedTensor {
 public:
  static constexpr uint64_t kBlockMultiple = 16;

  // INVALID_ARGUMENT: the plan's entry or the job's configuration cannot be; RESOURCE_EXHAUSTED: no memory.
  static absl::StatusOr<std::unique_ptr<ExchangedTensor>> Create(const proto::TensorInfo& info, const proto::JobConfig& job,
                                                                 uint32_t rank, SlabAllocator* memory);

  uint32_t id() const { return id_; }
  const std::string& name() const { return name_; }
  int32_t priority() const { return priority_; }
  bool sharded() const { return sharded_; }
  size_t elements() const { return elements_; }
  size_t padded() const { return padded_; }          // of all blocks; all-reduce: elements()
  const std::string& codec() const { return codec_; }
  std::span<float> residual() { return residual_; }  // of padded() elements; empty: no error feedback
  // The parameters; without an optimizer, the last aggregate. The second one with what pads the last blocks.
  std::span<float> values() { return {values_.get(), elements_}; }
  std::span<float> padded_values() { return {values_.get(), padded_}; }
  // What this rank updates: its block, without padding (it may be empty), or everything.
  std::span<float> own_values() { return values().subspan(own_begin_, own_count_); }
  // Its block, padding included.
  std::span<float> own_block() { return padded_values().subspan(own_block_, block_); }
  size_t block() const { return block_; }

  uint64_t next_round() const { return next_round_; }
  uint64_t steps() const { return steps_; }          // gradient rounds: where the schedule of rates is
  // Whether what comes back is the aggregate, and `out` has it after an all-reduce already.
  bool replies_sum() const { return replies_sum_; }

  // --- a gradient round, when the sum is there
  // Elements [first, first + count) of own_values(), of which `sum` is the mean or sum. All of them, each once, then EndStep.
  void Update(std::span<const float> sum, size_t first, float rate);
  void EndStep(bool skipped);
  void EndBroadcast() { ++next_round_; }

 private:
  ExchangedTensor() = default;

  uint32_t id_ = 0;
  std::string name_, codec_;
  int32_t priority_ = 0;
  bool sharded_ = false, replies_sum_ = false;
  size_t elements_ = 0, padded_ = 0, block_ = 0, own_block_ = 0, own_begin_ = 0, own_count_ = 0;
  std::optional<Optimizer> optimizer_;
  std::shared_ptr<float> values_;
  std::vector<float> state_, residual_;
  uint64_t next_round_ = 0, steps_ = 0;
  uint64_t updates_ = 0;   // steps that were not skipped
};

}  // namespace sluice::worker
