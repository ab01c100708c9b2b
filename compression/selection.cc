#include "compression/selection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
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

// k = max(1, ceil(ratio n)), the product in fp64.
uint64_t EntriesFor(double ratio, uint64_t n) {
  if (n == 0) return 0;
  return std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(ratio * static_cast<double>(n))), 1, n);
}

// Calls visit(begin, length, p of the block) for each block of p.
template <typename Visit>
void MakeP(const EncodeInput& input, float* p, Visit visit) {
  const size_t n = input.gradient.size();
  for (size_t begin = 0; begin < n; begin += kCompensateBlock) {
    const size_t length = std::min(kCompensateBlock, n - begin);
    Compensate(input, begin, length, p + begin);
    visit(begin, length, p + begin);
  }
}

class TopKPicks final : public Selector {
 public:
  TopKPicks(double ratio, std::string name) : ratio_(ratio), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  uint64_t MostEntries(uint64_t n) const override { return EntriesFor(ratio_, n); }
  std::vector<uint32_t> Select(const EncodeInput& input, float* p) const override {
    TopKSelector selector;
    MakeP(input, p, [&](size_t, size_t length, const float* block) { selector.Count({block, length}); });
    return selector.Select({p, input.gradient.size()}, MostEntries(input.gradient.size()));
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
    MakeP(input, p, [](size_t, size_t, const float*) {});
    const size_t n = input.gradient.size();
    std::vector<uint32_t> indices(MostEntries(n));
    DrawnIndices(SelectionKey(input.random), indices.size(), n, 0, indices);
    return indices;
  }

 private:
  const double ratio_;
  const std::string name_;
};

// Appends the indices of the elements of a block whose magnitudes reach `least`. Most groups have none: one vector
// comparison passes over them.
void AppendFrom(const float* block, size_t begin, size_t length, uint32_t least, std::vector<uint32_t>* indices) {
  constexpr size_t kGroup = 32;
  for (size_t at = 0; at < length; at += kGroup) {
    const size_t members = std::min(kGroup, length - at);
    uint32_t largest = 0;
    if (members == kGroup)
      for (size_t i = 0; i < kGroup; ++i)
        largest = std::max(largest, std::bit_cast<uint32_t>(block[at + i]) & 0x7FFFFFFF);
    if (members == kGroup && largest < least) continue;
    for (size_t i = at; i < at + members; ++i)
      if ((std::bit_cast<uint32_t>(block[i]) & 0x7FFFFFFF) >= least) indices->push_back(static_cast<uint32_t>(begin + i));
  }
}

class ThresholdPicks final : public Selector {
 public:
  ThresholdPicks(float value, std::string name) : least_(std::bit_cast<uint32_t>(value)), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  uint64_t MostEntries(uint64_t n) const override { return n; }
  std::vector<uint32_t> Select(const EncodeInput& input, float* p) const override {
    std::vector<uint32_t> indices;
    MakeP(input, p, [&](size_t begin, size_t length, const float* block) {
      AppendFrom(block, begin, length, least_, &indices);
    });
    return indices;
  }

 private:
  const uint32_t least_;   // the bits of the value: finite magnitudes compare as their bits do
  const std::string name_;
};

}  // namespace

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
  const std::string text(parameter.substr(0, 80));
  float value = 0;
  if (text.size() != parameter.size() || !absl::SimpleAtof(text, &value) || !(value > 0) || std::isinf(value))
    return absl::InvalidArgumentError(absl::StrCat("codec \"threshold:", text,
                                                   "\": the value must be a number above 0, as in threshold:0.001"));
  return std::make_unique<ThresholdPicks>(value, absl::StrCat("threshold:", text));
}

}  // namespace sluice::compression
