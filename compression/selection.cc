#include "compression/selection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "compression/encode_blocks.h"
#include "compression/topk_select.h"

namespace sluice::compression {
namespace {

absl::StatusOr<double> ParseRatio(const char* codec, std::string_view parameter) {
  const std::string text(parameter.substr(0, 80));
  double ratio = 0;
  if (text.size() != parameter.size() || !absl::SimpleAtod(text, &ratio) || !(ratio > 0 && ratio <= 1))
    return absl::InvalidArgumentError(absl::StrCat("codec \"", codec, ":", text,
                                                   "\": the ratio must be a number above 0 and at most 1, as in ", codec,
                                                   ":0.01"));
  return ratio;
}

// A threshold that a little more than k elements reach, from a sample: lines of 16 elements, spread evenly. 0 where a
// sample does not pay, or says nothing.
float GuessThreshold(const EncodeInput& input, size_t k) {
  constexpr size_t kLine = 16, kLines = 256, kSample = kLine * kLines;
  const size_t n = input.gradient.size();
  if (n < 16 * kSample || k > n / 8) return 0;
  std::vector<float> sample(kSample);
  for (size_t l = 0; l < kLines; ++l) Compensate(input, (n - kLine) / (kLines - 1) * l, kLine, sample.data() + kLine * l);
  for (float& v : sample) v = std::fabs(v);
  const double expected = static_cast<double>(k) / static_cast<double>(n) * kSample;
  const size_t rank = static_cast<size_t>(expected * 1.2 + 4 * std::sqrt(expected)) + 2;
  std::nth_element(sample.begin(), sample.begin() + static_cast<std::ptrdiff_t>(rank), sample.end(), std::greater<>());
  return sample[rank];
}

// What the next round begins with: what is above all but a few more than k elements now. The fewer these are, the more the k-th
// moves from round to round. Of fewer than k, all are to be seen.
float HintFor(float least, size_t k) {
  if (least == 0) return std::numeric_limits<float>::denorm_min();
  return least * (0.94f - 0.5f / std::sqrt(static_cast<float>(std::max<size_t>(k, 4))));
}

class TopKPicks final : public Selector {
 public:
  TopKPicks(double ratio, std::string name) : ratio_(ratio), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  size_t StateBytes(uint64_t) const override { return sizeof(float); }
  uint64_t MostEntries(uint64_t n) const override { return EntriesFor(ratio_, n); }
  Picked Select(const EncodeInput& input) const override {
    const size_t k = MostEntries(input.gradient.size());
    const float hint = input.state.empty() ? 0.0f : LoadLe<float>(input.state.data());
    float least = 0;
    Picked picked = PickLargest(input, k, hint, &least);
    if (!input.state_out.empty()) StoreLe(input.state_out.data(), HintFor(least, k));
    return picked;
  }

 private:
  const double ratio_;
  const std::string name_;
};

class RandomPicks final : public Selector {
 public:
  RandomPicks(double ratio, std::string name) : ratio_(ratio), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  bool drawn() const override { return true; }
  uint64_t MostEntries(uint64_t n) const override { return EntriesFor(ratio_, n); }
  Picked Select(const EncodeInput& input) const override {
    const size_t n = input.gradient.size(), k = MostEntries(n);
    Picked picked{.indices = std::vector<uint32_t>(k), .values = std::vector<float>(k)};
    DrawnIndices(SelectionKey(input.random), k, n, 0, picked.indices);
    size_t j = 0;
    CompensateInBlocks(input, [&](size_t begin, size_t length, const float* block) {
      for (; j < k && picked.indices[j] < begin + length; ++j) picked.values[j] = block[picked.indices[j] - begin];
    });
    return picked;
  }

 private:
  const double ratio_;
  const std::string name_;
};

class ThresholdPicks final : public Selector {
 public:
  ThresholdPicks(float value, std::string name) : value_(value), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  uint64_t MostEntries(uint64_t n) const override { return n; }
  Picked Select(const EncodeInput& input) const override {
    ReachList list;
    CompensateInBlocks(input, [&](size_t begin, size_t length, const float* block) {
      list.Append(block, begin, length, std::bit_cast<uint32_t>(value_));
    });
    return list.Take();
  }

 private:
  const float value_;
  const std::string name_;
};

}  // namespace

uint64_t EntriesFor(double ratio, uint64_t n) {
  if (n == 0) return 0;
  return std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(ratio * static_cast<double>(n))), 1, n);
}

Picked PickLargest(const EncodeInput& input, size_t k, float hint, float* least) {
  // From the hint, then from a sample, then from nothing: each bound but the last may be too high.
  const bool known = hint > 0 && std::isfinite(hint);
  for (int attempt = known ? 0 : 1;; ++attempt) {
    const float bound = attempt == 0 ? hint : attempt == 1 ? GuessThreshold(input, k) : 0.0f;
    TopKSelector selector(k, std::max(std::bit_cast<uint32_t>(bound), kAnyMagnitude));
    CompensateInBlocks(input, [&](size_t begin, size_t length, const float* block) { selector.Gather(block, begin, length); });
    if (!selector.Finish()) continue;   // which leaves the new residual as it will be again
    *least = std::bit_cast<float>(selector.least());
    return selector.Take();
  }
}

void StoreRest(const EncodeInput& input, std::span<const uint32_t> indices, std::span<const float> rest) {
  constexpr size_t kAhead = 16;   // the new residual went past the cache
  if (input.residual_out.empty()) return;
  float* p = input.residual_out.data();
  for (size_t j = 0; j < indices.size(); ++j) {
    if (j + kAhead < indices.size()) __builtin_prefetch(p + indices[j + kAhead], 1);
    p[indices[j]] = rest[j];
  }
}

uint64_t SelectionKey(const RandomKey& random) {
  const PhiloxBlock block =
      Philox4x32({static_cast<uint32_t>(random.first_element), static_cast<uint32_t>(random.first_element >> 32), 0, 1},
                 DrawKey(random, DrawPurpose::kSelection));
  return block[0] | uint64_t{block[1]} << 32;
}

void DrawnIndices(uint64_t key, uint64_t count, uint64_t n, uint64_t first, std::span<uint32_t> out) {
  if (out.empty()) return;
  FillDraws({static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}, first, out);
  uint64_t begin = first * n / count;
  for (size_t j = 0; j < out.size(); ++j) {
    const uint64_t end = (first + j + 1) * n / count;
    out[j] = static_cast<uint32_t>(begin + (out[j] * (end - begin) >> 32));
    begin = end;
  }
}

absl::StatusOr<std::unique_ptr<Selector>> MakeTopKSelector(std::string_view parameter) {
  SLUICE_ASSIGN_OR_RETURN(const double ratio, ParseRatio("topk", parameter));
  return std::make_unique<TopKPicks>(ratio, absl::StrCat("topk:", std::string(parameter)));
}

absl::StatusOr<std::unique_ptr<Selector>> MakeRandomSelector(std::string_view parameter) {
  SLUICE_ASSIGN_OR_RETURN(const double ratio, ParseRatio("randk", parameter));
  return std::make_unique<RandomPicks>(ratio, absl::StrCat("randk:", std::string(parameter)));
}

absl::StatusOr<std::unique_ptr<Selector>> MakeThresholdSelector(std::string_view parameter) {
  constexpr std::string_view kAuto = "auto:";
  if (parameter.substr(0, kAuto.size()) == kAuto) {
    SLUICE_ASSIGN_OR_RETURN(const double ratio, ParseRatio("threshold:auto", parameter.substr(kAuto.size())));
    return MakeAdaptiveThreshold(ratio, absl::StrCat("threshold:", std::string(parameter)));
  }
  const std::string text(parameter.substr(0, 80));
  float value = 0;
  if (text.size() != parameter.size() || !absl::SimpleAtof(text, &value) || !(value > 0) || std::isinf(value))
    return absl::InvalidArgumentError(absl::StrCat("codec \"threshold:", text,
                                                   "\": the value must be a number above 0, as in threshold:0.001"));
  return std::make_unique<ThresholdPicks>(value, absl::StrCat("threshold:", text));
}

}  // namespace sluice::compression
