// A partition as a matrix of few components, as the kernels of lowrank see it (docs/codecs.md, "lowrank").
#pragma once

#include <cstdint>

#include "compression/cuda/device.h"
#include "compression/cuda/grid.h"
#include "compression/cuda/kernels.h"

namespace sluice::compression::cuda {

inline constexpr uint32_t kLowRankHeader = 12, kMaxRank = 64;
inline constexpr uint32_t kPlainForm = 0, kFloatForm = 1, kHalfForm = 2;
inline constexpr int kLeastLowRankExponent = -126;

struct LowRankLayout {
  SLUICE_DEVICE uint64_t Values() const { return uint64_t{rank} * (rows + columns); }
  SLUICE_DEVICE uint64_t ValueBytes() const { return form == kHalfForm ? 2 : 4; }

  uint32_t form = kPlainForm, rank = 0;
  uint64_t rows = 0, columns = 0;
};

// How an encoder sends n elements: as they are, unless components take fewer bytes.
SLUICE_DEVICE LowRankLayout LowRankLayoutFor(uint64_t n, uint64_t columns, uint32_t rank, bool halves) {
  if (columns < 2 || columns > UINT32_MAX || n % columns != 0 || n / columns < 2) return {};
  LowRankLayout layout;
  layout.form = halves ? kHalfForm : kFloatForm;
  layout.rows = n / columns;
  layout.columns = columns;
  const uint64_t least = layout.rows < columns ? layout.rows : columns;
  layout.rank = rank < least ? rank : static_cast<uint32_t>(least);
  return layout.ValueBytes() * layout.Values() < 4 * n ? layout : LowRankLayout{};
}

// For exponents from -126 to 127.
SLUICE_DEVICE float LowRankPower(int exponent) { return device::FloatOf(static_cast<uint32_t>(exponent + 127) << 23); }

// Calls f(row) for each row of this warp, all lanes together.
template <typename F>
SLUICE_DEVICE void ForMatrixRows(uint64_t rows, F f) {
  const uint64_t stride = uint64_t{device::GridX()} * kWarps;
  for (uint64_t row = uint64_t{device::BlockX()} * kWarps + device::WarpIndex(); row < rows; row += stride) f(row);
}

// Element (row, column) of P Q^T; p(k) and q(k) are the factors of component k.
template <typename P, typename Q>
SLUICE_DEVICE float SumOfComponents(uint32_t rank, const P& p, const Q& q) {
  float sum = 0;
  for (uint32_t k = 0; k < rank; ++k) sum = device::Add(sum, device::Mul(q(k), p(k)));
  return sum;
}

}  // namespace sluice::compression::cuda
