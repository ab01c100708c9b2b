// Powers and cosine from products and sums alone: libm may differ between machines in the last bit, these cannot.
#pragma once

#include <cstdint>

namespace sluice {

// base^exponent by squaring, from the lowest bit of the exponent up.
inline double PowInt(double base, uint64_t exponent) {
  double result = 1.0;
  for (double square = base; exponent != 0; exponent >>= 1, square *= square)
    if (exponent & 1) result *= square;
  return result;
}

// cos(pi t) for 0 <= t <= 1, within 4e-16: Taylor's series of twelve terms on the first half, mirrored on the second.
inline double CosPi(double t) {
  if (t > 0.5) return -CosPi(1.0 - t);
  const double y = 3.14159265358979323846 * t * (3.14159265358979323846 * t);
  double sum = 1.0;
  for (int k = 24; k > 0; k -= 2) sum = 1.0 - sum * y / (static_cast<double>(k) * (k - 1));
  return sum;
}

}  // namespace sluice
