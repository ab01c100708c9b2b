#include "compression/topk_select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "base/philox.h"

namespace sluice::compression {
namespace {

std::vector<uint32_t> Slow(const std::vector<float>& values, size_t k) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return std::abs(values[a]) > std::abs(values[b]); });
  order.resize(std::min(k, order.size()));
  std::erase_if(order, [&](uint32_t i) { return values[i] == 0; });
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<uint32_t> Fast(const std::vector<float>& values, size_t k, size_t cut) {
  TopKSelector selector;
  selector.Count(std::span(values).first(cut));
  selector.Count(std::span(values).subspan(cut));
  return selector.Select(values, k);
}

enum Shape { kUniform, kFewValues, kNearlyEqual, kMostlyZero, kAllBits, kNegative, kDenormal, kShapes };

std::vector<float> Make(PhiloxRandom& random, int shape, size_t n) {
  std::vector<float> values(n);
  for (float& v : values) {
    switch (shape) {
      case kUniform: v = random.Uniform() - 0.5f; break;
      case kFewValues: v = static_cast<float>(static_cast<int>(random.Below(7)) - 3); break;
      case kNearlyEqual: v = 1.0f + static_cast<float>(random.Below(5)) * 0x1p-23f; break;
      case kMostlyZero: v = random.Chance(0.1) ? random.Uniform() : random.Chance(0.5) ? 0.0f : -0.0f; break;
      case kAllBits:
        do v = std::bit_cast<float>(random());
        while (!std::isfinite(v));
        break;
      case kNegative: v = -random.Uniform(); break;
      case kDenormal: v = std::bit_cast<float>(random.Below(3000) | (random.Below(2) << 31)); break;
    }
  }
  return values;
}

TEST(TopKSelect, EqualsAStableSortByMagnitude) {
  for (uint64_t seed = 0; seed < 700; ++seed) {
    PhiloxRandom random(seed);
    const size_t n = 1 + random.Below(seed % 10 == 0 ? 5000 : 200);
    const std::vector<float> values = Make(random, static_cast<int>(seed % kShapes), n);
    for (const size_t k : {size_t{1}, size_t{1 + random.Below(static_cast<uint32_t>(n))}, (n + 99) / 100, n})
      ASSERT_EQ(Fast(values, k, random.Below(static_cast<uint32_t>(n))), Slow(values, k))
          << "seed " << seed << " k " << k;
  }
}

TEST(TopKSelect, TiesGoToTheLowerIndex) {
  EXPECT_EQ(Fast({2, -2, 2, -2, 2}, 3, 0), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(Fast({1, -3, 2, -2, 2}, 3, 0), (std::vector<uint32_t>{1, 2, 3}));
}

TEST(TopKSelect, NothingToSelect) {
  EXPECT_TRUE(Fast({}, 3, 0).empty());
  EXPECT_TRUE(Fast({1, 2}, 0, 0).empty());
  EXPECT_TRUE(Fast({0.0f, -0.0f, 0.0f}, 2, 0).empty());
}

TEST(TopKSelector, AmongCandidatesIsTheSame) {
  PhiloxRandom random(9);
  for (int run = 0; run < 200; ++run) {
    const size_t n = 1 + random.Below(3000), k = random.Below(static_cast<uint32_t>(n) + 1);
    std::vector<float> values(n);
    std::vector<uint32_t> all;
    for (uint32_t i = 0; i < n; ++i) {
      values[i] = run % 2 == 0 ? random.Uniform() - 0.5f : static_cast<float>(static_cast<int>(random.Below(7)) - 3);
      if (values[i] != 0) all.push_back(i);
    }
    TopKSelector selector;
    selector.Count(values);
    EXPECT_EQ(TopKSelector::SelectAmong(values, all, k), selector.Select(values, k)) << run;
  }
}

}  // namespace
}  // namespace sluice::compression
