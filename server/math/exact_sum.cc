#include "server/math/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>

namespace sluice::server {
namespace {

constexpr int32_t kNonfinite = 15;   // above every home bin: the window of such an element sees nothing else

// Moves a window up by `by` bins. Bins are (top-1, top, top+1).
inline void Raise(int32_t by, int64_t* below, int64_t* home, int64_t* above) {
  const int64_t b = *home, c = *above;
  *below = by == 0 ? *below : by == 1 ? b : by == 2 ? c : 0;
  *home = by == 0 ? b : by == 1 ? c : 0;
  *above = by == 0 ? c : 0;
}

// What three bins with home `top` give to a window that lies `drop` >= 0 bins higher, added in.
inline void AddBins(int32_t drop, int64_t a, int64_t b, int64_t c, int64_t* below, int64_t* home, int64_t* above) {
  *below += drop == 0 ? a : drop == 1 ? b : drop == 2 ? c : 0;
  *home += drop == 0 ? b : drop == 1 ? c : 0;
  *above += drop == 0 ? c : 0;
}

// m * 2^exponent, rounded half to even; infinity where it is too large.
float RoundScaled(bool negative, unsigned __int128 m, int exponent) {
  if (m == 0) return 0.0f;
  const uint64_t high = static_cast<uint64_t>(m >> 64), low = static_cast<uint64_t>(m);
  const int length = high != 0 ? 64 + std::bit_width(high) : std::bit_width(low);
  const int unit = std::max(exponent + length - 24, -149);   // exponent of the result's last bit
  const int shift = unit - exponent;
  uint64_t mantissa;
  if (shift <= 0) {
    mantissa = low << -shift;
  } else if (shift > length) {
    return negative ? -0.0f : 0.0f;   // below half of the smallest denormal
  } else {
    mantissa = static_cast<uint64_t>(m >> shift);
    const unsigned __int128 rest = m - (static_cast<unsigned __int128>(mantissa) << shift);
    const unsigned __int128 half = static_cast<unsigned __int128>(1) << (shift - 1);
    if (rest > half || (rest == half && (mantissa & 1))) ++mantissa;
  }
  // At most 2^24 times a power of two that fp64 holds: exact but for the overflow to infinity.
  const double unit_value = std::bit_cast<double>(static_cast<uint64_t>(unit + 1023) << 52);
  const float value = static_cast<float>(static_cast<double>(mantissa) * unit_value);
  return negative ? -value : value;
}

}  // namespace

void ExactSum::Assign(size_t elements) {
  below_.assign(elements, 0);
  home_.assign(elements, 0);
  above_.assign(elements, 0);
  top_.assign(elements, 0);
}

void ExactSum::Clear() { Assign(size()); }

void ExactSum::Release() { *this = ExactSum(); }

size_t ExactSum::MemoryBytes() const {
  return (below_.capacity() + home_.capacity() + above_.capacity()) * sizeof(int64_t) +
         top_.capacity() * sizeof(int32_t);
}

void ExactSum::Add(std::span<const float> values) {
  assert(values.size() == size());
  int64_t* __restrict below = below_.data();
  int64_t* __restrict home = home_.data();
  int64_t* __restrict above = above_.data();
  int32_t* __restrict tops = top_.data();
  const float* __restrict in = values.data();
  const size_t n = values.size();
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(in[i]);
    const int32_t exponent = static_cast<int32_t>((bits >> 23) & 0xFF);
    const int32_t position = std::max(exponent, 1) - 1;                                  // p
    const int32_t bin = exponent == 255 ? kNonfinite : position >> 5;
    const int64_t mantissa = (bits & 0x7FFFFF) | (exponent != 0 ? 0x800000 : 0);
    const int64_t wide = mantissa << (position & 31);
    const int64_t sign = -static_cast<int64_t>(bits >> 31);                              // 0 or -1
    const int64_t low = ((wide & 0xFFFFFFFF) ^ sign) - sign;
    const int64_t high = ((wide >> 32) ^ sign) - sign;
    const int32_t top = std::max(tops[i], bin);
    Raise(top - tops[i], &below[i], &home[i], &above[i]);
    AddBins(top - bin, 0, low, high, &below[i], &home[i], &above[i]);
    tops[i] = top;
  }
}

void ExactSum::Merge(const ExactSum& other) {
  assert(other.size() == size());
  for (size_t i = 0; i < size(); ++i) {
    const int32_t top = std::max(top_[i], other.top_[i]);
    Raise(top - top_[i], &below_[i], &home_[i], &above_[i]);
    AddBins(top - other.top_[i], other.below_[i], other.home_[i], other.above_[i], &below_[i], &home_[i], &above_[i]);
    top_[i] = top;
  }
}

void ExactSum::Round(std::span<float> out) const {
  assert(out.size() == size());
  for (size_t i = 0; i < size(); ++i) {
    if (top_[i] == kNonfinite) {
      out[i] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    // |above| < 2^54, so the whole fits into 119 bits and a sign.
    const __int128 total =
        (static_cast<__int128>(above_[i]) << 64) + (static_cast<__int128>(home_[i]) << 32) + below_[i];
    const bool negative = total < 0;
    const unsigned __int128 magnitude = negative ? -static_cast<unsigned __int128>(total) : total;
    out[i] = RoundScaled(negative, magnitude, 32 * (top_[i] - 1) - 149);
  }
}

}  // namespace sluice::server
