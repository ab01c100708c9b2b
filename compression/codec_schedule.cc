#include "compression/codec_schedule.h"

#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "compression/momentum.h"

namespace sluice::compression {
namespace {

constexpr int kWarmupStages = 5;
constexpr double kWarmupRatio = 0.25;
constexpr size_t kMaxChosenStages = 4;   // a worker that starts again goes back a round or two

// Where the digits of a ratio lie in a codec's name.
std::optional<std::pair<size_t, size_t>> RatioPlace(std::string_view codec) {
  const std::string_view first = codec.substr(0, codec.find('+'));
  for (const std::string_view stem : {"topk:", "randk:", "threshold:auto:"})
    if (first.substr(0, stem.size()) == stem) return std::make_pair(stem.size(), first.size() - stem.size());
  return std::nullopt;
}

}  // namespace

std::optional<double> RatioOf(std::string_view codec) {
  const auto place = RatioPlace(codec);
  double ratio = 0;
  if (!place.has_value() || !absl::SimpleAtod(absl::string_view(codec.data() + place->first, place->second), &ratio))
    return std::nullopt;
  return ratio;
}

std::string WithRatio(std::string_view codec, double ratio) {
  const auto place = RatioPlace(codec);
  if (!place.has_value()) return std::string(codec);
  return absl::StrCat(std::string(codec.substr(0, place->first)), absl::StrFormat("%.4g", ratio),
                      std::string(codec.substr(place->first + place->second)));
}

absl::StatusOr<CodecSchedule> CodecSchedule::Make(std::string_view codec, const ScheduleOptions& options) {
  CodecSchedule schedule;
  schedule.options_ = options;
  if (codec == "auto") {
    schedule.chosen_ = true;
    SLUICE_RETURN_IF_ERROR(schedule.Append(0, "none"));
    return schedule;
  }
  const std::optional<double> ratio = RatioOf(codec);
  const int stages = options.warmup_rounds > 0 && ratio.has_value() && *ratio < kWarmupRatio ? kWarmupStages : 0;
  for (int stage = 0; stage < stages; ++stage) {
    const double share = static_cast<double>(stage) / kWarmupStages;
    const uint64_t from = options.warmup_rounds / kWarmupStages * static_cast<uint64_t>(stage) +
                          options.warmup_rounds % kWarmupStages * static_cast<uint64_t>(stage) / kWarmupStages;
    SLUICE_RETURN_IF_ERROR(schedule.Append(from, WithRatio(codec, kWarmupRatio * std::pow(*ratio / kWarmupRatio, share))));
  }
  SLUICE_RETURN_IF_ERROR(schedule.Append(stages > 0 ? options.warmup_rounds : 0, codec));
  return schedule;
}

absl::Status CodecSchedule::Append(uint64_t from, std::string_view name) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec, MakeCodec(name, options_.columns));
  if (options_.momentum > 0) codec = MakeMomentumCorrected(std::move(codec), static_cast<float>(options_.momentum));
  if (!stages_.empty() && stages_.back().from == from) stages_.pop_back();   // a warm-up of fewer rounds than stages
  stages_.push_back({from, std::move(codec)});
  return absl::OkStatus();
}

const Codec& CodecSchedule::At(uint64_t round) const {
  size_t at = stages_.size() - 1;
  while (at > 0 && stages_[at].from > round) --at;
  return *stages_[at].codec;
}

absl::Status CodecSchedule::Change(uint64_t from_round, std::string_view codec) {
  SLUICE_RETURN_IF_ERROR(MakeCodec(codec).status());   // nothing changes if it is unknown
  while (!stages_.empty() && stages_.back().from >= from_round) stages_.pop_back();
  if (stages_.size() == kMaxChosenStages) stages_.erase(stages_.begin());
  return Append(stages_.empty() ? 0 : from_round, codec);
}

std::string CodecSchedule::ToString() const {
  std::string text = stages_.front().codec->name();
  for (size_t i = 1; i < stages_.size(); ++i)
    absl::StrAppend(&text, ", from round ", stages_[i].from, " ", stages_[i].codec->name());
  return text;
}

}  // namespace sluice::compression
