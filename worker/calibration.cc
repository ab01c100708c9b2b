#include "worker/calibration.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::worker {

absl::StatusOr<std::unique_ptr<Calibration>> Calibration::Create(const proto::DataConfig& config,
                                                                  const proto::JobConfig& job) {
  if (job.momentum_correction() > 0 || job.local_clip_norm() > 0)
    return absl::InvalidArgumentError("data.calibration_file counts gradients as the trainer pushes them; with "
                                      "job.momentum_correction or job.local_clip_norm something else is encoded: calibrate without "
                                      "them, or take int8 with its own ranges");
  const std::string codec = config.calibration_codec().empty() ? "int8" : config.calibration_codec();
  if (codec != "int8" && codec != "int4")
    return absl::InvalidArgumentError(absl::StrCat("data.calibration_codec is ", codec, "; int8 and int4 have static ranges"));
  const double percentile = config.calibration_percentile();
  if (!(percentile >= 0 && percentile <= 100))
    return absl::InvalidArgumentError(absl::StrCat("data.calibration_percentile is ", percentile,
                                                   "; it lies between 0 (least error) and 100"));
  return std::unique_ptr<Calibration>(new Calibration(codec, codec == "int8" ? 127 : 7, percentile / 100));
}

void Calibration::Add(uint32_t tensor, std::span<const float> gradient) { tensors_[tensor].Add(gradient); }

std::string Calibration::RuleFor(uint32_t tensor, const std::string& name) const {
  const auto it = tensors_.find(tensor);
  if (it == tensors_.end()) return "";
  const double range = share_ > 0 ? it->second.Percentile(share_) : it->second.LeastError(levels_);
  if (range == 0) return "";
  // What lies outside of what a range may be is far from any gradient.
  return absl::StrFormat("%s=%s:static:%.9g;", name, codec_, std::clamp(range, 1e-29, 1e29));
}

}  // namespace sluice::worker
