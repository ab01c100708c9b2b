// Whole numbers from -L to L with one fp32 scale for each block of 128 elements (docs/codecs.md, "Levels"): what int8,
// int4 and qsgd share. They differ in L, in rounding, and in how codes are packed.
//
// With amax = max |p| of the block and inverse = L / amax:
//   amax >= 2^-118: scale = min(amax / L, max_scale); value = code * scale
//     nearest       code = p * inverse, half to even
//     stochastic    |code| = min(floor(|p| * inverse + u), L), the sign of p; u in [0, 1) of the element's draw
//   below, zeros included: scale = 0, codes = 0; the block stays in the residual
// Both quotients are one IEEE division a block. max_scale is the largest scale whose L-fold is finite in fp32: the plain
// quotient of the largest float need not be.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace sluice::compression {

inline constexpr size_t kQuantizeBlock = 128;

inline constexpr size_t QuantizeBlocks(size_t n) { return n / kQuantizeBlock + (n % kQuantizeBlock != 0); }

struct Levels {
  float count = 0;       // L, 1 to 127
  float max_scale = 0;
};

constexpr Levels LevelsOf(int count) {
  const auto finite = [&](uint32_t bits) {   // a product below this rounds to a finite float
    return double{std::bit_cast<float>(bits)} * count < 0x1.ffffffp127;
  };
  uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(double{0x1.fffffep127f} / count));
  while (bits < 0x7F7FFFFF && finite(bits + 1)) ++bits;
  while (!finite(bits)) --bits;
  return {static_cast<float>(count), std::bit_cast<float>(bits)};
}

struct BlockScale {
  float scale, inverse;
};

// n values, at most 128.
inline BlockScale ScaleOf(const float* __restrict p, size_t n, Levels levels) {
  constexpr float kMinAmax = 0x1p-118f;
  uint32_t largest = 0;   // finite magnitudes compare as their bits do
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(p[i]) & 0x7FFFFFFF);
  const float amax = std::bit_cast<float>(largest);
  if (amax < kMinAmax) return {0.0f, 0.0f};
  return {std::min(amax / levels.count, levels.max_scale), levels.count / amax};
}

// Encodes one block of n <= 128 elements; p becomes the residual. Returns the scale.
inline float QuantizeNearest(float* __restrict p, size_t n, Levels levels, int8_t* __restrict codes) {
  constexpr float kRounder = 12582912.0f;   // 1.5 * 2^23: added, it leaves a whole number, half to even, in the low bits
  const auto [scale, inverse] = ScaleOf(p, n, levels);
  for (size_t i = 0; i < n; ++i) {
    const float shifted = p[i] * inverse + kRounder;
    codes[i] = static_cast<int8_t>(std::bit_cast<uint32_t>(shifted));
    p[i] = p[i] - (shifted - kRounder) * scale;
  }
  return scale;
}

// The same with one draw of 32 bits an element (compression/draws.h).
inline float QuantizeStochastic(float* __restrict p, size_t n, Levels levels, const uint32_t* __restrict draws,
                                int8_t* __restrict codes) {
  const auto [scale, inverse] = ScaleOf(p, n, levels);
  for (size_t i = 0; i < n; ++i) {
    const float u = static_cast<float>(static_cast<int32_t>(draws[i] >> 8)) * 0x1p-24f;
    const float wanted = std::min(std::fabs(p[i]) * inverse + u, levels.count);   // L and more is L
    const int32_t magnitude = static_cast<int32_t>(wanted);
    const int32_t code = p[i] < 0 ? -magnitude : magnitude;
    codes[i] = static_cast<int8_t>(code);
    p[i] = p[i] - static_cast<float>(code) * scale;
  }
  return scale;
}

}  // namespace sluice::compression
