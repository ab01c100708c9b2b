#include "server/vector_ops.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace sluice::server {
namespace {

constexpr uint32_t kExponent = 0x7F800000;   // infinities and NaNs have all of it; magnitudes compare as their bits do
constexpr uint32_t kMagnitude = 0x7FFFFFFF;
// The processor's own prefetching ends at each 4 KiB page, and so does its knowledge of where the next one lies.
constexpr size_t kPrefetchBytes = 1024;

template <bool kDivide>
bool Combine(ConstBytes a, ConstBytes b, float by, std::span<float> out) {
  const std::byte* x = a.data();
  const std::byte* y = b.data();
  const size_t n = out.size();
  uint32_t largest = 0;
  const auto one = [&](size_t i) {
    float value = LoadLe<float>(x + 4 * i) + LoadLe<float>(y + 4 * i);
    if (kDivide) value /= by;
    out[i] = value;
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & kMagnitude);
  };
  size_t i = 0;
  for (; i < n && reinterpret_cast<uintptr_t>(&out[i]) % 32 != 0; ++i) one(i);
  const __m256 divisor = _mm256_set1_ps(by);
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(kMagnitude));
  __m256i most = _mm256_setzero_si256();
  const auto eight = [&](size_t at) {
    __m256 value = _mm256_add_ps(_mm256_loadu_ps(reinterpret_cast<const float*>(x + 4 * at)),
                                 _mm256_loadu_ps(reinterpret_cast<const float*>(y + 4 * at)));
    if (kDivide) value = _mm256_div_ps(value, divisor);
    most = _mm256_max_epu32(most, _mm256_and_si256(mask, _mm256_castps_si256(value)));
    _mm256_stream_ps(&out[at], value);
  };
  for (; i + 16 <= n; i += 16) {
    _mm_prefetch(reinterpret_cast<const char*>(x + 4 * i + kPrefetchBytes), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(y + 4 * i + kPrefetchBytes), _MM_HINT_T0);
    eight(i);
    eight(i + 8);
  }
  for (; i < n; ++i) one(i);
  _mm_sfence();   // streamed stores are ordered by nothing else
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), most);
  for (const uint32_t lane : lanes) largest = std::max(largest, lane);
  return largest < kExponent;
}

}  // namespace

void Divide(std::span<float> values, float by) {
  for (float& value : values) value /= by;
}

void Multiply(std::span<float> values, float by) {
  for (float& value : values) value *= by;
}

bool AddBytes(ConstBytes a, ConstBytes b, std::span<float> out) { return Combine<false>(a, b, 1, out); }

bool MeanOfBytes(ConstBytes a, ConstBytes b, float by, std::span<float> out) { return Combine<true>(a, b, by, out); }

void Subtract(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = a[i] - b[i];
}

}  // namespace sluice::server
