// Sums in a documented, fixed order, so that every machine and every implementation gets the same bits.
//
// The tree: elements are cut into blocks of 4096. In a block, lane l (0 to 15) adds the elements with index % 16 == l
// in order, in fp64. The lanes are folded 8-4-2-1 (lane l += lane l+8, then +4, +2, +1). Block sums are added in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace sluice {

namespace internal {
template <typename Term>
double FixedSum(size_t n, Term term) {
  double total = 0;
  for (size_t begin = 0; begin < n; begin += 4096) {
    const size_t end = std::min(n, begin + 4096);
    double lanes[16] = {};
    size_t i = begin;
    for (; i + 16 <= end; i += 16)
      for (size_t l = 0; l < 16; ++l) lanes[l] += term(i + l);
    for (size_t l = 0; i < end; ++i, ++l) lanes[l] += term(i);
    for (size_t width = 8; width > 0; width /= 2)
      for (size_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
    total += lanes[0];
  }
  return total;
}
}  // namespace internal

// Sum of squares in fp64 (a product of two fp32 values is exact in fp64).
inline double SumOfSquares(std::span<const float> values) {
  return internal::FixedSum(values.size(), [&](size_t i) {
    const double v = values[i];
    return v * v;
  });
}

}  // namespace sluice
