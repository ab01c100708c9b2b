// fp16 (IEEE 754 binary16) and bf16 conversions, rounded to nearest, ties to even. The scalar functions are the
// definition; the array functions give the same bits, by F16C where the compiler may use it.
//
// Into half precision, values beyond the largest finite one saturate to it: encodings are always finite.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace sluice::compression {

inline constexpr float kMaxFp16 = 65504.0f;
inline constexpr float kMaxBf16 = 0x1.FEp127f;

// `value` within [-limit, limit]; compiles to a minimum and a maximum.
inline float Saturate(float value, float limit) {
  value = value > limit ? limit : value;
  return value < -limit ? -limit : value;
}

inline uint16_t Fp16FromFloat(float value) {   // not for NaN
  const uint32_t bits = std::bit_cast<uint32_t>(Saturate(value, kMaxFp16));
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7FFFFFFF;
  // Below 2^-14: adding 0.5, whose last bit is worth 2^-24 as a half denormal's, leaves the rounding to the addition.
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
  const uint32_t rebased = magnitude - (112u << 23);
  const uint32_t normal = (rebased + 0xFFF + ((rebased >> 13) & 1)) >> 13;
  return static_cast<uint16_t>(sign | (magnitude < (113u << 23) ? small : normal));
}

inline float FloatFromFp16(uint16_t half) {   // NaNs become quiet, payload kept
  const uint32_t sign = (half & 0x8000u) << 16, exponent = half & 0x7C00u, mantissa = half & 0x3FFu;
  if (exponent == 0)
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f));
  if (exponent == 0x7C00) return std::bit_cast<float>(sign | 0x7F800000 | (mantissa << 13) | (mantissa ? 0x400000 : 0));
  return std::bit_cast<float>(sign | (((half & 0x7FFFu) << 13) + (112u << 23)));
}

inline uint16_t Bf16FromFloat(float value) {   // not for NaN
  const uint32_t bits = std::bit_cast<uint32_t>(Saturate(value, kMaxBf16));
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float FloatFromBf16(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

// Arrays; bytes may be unaligned and must hold 2 n.
void Fp16FromFloats(const float* values, size_t n, std::byte* out);
void FloatsFromFp16(const std::byte* in, size_t n, float* values);
void Bf16FromFloats(const float* values, size_t n, std::byte* out);
void FloatsFromBf16(const std::byte* in, size_t n, float* values);

// Index of the first infinity or NaN among n halves, or n. `exponent_mask`: 0x7C00 for fp16, 0x7F80 for bf16.
size_t FirstNonfiniteHalf(const std::byte* in, size_t n, uint16_t exponent_mask);

}  // namespace sluice::compression
