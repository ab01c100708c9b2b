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

// In blocks of `block` elements, with a bound that a hint gave.
std::vector<uint32_t> Fast(const std::vector<float>& values, size_t k, size_t block, uint32_t bound = kAnyMagnitude) {
  for (;; bound = kAnyMagnitude) {
    TopKSelector selector(k, bound);
    for (size_t i = 0; i < values.size(); i += block)
      selector.Gather(values.data() + i, i, std::min(block, values.size() - i));
    if (!selector.Finish()) {
      EXPECT_NE(bound, kAnyMagnitude);
      continue;
    }
    const uint32_t least = selector.least();
    const Picked picked = selector.Take();
    EXPECT_EQ(least == 0, picked.indices.size() < k || k == 0);
    for (size_t j = 0; j < picked.indices.size(); ++j) {
      EXPECT_EQ(std::bit_cast<uint32_t>(picked.values[j]), std::bit_cast<uint32_t>(values[picked.indices[j]]));
      EXPECT_GE(std::bit_cast<uint32_t>(std::abs(picked.values[j])), least);
    }
    return picked.indices;
  }
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
      for (const uint32_t bound : {1u, 0x3E000000u, 0x3F800000u, 0x3F800003u, 0x7F800000u, random.Below(0x7F800000) + 1})
        ASSERT_EQ(Fast(values, k, 1 + random.Below(300), bound), Slow(values, k))
            << "seed " << seed << " k " << k << " bound " << bound;
  }
}

TEST(TopKSelect, TiesGoToTheLowerIndex) {
  EXPECT_EQ(Fast({2, -2, 2, -2, 2}, 3, 2), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(Fast({1, -3, 2, -2, 2}, 3, 2), (std::vector<uint32_t>{1, 2, 3}));
}

TEST(TopKSelect, NothingToSelect) {
  EXPECT_TRUE(Fast({}, 3, 1).empty());
  EXPECT_TRUE(Fast({1, 2}, 0, 1).empty());
  EXPECT_TRUE(Fast({0.0f, -0.0f, 0.0f}, 2, 1).empty());
}

// The list overflows again and again: rising values all reach the bound, equal ones and zeros must not push out others.
TEST(TopKSelect, ListsThatOverflowAreCut) {
  PhiloxRandom random(9);
  for (const size_t n : {size_t{4096}, size_t{20000}, size_t{50000}})
    for (const size_t k : {size_t{1}, size_t{100}, size_t{3000}, n / 2}) {
      std::vector<float> rising(n), equal(n, -1.0f), few(n), front(n, 1e-3f);
      for (size_t i = 0; i < n; ++i) rising[i] = static_cast<float>(i);
      for (float& v : few) v = static_cast<float>(static_cast<int>(random.Below(7)) - 3);
      for (size_t i = 0; i < n / 3; ++i) front[i] = 5.0f - static_cast<float>(i % 3);
      for (const auto& values : {rising, equal, few, front})
        for (const uint32_t bound : {kAnyMagnitude, 0x3F800000u, 0x40A00000u})
          ASSERT_EQ(Fast(values, k, 256, bound), Slow(values, k)) << n << " " << k << " " << bound;
    }
}

}  // namespace
}  // namespace sluice::compression
