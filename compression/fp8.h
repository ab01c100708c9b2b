// fp8 E4M3 (OCP 8-bit floating point: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, largest 448, NaN
// is 0x7F and 0xFF), rounded to nearest, ties to even, saturating. Straight from fp32: by way of bf16 it would round twice.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace sluice::compression {

inline constexpr float kMaxE4M3 = 448.0f;

struct E4M3 {
  uint32_t code;
  float value;   // that the code stands for
};

// The rounding is left to one addition: 1.5 * 2^(e + 20), whose last bit is worth 2^(e - 3), a code's step at exponent e
// (-6 for all below). What the addition leaves in its lower bits is the number of steps.
inline E4M3 RoundToE4M3(float value) {   // not for NaN
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits & 0x80000000;
  const uint32_t magnitude = std::min(bits & 0x7FFFFFFF, std::bit_cast<uint32_t>(kMaxE4M3));
  const uint32_t exponent = std::max(magnitude, std::bit_cast<uint32_t>(0x1p-6f)) & 0x7F800000;
  const uint32_t rounder = exponent + (20u << 23) + 0x400000;
  const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(rounder);
  const uint32_t steps = std::bit_cast<uint32_t>(shifted) - rounder;
  const float near = shifted - std::bit_cast<float>(rounder);
  return {sign >> 24 | ((exponent >> 20) - (121u << 3) + steps), std::bit_cast<float>(sign | std::bit_cast<uint32_t>(near))};
}

inline float FloatFromE4M3(uint8_t code) {   // NaNs become 480
  const uint32_t magnitude = code & 0x7Fu, sign = (code & 0x80u) << 24;
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;
  const uint32_t normal = (magnitude << 20) + (120u << 23);
  return std::bit_cast<float>(sign | (magnitude < 8 ? std::bit_cast<uint32_t>(small) : normal));
}

}  // namespace sluice::compression
