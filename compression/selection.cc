#include "compression/selection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "compression/bit_planes.h"
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
// sample does not pay, or says nothing. The selection is exact whatever it is; a good one saves it a histogram of all.
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

class TopKPicks final : public Selector {
 public:
  TopKPicks(double ratio, std::string name) : ratio_(ratio), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  uint64_t MostEntries(uint64_t n) const override { return EntriesFor(ratio_, n); }
  std::vector<uint32_t> Select(const EncodeInput& input, float* p) const override {
    const size_t n = input.gradient.size(), k = MostEntries(n);
    const float guess = GuessThreshold(input, k);
    if (guess > 0) {
      const size_t most = std::max(8 * k, n / 64);
      std::vector<uint32_t> candidates;
      CompensateAll(input, p, [&](size_t begin, size_t length, const float* block) {
        if (candidates.size() <= most) AppendReaching(block, begin, length, guess, &candidates);
      });
      if (candidates.size() >= k && candidates.size() <= most)
        return TopKSelector::SelectAmong({p, n}, std::move(candidates), k);
      return LargestOf({p, n}, k);
    }
    TopKSelector selector;
    CompensateAll(input, p, [&](size_t, size_t length, const float* block) { selector.Count({block, length}); });
    return selector.Select({p, n}, k);
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
  std::vector<uint32_t> Select(const EncodeInput& input, float* p) const override {
    CompensateAll(input, p, [](size_t, size_t, const float*) {});
    const size_t n = input.gradient.size();
    std::vector<uint32_t> indices(MostEntries(n));
    DrawnIndices(SelectionKey(input.random), indices.size(), n, 0, indices);
    return indices;
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
  std::vector<uint32_t> Select(const EncodeInput& input, float* p) const override {
    std::vector<uint32_t> indices;
    CompensateAll(input, p, [&](size_t begin, size_t length, const float* block) {
      AppendReaching(block, begin, length, value_, &indices);
    });
    return indices;
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

std::vector<uint32_t> LargestOf(std::span<const float> p, size_t k) {
  TopKSelector selector;
  selector.Count(p);
  return selector.Select(p, k);
}

// Comparisons in vectors, their results gathered into words of 64 bits: only bits that are set cost a step each.
void AppendReaching(const float* block, size_t begin, size_t length, float least, std::vector<uint32_t>* indices) {
  constexpr size_t kGroup = 64;
  const uint32_t bound = std::bit_cast<uint32_t>(least);   // finite magnitudes compare as their bits do
  for (size_t at = 0; at < length; at += kGroup) {
    const size_t members = std::min(kGroup, length - at);
    uint8_t reaches[kGroup] = {};
    for (size_t i = 0; i < members; ++i) reaches[i] = (std::bit_cast<uint32_t>(block[at + i]) & 0x7FFFFFFF) >= bound;
    uint64_t word = 0;
    for (size_t b = 0; b < 8; ++b)
      word |= uint64_t{GatherBits(LoadLe<uint64_t>(reinterpret_cast<const std::byte*>(reaches) + 8 * b))} << (8 * b);
    for (; word != 0; word &= word - 1)
      indices->push_back(static_cast<uint32_t>(begin + at + static_cast<unsigned>(std::countr_zero(word))));
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
