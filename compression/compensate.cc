#include "compression/compensate.h"

#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "base/stream_copy.h"
#include "compression/half.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace sluice::compression {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

#ifdef __AVX2__
constexpr size_t kLine = 16, kAhead = 1024;   // elements

// Whole lines; returns how many elements those are. kStream: out must be aligned to 32 bytes.
template <bool kResidual, bool kStream>
size_t Lines(const float* g, const float* e, float scale, size_t n, float* p, float* out) {
  const __m256 factor = _mm256_set1_ps(scale), most = _mm256_set1_ps(kLargest), least = _mm256_set1_ps(-kLargest);
  size_t i = 0;
  for (; i + kLine <= n; i += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(g + i + kAhead), _MM_HINT_T0);   // beyond the end it does nothing
    if (kResidual) _mm_prefetch(reinterpret_cast<const char*>(e + i + kAhead), _MM_HINT_T0);
    for (size_t j = i; j < i + kLine; j += 8) {
      const __m256 mine = _mm256_loadu_ps(g + j);
      const __m256 sum = kResidual ? _mm256_add_ps(mine, _mm256_mul_ps(factor, _mm256_loadu_ps(e + j)))
                                   : _mm256_add_ps(mine, _mm256_setzero_ps());
      const __m256 held = kResidual ? _mm256_max_ps(least, _mm256_min_ps(most, sum)) : sum;
      _mm256_storeu_ps(p + j, held);
      if (kStream) _mm256_stream_ps(out + j, held);
    }
  }
  return i;
}
#endif

}  // namespace

void Compensate(const float* g, const float* e, float scale, size_t n, float* p) {
  size_t i = 0;
#ifdef __AVX2__
  i = e == nullptr ? Lines<false, false>(g, e, scale, n, p, nullptr) : Lines<true, false>(g, e, scale, n, p, nullptr);
#endif
  for (; i < n; ++i) p[i] = e == nullptr ? g[i] + 0.0f : Saturate(g[i] + scale * e[i], kLargest);
}

void CompensateAndStream(const float* g, const float* e, float scale, size_t n, float* p, float* out) {
#ifdef __AVX2__
  if (reinterpret_cast<uintptr_t>(out) % 32 == 0) {
    size_t i = e == nullptr ? Lines<false, true>(g, e, scale, n, p, out) : Lines<true, true>(g, e, scale, n, p, out);
    for (; i < n; ++i) out[i] = p[i] = e == nullptr ? g[i] + 0.0f : Saturate(g[i] + scale * e[i], kLargest);
    return;
  }
#endif
  Compensate(g, e, scale, n, p);
  StreamPiece(AsBytes({p, n}), AsWritableBytes({out, n}));
}

}  // namespace sluice::compression
