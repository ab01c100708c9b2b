// Bits of codes side by side: plane b of n codes is ceil(n / 8) bytes, bit i % 8 of byte i / 8 is bit b of code i, and
// bits from n on are zero. (A ballot of a GPU's warp is such a word.) Eight codes at a time in one 64-bit register.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace sluice::compression {

inline constexpr size_t PlaneBytes(size_t n) { return n / 8 + (n % 8 != 0); }

// Bits 0, 8, 16, ... of x, side by side.
inline uint8_t GatherBits(uint64_t x) { return static_cast<uint8_t>(x * 0x0102040810204080 >> 56); }

// The inverse: eight bytes of 0 or 1.
inline uint64_t SpreadBits(uint8_t bits) {
  const uint64_t each = uint64_t{bits} * 0x0101010101010101 & 0x8040201008040201;
  return (each + 0x7F7F7F7F7F7F7F7F) >> 7 & 0x0101010101010101;
}

// Writes PlaneBytes(n): bit `bit` of each code.
inline void PackPlane(const std::byte* __restrict codes, size_t n, unsigned bit, std::byte* __restrict out) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    out[i / 8] = static_cast<std::byte>(GatherBits(LoadLe<uint64_t>(codes + i) >> bit & kOnes));
  if (i == n) return;
  uint64_t rest = 0;
  std::memcpy(&rest, codes + i, n - i);
  out[i / 8] = static_cast<std::byte>(GatherBits(rest >> bit & kOnes));
}

// Adds bit `bit` to codes whose bit is zero. Reads PlaneBytes(n); codes must have room for 8 * PlaneBytes(n).
inline void UnpackPlane(const std::byte* __restrict in, size_t n, unsigned bit, std::byte* __restrict codes) {
  for (size_t j = 0; j < PlaneBytes(n); ++j)
    StoreLe(codes + 8 * j, LoadLe<uint64_t>(codes + 8 * j) | SpreadBits(static_cast<uint8_t>(in[j])) << bit);
}

// Whether the bits from n on of a plane are zero.
inline bool PlanePaddingIsZero(const std::byte* in, size_t n) {
  return n % 8 == 0 || static_cast<unsigned>(in[n / 8]) >> (n % 8) == 0;
}

}  // namespace sluice::compression
