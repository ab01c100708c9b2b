#include "compression/half.h"

#include <algorithm>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace sluice::compression {

void Fp16FromFloats(const float* values, size_t n, std::byte* out) {
  size_t i = 0;
#ifdef __F16C__
  const __m256 high = _mm256_set1_ps(kMaxFp16), low = _mm256_set1_ps(-kMaxFp16);
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_max_ps(_mm256_min_ps(_mm256_loadu_ps(values + i), high), low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  for (; i < n; ++i) StoreLe(out + 2 * i, Fp16FromFloat(values[i]));
}

void FloatsFromFp16(const std::byte* in, size_t n, float* values) {
  size_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 2 * i))));
#endif
  for (; i < n; ++i) values[i] = FloatFromFp16(LoadLe<uint16_t>(in + 2 * i));
}

void Bf16FromFloats(const float* __restrict values, size_t n, std::byte* __restrict out) {
  for (size_t i = 0; i < n; ++i) StoreLe(out + 2 * i, Bf16FromFloat(values[i]));
}

void FloatsFromBf16(const std::byte* __restrict in, size_t n, float* __restrict values) {
  for (size_t i = 0; i < n; ++i) values[i] = FloatFromBf16(LoadLe<uint16_t>(in + 2 * i));
}

size_t FirstNonfiniteHalf(const std::byte* in, size_t n, uint16_t exponent_mask) {
  constexpr size_t kBlock = 1024;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t end = std::min(n, begin + kBlock);
    uint16_t found = 0;
    for (size_t i = begin; i < end; ++i) {
      const uint16_t half = LoadLe<uint16_t>(in + 2 * i);
      found |= (half & exponent_mask) == exponent_mask;
    }
    if (found == 0) continue;
    for (size_t i = begin; i < end; ++i)
      if ((LoadLe<uint16_t>(in + 2 * i) & exponent_mask) == exponent_mask) return i;
  }
  return n;
}

}  // namespace sluice::compression
