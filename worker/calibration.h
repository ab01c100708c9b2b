// The calibration pass: magnitudes of this worker's gradients, and the rules that follow from them (data.calibration_file).
// docs/policy.md, "Calibration". Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "compression/calibrate.h"
#include "proto/config.pb.h"

namespace sluice::worker {

class Calibration {
 public:
  // INVALID_ARGUMENT: calibration_codec or calibration_percentile is none, or the job sends something else than gradients.
  static absl::StatusOr<std::unique_ptr<Calibration>> Create(const proto::DataConfig& config, const proto::JobConfig& job);

  // One round in ten is looked at.
  bool Wanted(uint64_t round) const { return round % 10 == 1; }
  void Add(uint32_t tensor, std::span<const float> gradient);

  // "layer0.weight=int8:static:0.03125;" for job.codec_rules; "" if nothing was seen of the tensor but zeros.
  std::string RuleFor(uint32_t tensor, const std::string& name) const;

 private:
  Calibration(std::string codec, int levels, double share) : codec_(std::move(codec)), levels_(levels), share_(share) {}

  const std::string codec_;
  const int levels_;
  const double share_;   // 0: least error
  std::map<uint32_t, compression::MagnitudeHistogram> tensors_;
};

}  // namespace sluice::worker
