// What a job's configuration means for an owner of its partitions: defaults filled in, combinations that cannot be
// refused with the reason. Constant for the life of the job.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "compression/codec.h"
#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "base/optimizer/optimizer.h"
#include "base/optimizer/schedule.h"

namespace sluice::server {

class Semantics {
 public:
  // INVALID_ARGUMENT and FAILED_PRECONDITION name the keys that do not go together, and why.
  static absl::StatusOr<std::unique_ptr<Semantics>> Create(const proto::JobConfig& config);

  proto::Mode mode = proto::MODE_BSP;
  uint32_t staleness = 4;
  proto::Order order = proto::ORDER_RANK;
  proto::Reduction reduction = proto::REDUCTION_MEAN;
  proto::Reply reply = proto::REPLY_AGGREGATE;   // never REPLY_DEFAULT
  bool skip_nonfinite = false;                   // policy "skip"
  double clip_norm = 0;
  bool has_optimizer = false;
  bool layerwise = false;
  uint32_t backup_workers = 0;                   // so many of the counted ranks need not be in a gradient round
  TimeNs round_deadline = 0;                     // and nobody need, so long after its first push; 0 = none
  bool leaves_out() const { return backup_workers > 0 || round_deadline > 0; }
  proto::JobConfig config;

  // Clipping, skipping and layer-wise optimizers: a step is decided by the coordinator.
  bool needs_verdict() const { return clip_norm > 0 || skip_nonfinite || layerwise; }
  bool async() const { return mode != proto::MODE_BSP; }

  const Optimizer& optimizer(proto::TensorKind kind) const {
    return optimizers_[kind <= proto::TENSOR_NORM ? static_cast<size_t>(kind) : 0];
  }
  uint32_t RateBits(uint64_t step) const;   // 0 without an optimizer
  // For REPLY_CHANGE; null: this tensor's replies are exempt and travel whole, as fp32.
  absl::StatusOr<std::unique_ptr<compression::Codec>> ReplyCodec(const proto::TensorSpec& tensor) const;

 private:
  explicit Semantics(Schedule schedule) : schedule_(std::move(schedule)) {}

  Schedule schedule_;
  std::vector<Optimizer> optimizers_;   // by TensorKind
};

}  // namespace sluice::server
