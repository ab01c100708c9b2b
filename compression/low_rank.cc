#include "compression/low_rank.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace sluice::compression {
namespace {

// Eight lanes; the compiler makes of them what the target has, lane by lane the same.
using Lanes = float __attribute__((vector_size(32)));
constexpr size_t kLanes = 8, kSums = 16;
constexpr size_t kColumnTile = 1024;   // M^T P: four rows of a tile, and the tile of Q, stay in the first-level cache

inline Lanes Load(const float* from) {
  Lanes v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
inline void Store(Lanes v, float* to) { std::memcpy(to, &v, sizeof(v)); }
inline Lanes All(float value) { return Lanes{} + value; }

inline Lanes Held(Lanes v) {
  const Lanes most = All(kLargestMatrixElement), least = -most;
  v = v < most ? v : most;
  return v > least ? v : least;
}
inline float Held(float v) {
  v = v < kLargestMatrixElement ? v : kLargestMatrixElement;
  return v > -kLargestMatrixElement ? v : -kLargestMatrixElement;
}

inline float Fold(float* sums) {
  for (size_t half = kSums / 2; half > 0; half /= 2)
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  return sums[0];
}

// K components at once, so that a row of M is read once for them.
template <size_t K, bool kHold>
void Dots(const float* m, const float* q, size_t n, size_t q_stride, float* out, size_t out_stride) {
  Lanes low[K] = {}, high[K] = {};
  size_t j = 0;
  for (; j + kSums <= n; j += kSums) {
    Lanes a = Load(m + j), b = Load(m + j + kLanes);
    if (kHold) a = Held(a), b = Held(b);
    for (size_t k = 0; k < K; ++k) {
      low[k] += a * Load(q + k * q_stride + j);
      high[k] += b * Load(q + k * q_stride + j + kLanes);
    }
  }
  for (size_t k = 0; k < K; ++k) {
    float sums[kSums];
    Store(low[k], sums);
    Store(high[k], sums + kLanes);
    for (size_t i = j; i < n; ++i) sums[i - j] += (kHold ? Held(m[i]) : m[i]) * q[k * q_stride + i];
    out[k * out_stride] = Fold(sums);
  }
}

// Adds R rows to K components of a tile of Q: each column's sum stays in a register for the rows.
template <size_t R, size_t K>
void AddRows(const float* m, size_t m_stride, const float* p, size_t p_stride, size_t columns, float* q, size_t q_stride) {
  float factor[K][R];
  for (size_t k = 0; k < K; ++k)
    for (size_t i = 0; i < R; ++i) factor[k][i] = p[k * p_stride + i];
  size_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) {
    Lanes rows[R];
    for (size_t i = 0; i < R; ++i) rows[i] = Held(Load(m + i * m_stride + j));
    for (size_t k = 0; k < K; ++k) {
      Lanes sum = Load(q + k * q_stride + j);
      for (size_t i = 0; i < R; ++i) sum += rows[i] * factor[k][i];
      Store(sum, q + k * q_stride + j);
    }
  }
  for (; j < columns; ++j)
    for (size_t k = 0; k < K; ++k)
      for (size_t i = 0; i < R; ++i) q[k * q_stride + j] += Held(m[i * m_stride + j]) * factor[k][i];
}

template <size_t R>
void AddRowsToAll(const float* m, size_t m_stride, const float* p, size_t p_stride, size_t columns, size_t rank, float* q,
                  size_t q_stride) {
  size_t k = 0;
  for (; k + 2 <= rank; k += 2) AddRows<R, 2>(m, m_stride, p + k * p_stride, p_stride, columns, q + k * q_stride, q_stride);
  if (k < rank) AddRows<R, 1>(m, m_stride, p + k * p_stride, p_stride, columns, q + k * q_stride, q_stride);
}

template <Product kind, typename T>
inline T Combine(T old, T value) {
  return kind == Product::kStore ? value : kind == Product::kAdd ? old + value : old - value;
}

// `width` vectors of columns, summed over all components before they are written.
template <Product kind, size_t kWidth>
inline void MultiplyPiece(const FactorBlock& b, const float* p, size_t j, float* out) {
  Lanes sums[kWidth] = {};
  for (size_t k = 0; k < b.rank; ++k) {
    const float factor = p[k * b.p_stride];
    for (size_t v = 0; v < kWidth; ++v) sums[v] += Load(b.q + k * b.q_stride + j + v * kLanes) * factor;
  }
  for (size_t v = 0; v < kWidth; ++v) {
    float* to = out + j + v * kLanes;
    Store(Combine<kind>(kind == Product::kStore ? Lanes{} : Load(to), sums[v]), to);
  }
}

float Largest(std::span<const float> values) {   // infinity if one is not finite
  uint32_t largest = 0;   // magnitudes compare as their bits do
  for (const float v : values) largest = std::max(largest, std::bit_cast<uint32_t>(v) & 0x7FFFFFFF);
  return std::bit_cast<float>(std::min(largest, uint32_t{0x7F800000}));
}

}  // namespace

float FixedDot(const float* a, const float* b, size_t n) {
  float sum = 0;
  Dots<1, false>(a, b, n, 0, &sum, 0);
  return sum;
}

void RowTimesFactor(const float* m, const float* q, size_t columns, size_t rows, size_t rank, float* p) {
  size_t k = 0;
  for (; k + 4 <= rank; k += 4) Dots<4, true>(m, q + k * columns, columns, columns, p + k * rows, rows);
  if (k + 2 <= rank) {
    Dots<2, true>(m, q + k * columns, columns, columns, p + k * rows, rows);
    k += 2;
  }
  if (k < rank) Dots<1, true>(m, q + k * columns, columns, columns, p + k * rows, rows);
}

void TransposeTimesFactor(const float* m, const float* p, size_t rows, size_t columns, size_t rank, float* q) {
  std::fill(q, q + rank * columns, 0.0f);
  for (size_t begin = 0; begin < columns; begin += kColumnTile) {
    const size_t width = std::min(kColumnTile, columns - begin);
    size_t i = 0;
    for (; i + 4 <= rows; i += 4) AddRowsToAll<4>(m + i * columns + begin, columns, p + i, rows, width, rank, q + begin, columns);
    for (; i < rows; ++i) AddRowsToAll<1>(m + i * columns + begin, columns, p + i, rows, width, rank, q + begin, columns);
  }
}

bool Normalize(std::span<float> component) {
  const float largest = Largest(component);
  if (!(largest >= 0x1p-100f && largest <= 0x1p120f)) return false;
  const float up = std::ldexp(1.0f, -std::ilogb(largest));
  for (float& v : component) v *= up;
  return true;
}

void Orthonormalize(float* p, size_t rows, size_t rank) {
  for (size_t k = 0; k < rank; ++k) {
    float* mine = p + k * rows;
    const auto zero = [&] { std::fill(mine, mine + rows, 0.0f); };
    if (!Normalize({mine, rows})) {
      zero();
      continue;
    }
    const float before = std::sqrt(FixedDot(mine, mine, rows));
    float norm = before;
    for (int pass = 0; pass < 2 && k > 0; ++pass) {
      for (size_t other = 0; other < k; ++other) {
        const float* theirs = p + other * rows;
        const float along = FixedDot(theirs, mine, rows);
        for (size_t i = 0; i < rows; ++i) mine[i] -= along * theirs[i];
      }
      norm = std::sqrt(FixedDot(mine, mine, rows));
      if (!(norm > 0x1p-16f * before)) break;
    }
    if (!(norm > 0x1p-16f * before)) {
      zero();
      continue;
    }
    const float inverse = 1.0f / norm;
    for (size_t i = 0; i < rows; ++i) mine[i] *= inverse;
  }
}

template <Product kind>
void MultiplyFactors(const FactorBlock& block, float* out, size_t out_stride) {
  for (size_t i = 0; i < block.rows; ++i) {
    const float* p = block.p + i;
    float* row = out + i * out_stride;
    size_t j = 0;
    for (; j + 4 * kLanes <= block.columns; j += 4 * kLanes) MultiplyPiece<kind, 4>(block, p, j, row);
    for (; j + kLanes <= block.columns; j += kLanes) MultiplyPiece<kind, 1>(block, p, j, row);
    for (; j < block.columns; ++j) {
      float sum = 0;
      for (size_t k = 0; k < block.rank; ++k) sum += block.q[k * block.q_stride + j] * p[k * block.p_stride];
      row[j] = Combine<kind>(row[j], sum);
    }
  }
}

template void MultiplyFactors<Product::kStore>(const FactorBlock&, float*, size_t);
template void MultiplyFactors<Product::kAdd>(const FactorBlock&, float*, size_t);
template void MultiplyFactors<Product::kSubtract>(const FactorBlock&, float*, size_t);

}  // namespace sluice::compression
