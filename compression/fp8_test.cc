#include "compression/fp8.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/philox.h"

namespace sluice::compression {
namespace {

// From the format's definition.
double Value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// The nearest of all finite codes; of two at the same distance the one with an even mantissa.
int SlowCode(float value) {
  const double magnitude = std::abs(double{value});
  int best = 0;
  for (int code = 1; code < 0x7F; ++code) {
    const double distance = std::abs(Value(code) - magnitude), least = std::abs(Value(best) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}

int E4M3FromFloat(float value) {
  const E4M3 rounded = RoundToE4M3(value);
  EXPECT_EQ(std::bit_cast<uint32_t>(rounded.value),
            std::bit_cast<uint32_t>(FloatFromE4M3(static_cast<uint8_t>(rounded.code)))) << value;
  return static_cast<int>(rounded.code);
}

TEST(E4M3, DecodesEveryFiniteCode) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    EXPECT_EQ(FloatFromE4M3(static_cast<uint8_t>(code)), Value(code)) << code;
    EXPECT_EQ(E4M3FromFloat(FloatFromE4M3(static_cast<uint8_t>(code))), code);
  }
  EXPECT_EQ(FloatFromE4M3(0x7E), 448.0f);
}

TEST(E4M3, RoundsToNearestEven) {
  for (int code = 0; code < 0x7E; ++code) {   // midpoints and their neighbours
    const float middle = static_cast<float>((Value(code) + Value(code + 1)) / 2);
    for (const float v : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1000.0f)}) {
      EXPECT_EQ(E4M3FromFloat(v), SlowCode(v)) << v;
      EXPECT_EQ(E4M3FromFloat(-v), SlowCode(-v)) << v;
    }
  }
  PhiloxRandom random(1);
  for (int i = 0; i < 20000; ++i) {
    const float v = std::ldexp(random.Uniform() - 0.5f, static_cast<int>(random.Below(24)) - 14);
    ASSERT_EQ(E4M3FromFloat(v), SlowCode(v)) << v;
  }
  for (const float v : {0.0f, -0.0f, 1e-40f, 464.0f, 500.0f, 3e38f, -3e38f}) EXPECT_EQ(E4M3FromFloat(v), SlowCode(v)) << v;
}

// 1.0625 lies between 1 and 1.125; a bit above it rounds up, but to bf16 first it is the tie again, and down.
TEST(E4M3, DoesNotRoundTwice) { EXPECT_EQ(RoundToE4M3(1.0625f + 0x1p-20f).value, 1.125f); }

}  // namespace
}  // namespace sluice::compression
