#include "compression/topk_select.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace sluice::compression {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kLeastList = 4096;   // shorter lists are not worth cutting

inline uint32_t Magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7FFFFFFF; }

// The k-th magnitude; *need becomes how many that equal it are among the k. Requires 0 < k <= values.
// A histogram of what lies between the least and the largest, 2^11 bins at most; then one of the k-th's bin alone, until a bin
// is one magnitude. Gradients that reach a bound lie within few octaves: a bin has few members, and neighbours seldom share one.
uint32_t FindLeast(std::span<const float> values, size_t k, size_t* need) {
  constexpr int kBits = 11;
  uint32_t low = UINT32_MAX, high = 0;
  for (const float v : values) {
    low = std::min(low, Magnitude(v));
    high = std::max(high, Magnitude(v));
  }
  *need = k;
  std::vector<float> members;
  for (;;) {
    const int shift = std::max(static_cast<int>(std::bit_width(high - low)) - kBits, 0);
    std::array<uint32_t, 1 << kBits> counts{};
    for (const float v : values) ++counts[(Magnitude(v) - low) >> shift];
    size_t bin = counts.size() - 1;
    for (; bin > 0 && counts[bin] < *need; --bin) *need -= counts[bin];
    low += static_cast<uint32_t>(bin) << shift;
    if (shift == 0) return low;
    high = low + (uint32_t{1} << shift) - 1;
    std::vector<float> narrower;
    narrower.reserve(counts[bin]);
    for (const float v : values)
      if (const uint32_t m = Magnitude(v); m >= low && m <= high) narrower.push_back(v);
    members = std::move(narrower);
    values = members;
  }
}

#ifdef __AVX2__
// For each mask of eight lanes: the lanes that are set, in order.
constexpr std::array<uint64_t, 256> MakeLaneOrders() {
  std::array<uint64_t, 256> orders{};
  for (unsigned mask = 0; mask < 256; ++mask)
    for (unsigned lane = 0, at = 0; lane < kLanes; ++lane)
      if ((mask >> lane & 1) != 0) orders[mask] |= uint64_t{lane} << (8 * at++);
  return orders;
}
constexpr std::array<uint64_t, 256> kLaneOrders = MakeLaneOrders();

// Full groups of 32 elements; returns how many elements those were. Most groups have none that reaches: one test skips them.
size_t AppendGroups(const float* block, size_t first, size_t length, uint32_t bound, uint32_t* indices, float* values,
                    size_t* size) {
  constexpr size_t kVectors = 4;
  const __m256i above = _mm256_set1_epi32(static_cast<int>(bound - 1)), sign = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  size_t at = 0, found = *size;
  for (; at + kVectors * kLanes <= length; at += kVectors * kLanes) {
    __m256i bits[kVectors], reaches[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      bits[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + at + v * kLanes));
      reaches[v] = _mm256_cmpgt_epi32(_mm256_and_si256(bits[v], sign), above);
    }
    const __m256i any = _mm256_or_si256(_mm256_or_si256(reaches[0], reaches[1]), _mm256_or_si256(reaches[2], reaches[3]));
    if (_mm256_testz_si256(any, any)) continue;
    for (size_t v = 0; v < kVectors; ++v) {
      const unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(reaches[v])));
      const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(kLaneOrders[mask])));
      const __m256i base = _mm256_set1_epi32(static_cast<int>(first + at + v * kLanes));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + found),
                          _mm256_add_epi32(base, _mm256_permutevar8x32_epi32(iota, order)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + found), _mm256_permutevar8x32_epi32(bits[v], order));
      found += static_cast<size_t>(std::popcount(mask));
    }
  }
  *size = found;
  return at;
}
#else
size_t AppendGroups(const float*, size_t, size_t, uint32_t, uint32_t*, float*, size_t*) { return 0; }
#endif

}  // namespace

void ReachList::Append(const float* block, size_t first, size_t length, uint32_t bound) {
  if (const size_t room = size_ + length + kLanes; room > indices_.size()) {
    const size_t larger = std::max(room, 2 * indices_.size());
    indices_.resize(larger);
    values_.resize(larger);
  }
  uint32_t* indices = indices_.data();
  float* values = values_.data();
  for (size_t i = AppendGroups(block, first, length, bound, indices, values, &size_); i < length; ++i) {
    indices[size_] = static_cast<uint32_t>(first + i);
    values[size_] = block[i];
    size_ += Magnitude(block[i]) >= bound;
  }
}

uint32_t ReachList::KeepLargest(size_t k) {
  if (size_ < k || k == 0) return 0;
  size_t need = 0;
  const uint32_t least = FindLeast(std::span(values_).first(size_), k, &need);
  if (size_ == k) return least;
  size_t kept = 0;
  for (size_t j = 0; j < size_; ++j) {
    const float value = values_[j];
    const uint32_t m = Magnitude(value);
    const bool tie = m == least && need > 0;
    need -= tie;
    indices_[kept] = indices_[j];   // kept never overtakes the reading
    values_[kept] = value;
    kept += m > least || tie;
  }
  size_ = kept;
  return least;
}

Picked ReachList::Take() {
  indices_.resize(size_);
  values_.resize(size_);
  size_ = 0;
  return {std::move(indices_), std::move(values_)};
}

void TopKSelector::Gather(const float* block, size_t first, size_t length) {
  if (k_ == 0) return;
  list_.Append(block, first, length, bound_);
  if (list_.size() < std::max(4 * k_, kLeastList)) return;
  least_ = list_.KeepLargest(k_);
  complete_ = true;
  bound_ = least_ + 1;   // at most the bits of infinity: nothing finite reaches that
}

bool TopKSelector::Finish() {
  if (k_ == 0) return true;
  if (list_.size() < k_) return bound_ == kAnyMagnitude;
  if (list_.size() > k_ || !complete_) least_ = list_.KeepLargest(k_);
  return true;
}

}  // namespace sluice::compression
