#include "compression/quantizer.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace sluice::compression {
namespace {

constexpr absl::string_view kStatic = "static:";
// Scales and their inverses are normal numbers, and sums of 2^16 largest values finite.
constexpr double kLeastRange = 0x1p-100, kLargestRange = 0x1p100;

}  // namespace

absl::StatusOr<Quantizer> Quantizer::Parse(std::string_view codec_name, std::string_view parameter_text, Levels levels) {
  const std::string codec(codec_name), parameter(parameter_text);
  Quantizer quantizer;
  quantizer.levels_ = levels;
  quantizer.name_ = parameter.empty() ? codec : absl::StrCat(codec, ":", parameter);
  if (parameter.empty()) return quantizer;
  quantizer.stochastic_ = parameter == "stochastic";
  if (quantizer.stochastic_) return quantizer;
  const std::string shown = absl::StrCat("codec \"", codec, ":", parameter.substr(0, 80), "\": ");
  absl::string_view number = parameter;
  if (!absl::ConsumePrefix(&number, kStatic))
    return absl::InvalidArgumentError(absl::StrCat(shown, "the parameter is the rounding, ", codec, ":stochastic, or one range for "
                                                   "all, ", codec, ":static:<range>"));
  double range = 0;
  if (!absl::SimpleAtod(number, &range) || !(range >= kLeastRange && range <= kLargestRange))
    return absl::InvalidArgumentError(absl::StrCat(shown, "the range is a number from ", kLeastRange, " to ", kLargestRange,
                                                   ", the largest magnitude that is not held to it"));
  int exponent = static_cast<int>(std::floor(std::log2(range / static_cast<double>(levels.count)))) - 1;
  while (std::ldexp(static_cast<double>(levels.count), exponent) < range) ++exponent;
  quantizer.scale_ = static_cast<float>(std::ldexp(1.0, exponent));
  return quantizer;
}

}  // namespace sluice::compression
