// The arithmetic of lowrank: M of rows x columns is sent as P Q^T, P with orthonormal columns (PowerSGD, Vogels et al. 2019,
// algorithm 1). One step of subspace iteration from the Q of the round before, so that repeated rounds tend to the best rank.
//
// Layout: M by rows; P and Q by components, component k of P at p + k * rows and of Q at q + k * columns.
//
// Order of sums, a part of the format: all implementations write the same bytes.
//   over columns of M, and over rows of P:  16 sums, element i adds to sum i % 16 in rising order of i; then sum j adds sum
//                                           j + 8 for j < 8, and so with 4, 2, 1
//   over rows of M:                         one sum for each column and component, rows in rising order
//   over components:                        from zero, in rising order
// Elements of M count as held to [-kLargest, kLargest]: nothing overflows, and what exceeds it stays in the residual.
#pragma once

#include <cstddef>
#include <span>

namespace sluice::compression {

inline constexpr size_t kMaxRank = 64;
inline constexpr float kLargestMatrixElement = 0x1p80f;

// Sum of a[i] * b[i].
float FixedDot(const float* a, const float* b, size_t n);

// p[k * rows] = sum over j of m[j] * q[k * columns + j], for k < rank: a row of P = M Q.
void RowTimesFactor(const float* m, const float* q, size_t columns, size_t rows, size_t rank, float* p);

// q[k * columns + j] = sum over i of m[i * columns + j] * p[k * rows + i]: Q = M^T P.
void TransposeTimesFactor(const float* m, const float* p, size_t rows, size_t columns, size_t rank, float* q);

// Makes the components of P orthonormal, or zero where nothing is left of one: modified Gram-Schmidt, each component
// against those before it, twice. Components are brought to a largest magnitude in [1, 2) first; one whose largest is below
// 2^-100, or whose norm falls below 2^-16 of itself in the first pass, becomes zeros.
void Orthonormalize(float* p, size_t rows, size_t rank);

// Brings a component to a largest magnitude in [1, 2) by a power of two; false, and unchanged, if it is not finite or its
// largest magnitude lies outside of [2^-100, 2^120].
bool Normalize(std::span<float> component);

// A block of P Q^T: rows x columns of out, a row apart by out_stride; likewise components of p and q. The value is a sum over
// components; out becomes it, gains it, or loses it.
struct FactorBlock {
  const float *p, *q;
  size_t p_stride, q_stride;
  size_t rows, columns, rank;
};
enum class Product { kStore, kAdd, kSubtract };
template <Product kind>
void MultiplyFactors(const FactorBlock& block, float* out, size_t out_stride);

}  // namespace sluice::compression
