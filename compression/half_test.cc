#include "compression/half.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/philox.h"

namespace sluice::compression {
namespace {

uint32_t Bits(float v) { return std::bit_cast<uint32_t>(v); }

// The value of a half by its definition.
double Fp16Value(uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

// The nearest finite half by search among neighbours; ties to the even code.
uint16_t SlowFp16(float value) {
  const double magnitude = std::abs(static_cast<double>(value));
  uint16_t low = 0, high = 0x7BFF;   // magnitudes rise with their codes
  while (low < high) {
    const uint16_t middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (Fp16Value(middle) <= magnitude)
      low = middle;
    else
      high = static_cast<uint16_t>(middle - 1);
  }
  if (low < 0x7BFF) {
    const double down = magnitude - Fp16Value(low), up = Fp16Value(static_cast<uint16_t>(low + 1)) - magnitude;
    if (up < down || (up == down && low % 2 == 1)) ++low;
  }
  return static_cast<uint16_t>(low | (std::signbit(value) ? 0x8000 : 0));
}

std::vector<float> Interesting() {
  std::vector<float> values = {0.0f,      -0.0f,     1.0f,       65504.0f, 65505.0f, 65519.9f, 65520.0f, 1e9f, -3e38f,
                               0x1p-24f,  0x1p-25f,  0x1.8p-25f, 0x1p-14f, 0x1p-15f, 1e-40f,   -1e-45f,  0x1.FFEp-15f,
                               0x1.FFFp-15f, std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest()};
  for (int code = 0; code < 0x7C00; code += 7) {   // halves, the middle between two, and their neighbours
    const float half = static_cast<float>(Fp16Value(static_cast<uint16_t>(code)));
    const float middle = static_cast<float>((Fp16Value(static_cast<uint16_t>(code)) +
                                             Fp16Value(static_cast<uint16_t>(std::min(code + 1, 0x7BFF)))) / 2);
    for (float v : {half, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      values.push_back(v);
      values.push_back(-v);
    }
  }
  PhiloxRandom random(1);
  while (values.size() < 60000)
    if (const float v = std::bit_cast<float>(random()); std::isfinite(v)) values.push_back(v);
  while (values.size() < 120000)
    values.push_back((random.Uniform() - 0.5f) * std::ldexp(1.0f, static_cast<int>(random.Below(44)) - 26));
  return values;
}

TEST(Half, Fp16RoundsToNearestEvenAndSaturates) {
  const std::vector<float> values = Interesting();
  std::vector<std::byte> out(2 * values.size());
  Fp16FromFloats(values.data(), values.size(), out.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t expected = SlowFp16(values[i]);
    ASSERT_EQ(Fp16FromFloat(values[i]), expected) << values[i];
    ASSERT_EQ(LoadLe<uint16_t>(out.data() + 2 * i), expected) << values[i];
  }
}

TEST(Half, AllFp16CodesDecode) {
  std::vector<std::byte> in(2 * 65536);
  for (size_t code = 0; code < 65536; ++code) StoreLe<uint16_t>(in.data() + 2 * code, static_cast<uint16_t>(code));
  std::vector<float> out(65536);
  FloatsFromFp16(in.data(), out.size(), out.data());
  for (size_t code = 0; code < 65536; ++code) {
    const uint16_t half = static_cast<uint16_t>(code);
    ASSERT_EQ(Bits(out[code]), Bits(FloatFromFp16(half))) << code;
    if ((half & 0x7C00) != 0x7C00) {
      ASSERT_EQ(Bits(out[code]), Bits(static_cast<float>(Fp16Value(half)))) << code;
    } else {
      ASSERT_FALSE(std::isfinite(out[code])) << code;
      ASSERT_EQ(std::isnan(out[code]), (half & 0x3FF) != 0) << code;
    }
  }
}

TEST(Half, Bf16RoundsToNearestEvenAndSaturates) {
  const std::vector<float> values = Interesting();
  std::vector<std::byte> out(2 * values.size());
  Bf16FromFloats(values.data(), values.size(), out.data());
  std::vector<float> back(values.size());
  FloatsFromBf16(out.data(), values.size(), back.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t code = LoadLe<uint16_t>(out.data() + 2 * i);
    ASSERT_EQ(code, Bf16FromFloat(values[i]));
    ASSERT_EQ(Bits(back[i]), uint32_t{code} << 16);
    if (std::abs(values[i]) > kMaxBf16) {
      ASSERT_EQ(back[i], std::copysign(kMaxBf16, values[i]));
      continue;
    }
    // Truncation is one neighbour; the result is the nearer one, or the even one.
    const float low = std::bit_cast<float>(Bits(values[i]) & 0xFFFF0000), v = values[i];
    const float high = std::bit_cast<float>((Bits(values[i]) & 0xFFFF0000) + 0x10000);
    const double down = std::abs(double{v} - low), up = std::abs(double{high} - v);
    const float expected = down < up || (down == up && (Bits(low) >> 16) % 2 == 0) ? low : high;
    ASSERT_EQ(Bits(back[i]), Bits(expected)) << v;
  }
}

TEST(Half, FindsTheFirstNonfinite) {
  for (const uint16_t mask : {0x7C00, 0x7F80}) {
    std::vector<std::byte> in(2 * 5000);
    for (size_t i = 0; i < 5000; ++i) StoreLe<uint16_t>(in.data() + 2 * i, static_cast<uint16_t>(mask - 1));
    EXPECT_EQ(FirstNonfiniteHalf(in.data(), 5000, mask), 5000u);
    StoreLe<uint16_t>(in.data() + 2 * 4321, static_cast<uint16_t>(0x8000 | mask));
    EXPECT_EQ(FirstNonfiniteHalf(in.data(), 5000, mask), 4321u);
    StoreLe<uint16_t>(in.data() + 2 * 7, static_cast<uint16_t>(mask | 1));
    EXPECT_EQ(FirstNonfiniteHalf(in.data(), 5000, mask), 7u);
    EXPECT_EQ(FirstNonfiniteHalf(in.data(), 7, mask), 7u);
    EXPECT_EQ(FirstNonfiniteHalf(in.data(), 0, mask), 0u);
  }
}

}  // namespace
}  // namespace sluice::compression
