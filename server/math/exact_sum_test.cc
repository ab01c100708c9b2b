#include "server/math/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/philox.h"

namespace sluice::server {
namespace {

uint32_t Bits(float v) { return std::bit_cast<uint32_t>(v); }

float SumOf(const std::vector<float>& values) {
  ExactSum sum(1);
  for (const float& v : values) sum.Add({&v, 1});
  float out;
  sum.Round({&out, 1});
  return out;
}

// Any finite bit pattern, or values near `exponent` within `spread` binary orders.
float AnyFinite(PhiloxRandom& random) {
  while (true)
    if (const float v = std::bit_cast<float>(random()); std::isfinite(v)) return v;
}
float Near(PhiloxRandom& random, int exponent, int spread) {
  const float v = std::ldexp(1.0f + random.Uniform(), exponent - static_cast<int>(random.Below(spread + 1)));
  return random.Chance(0.5) ? v : -v;
}

// Any permutation in any tree of merges.
float SumByRandomTree(PhiloxRandom& random, std::vector<float> values) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.Below(static_cast<uint32_t>(i))]);
  std::vector<ExactSum> leaves;
  for (size_t i = 0; i < values.size();) {
    ExactSum leaf(1);
    for (size_t take = 1 + random.Below(4); take > 0 && i < values.size(); --take, ++i) leaf.Add({&values[i], 1});
    leaves.push_back(leaf);
  }
  while (leaves.size() > 1) {
    const size_t to = random.Below(static_cast<uint32_t>(leaves.size()));
    const size_t from = random.Below(static_cast<uint32_t>(leaves.size()));
    if (to == from) continue;
    leaves[to].Merge(leaves[from]);
    leaves.erase(leaves.begin() + static_cast<std::ptrdiff_t>(from));
  }
  float out;
  leaves[0].Round({&out, 1});
  return out;
}

TEST(ExactSum, EveryOrderAndTreeGivesTheSameBits) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    PhiloxRandom random(seed);
    std::vector<float> values(1 + random.Below(40));
    const int exponent = static_cast<int>(random.Below(250)) - 125;
    for (float& v : values) v = seed % 2 ? AnyFinite(random) : Near(random, exponent, 70);
    const uint32_t expected = Bits(SumOf(values));
    for (int i = 0; i < 8; ++i) ASSERT_EQ(Bits(SumByRandomTree(random, values)), expected) << "seed " << seed;
  }
}

// Values whose last bits lie within 30 binary orders of each other fit into the window: nothing may be lost then.
TEST(ExactSum, IsTheCorrectlyRoundedSumWhereExponentsFit) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    PhiloxRandom random(seed, 1);
    const int low = static_cast<int>(random.Below(200)) - 149;   // exponent of the last bit
    std::vector<float> values(1 + random.Below(60));
    __int128 total = 0;
    for (float& v : values) {
      const int shift = static_cast<int>(random.Below(30));
      const int64_t mantissa = static_cast<int64_t>(random.Below(1 << 24)) * (random.Chance(0.5) ? 1 : -1);
      v = std::ldexp(static_cast<float>(mantissa), low + shift);
      total += static_cast<__int128>(mantissa) << shift;
    }
    // |total| < 2^60: a long double holds it exactly, and its conversion to float rounds once, half to even.
    const float expected = static_cast<float>(std::ldexp(static_cast<long double>(total), low));
    const float got = SumOf(values);
    ASSERT_EQ(Bits(got), Bits(expected == 0 ? 0.0f : expected)) << "seed " << seed;
  }
}

TEST(ExactSum, ErrorStaysBelowTheDocumentedBound) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    PhiloxRandom random(seed, 2);
    std::vector<float> values(50);
    long double reference = 0, largest = 0;   // 64 bits of mantissa: enough for spreads of 100 within the bound below
    for (float& v : values) {
      v = Near(random, 40, 100);
      largest = std::max<long double>(largest, std::abs(v));
    }
    std::vector<float> ordered = values;
    std::sort(ordered.begin(), ordered.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    for (float v : ordered) reference += v;
    const long double bound = 50 * largest * std::ldexp(1.0L, -54) + std::abs(reference) * std::ldexp(1.0L, -24);
    EXPECT_LE(std::abs(static_cast<long double>(SumOf(values)) - reference), bound) << "seed " << seed;
  }
}

TEST(ExactSum, SpecialValues) {
  const float denormal = std::numeric_limits<float>::denorm_min(), largest = std::numeric_limits<float>::max();
  EXPECT_EQ(SumOf({}), 0.0f);
  EXPECT_EQ(Bits(SumOf({-0.0f, -0.0f})), Bits(0.0f));
  EXPECT_EQ(SumOf({denormal}), denormal);
  EXPECT_EQ(SumOf({-denormal, -denormal}), -2 * denormal);
  EXPECT_EQ(SumOf({largest}), largest);
  EXPECT_EQ(SumOf({largest, largest}), INFINITY);
  EXPECT_EQ(SumOf({-largest, -largest}), -INFINITY);
  EXPECT_EQ(SumOf({largest, largest, -largest}), largest);   // intermediate overflow leaves no trace
  EXPECT_EQ(SumOf({1e30f, 1.0f, -1e30f}), 0.0f);             // 1 is below 2^-55 of 1e30: dropped in every order
  EXPECT_EQ(SumOf({1e8f, 1.0f, -1e8f}), 1.0f);
  EXPECT_EQ(SumOf({0x1p24f, 1.0f}), 0x1p24f);                // half to even, down
  EXPECT_EQ(SumOf({0x1p24f, 1.0f, 2.0f}), 0x1p24f + 4);      // half to even, up
  EXPECT_EQ(SumOf({0x1p24f, 1.0f, 1e-5f}), 0x1p24f + 2);     // just above half
  EXPECT_TRUE(std::isnan(SumOf({NAN, 1.0f})));
  EXPECT_TRUE(std::isnan(SumOf({1.0f, INFINITY, 2.0f, -1.0f})));
}

// Numbers of contributions that would overflow 32 bits of a bin must not: doubling by merges reaches them fast.
TEST(ExactSum, HoldsTwoToThe31Contributions) {
  ExactSum sum(2);
  // Last bit at 8 in its bin: the lower part is 0xFFFFFF00, the largest there is.
  const float values[2] = {std::bit_cast<float>(137u << 23 | 0x7FFFFF), -1.5f};
  sum.Add(values);
  for (int i = 0; i < 31; ++i) {
    const ExactSum copy = sum;
    sum.Merge(copy);
  }
  float out[2];
  sum.Round(out);
  EXPECT_EQ(out[0], std::ldexp(values[0], 31));
  EXPECT_EQ(out[1], -1.5f * 0x1p31f);
}

TEST(ExactSum, ElementsAreIndependentAndMemoryIsAsStated) {
  PhiloxRandom random(9);
  const size_t n = 100;
  ExactSum sum(n);
  std::vector<std::vector<float>> columns(n);
  for (int row = 0; row < 10; ++row) {
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) columns[i].push_back(values[i] = AnyFinite(random));
    sum.Add(values);
  }
  std::vector<float> out(n);
  sum.Round(out);
  for (size_t i = 0; i < n; ++i) EXPECT_EQ(Bits(out[i]), Bits(SumOf(columns[i]))) << i;
  EXPECT_EQ(sum.MemoryBytes(), n * ExactSum::kBytesPerElement);
  sum.Clear();
  sum.Round(out);
  EXPECT_EQ(out, std::vector<float>(n, 0.0f));
  sum.Release();
  EXPECT_EQ(sum.MemoryBytes(), 0u);
}

}  // namespace
}  // namespace sluice::server
