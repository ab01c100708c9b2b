#include "compression/cuda/choice.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "compression/selection.h"

namespace sluice::compression::cuda {
namespace {

struct NamedFormat {
  std::string_view name;
  Format format;
};

constexpr NamedFormat kFormats[] = {
    {"none", Format::kNone},   {"fp16", Format::kFp16},     {"bf16", Format::kBf16},
    {"int8", Format::kInt8},   {"int4", Format::kInt4},     {"int8:stochastic", Format::kInt8Stochastic},
    {"mxfp8", Format::kMxfp8}, {"onebit", Format::kOneBit}, {"int4:stochastic", Format::kInt4Stochastic}};

std::optional<Format> FormatOf(std::string_view name) {
  for (const NamedFormat& known : kFormats)
    if (known.name == name) return known.format;
  return std::nullopt;
}

absl::string_view Text(std::string_view text) { return {text.data(), text.size()}; }

// What follows `stem` in `name`, if it begins so.
std::optional<std::string_view> After(std::string_view name, std::string_view stem) {
  if (!name.starts_with(stem)) return std::nullopt;
  return name.substr(stem.size());
}

bool Select(std::string_view picks, Choice* choice) {
  choice->kind = Choice::Kind::kSparse;
  if (const auto ratio = After(picks, "topk:")) {
    choice->selection = Selection::kTopK;
    return absl::SimpleAtod(Text(*ratio), &choice->ratio);
  }
  if (const auto ratio = After(picks, "randk:")) {
    choice->selection = Selection::kRandom;
    return absl::SimpleAtod(Text(*ratio), &choice->ratio);
  }
  if (const auto ratio = After(picks, "threshold:auto:")) {
    choice->selection = Selection::kAdaptive;
    return absl::SimpleAtod(Text(*ratio), &choice->ratio);
  }
  if (const auto value = After(picks, "threshold:")) {
    choice->selection = Selection::kThreshold;
    return absl::SimpleAtof(Text(*value), &choice->threshold);
  }
  return false;
}

}  // namespace

absl::StatusOr<Choice> ChooseKernels(std::string_view codec) {
  Choice choice;
  if (const std::optional<Format> format = FormatOf(codec)) {
    choice.format = *format;
    return choice;
  }
  if (codec == "terngrad") {
    choice.kind = Choice::Kind::kQsgd;
    choice.levels = 1;
    return choice;
  }
  if (const auto levels = After(codec, "qsgd:"); levels && absl::SimpleAtoi(Text(*levels), &choice.levels)) {
    choice.kind = Choice::Kind::kQsgd;
    return choice;
  }
  const size_t plus = std::min(codec.find('+'), codec.size());
  const bool chain = plus < codec.size();
  const std::optional<Format> values = chain ? FormatOf(codec.substr(plus + 1)) : Format::kFp16;
  if (values.has_value() && Select(codec.substr(0, plus), &choice)) {
    if (choice.selection == Selection::kTopK && !chain) choice.kind = Choice::Kind::kTopK;
    choice.format = *values;
    return choice;
  }
  return absl::UnimplementedError(
      absl::StrCat("codec ", Text(codec),
                   " is not encoded in GPU memory: push this tensor from host memory, or name another "
                   "codec for it (job.codec_rules; docs/gpu.md lists those that are)"));
}

uint64_t EntriesWanted(const Choice& choice, uint64_t n) {
  return choice.selection == Selection::kThreshold ? 0 : EntriesFor(choice.ratio, n);
}

uint64_t MostEntries(const Choice& choice, uint64_t n) {
  const uint64_t k = EntriesWanted(choice, n);
  if (choice.selection == Selection::kThreshold) return n;
  return choice.selection == Selection::kAdaptive ? std::min(n, 2 * k) : k;
}

}  // namespace sluice::compression::cuda
