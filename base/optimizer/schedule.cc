#include "base/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/config_schema.h"
#include "base/optimizer/power.h"

namespace sluice {

absl::StatusOr<Schedule> Schedule::Create(const proto::OptimizerConfig& config) {
  Schedule schedule;
  if (config.kind().empty() || config.kind() == "none") return schedule;

  const std::vector<std::string> names = {"constant", "step", "cosine", "linear"};
  const std::string name = config.schedule().empty() ? "constant" : config.schedule();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    return absl::InvalidArgumentError(absl::StrCat("job.optimizer.schedule: no schedule \"", name.substr(0, 80),
                                                   "\" (constant, step, cosine, linear); the nearest is \"",
                                                   Nearest(name, names), "\""));
  schedule.shape_ = static_cast<Shape>(found - names.begin());

  schedule.rate_ = config.rate() == 0 ? 0.01 : config.rate();
  schedule.final_rate_ = config.final_rate();
  for (const auto& [field, rate] : {std::pair{"rate", schedule.rate_}, std::pair{"final_rate", schedule.final_rate_}})
    if (!(rate >= 0) || static_cast<float>(rate) > 1e30f)
      return absl::InvalidArgumentError(
          absl::StrCat("job.optimizer.", field, " is ", rate, "; it must be a number from 0 to 1e30"));

  schedule.warmup_ = config.warmup_rounds();
  if (schedule.shape_ == Shape::kStep) {
    schedule.step_factor_ = config.step_factor() == 0 ? 0.1 : config.step_factor();
    schedule.step_rounds_ = config.step_rounds();
    if (schedule.step_rounds_ == 0)
      return absl::InvalidArgumentError("job.optimizer.step_rounds is 0; schedule \"step\" needs at least 1");
    if (!(schedule.step_factor_ > 0 && schedule.step_factor_ <= 1))
      return absl::InvalidArgumentError(absl::StrCat("job.optimizer.step_factor is ", schedule.step_factor_,
                                                     "; it must be above 0 and at most 1"));
  }
  if (schedule.shape_ == Shape::kCosine || schedule.shape_ == Shape::kLinear) {
    if (config.total_rounds() <= schedule.warmup_)
      return absl::InvalidArgumentError(absl::StrCat("job.optimizer.total_rounds is ", config.total_rounds(),
                                                     "; schedule \"", name, "\" needs more than warmup_rounds (",
                                                     schedule.warmup_, ")"));
    schedule.length_ = config.total_rounds() - schedule.warmup_;
  }
  return schedule;
}

float Schedule::Rate(uint64_t round) const {
  if (round < warmup_)
    return static_cast<float>(rate_ * (static_cast<double>(round) + 1.0) / static_cast<double>(warmup_));
  const uint64_t i = round - warmup_;
  const double part = length_ == 0 ? 0.0 : static_cast<double>(std::min(i, length_)) / static_cast<double>(length_);
  switch (shape_) {
    case Shape::kConstant: break;
    case Shape::kStep: return static_cast<float>(rate_ * PowInt(step_factor_, i / step_rounds_));
    case Shape::kLinear:
      return static_cast<float>(part == 1.0 ? final_rate_ : rate_ + (final_rate_ - rate_) * part);
    case Shape::kCosine:
      return static_cast<float>(final_rate_ + (rate_ - final_rate_) * (0.5 * (1.0 + CosPi(part))));
  }
  return static_cast<float>(rate_);
}

}  // namespace sluice
