#include "base/stream_copy.h"

#include <immintrin.h>

#include <algorithm>
#include <cassert>

namespace sluice {
namespace {

constexpr size_t kFromBytes = 256 << 10;   // below it the copy fits the second level of every server's cache
constexpr size_t kLine = 64;
// The processor's own prefetching ends at each 4 KiB page.
constexpr size_t kPrefetchBytes = 1024;

template <bool kPrefetch>
void Stream(ConstBytes from, MutableBytes to) {
  const std::byte* in = from.data();
  std::byte* out = to.data();
  const size_t head = std::min(from.size(), (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine);
  std::memcpy(out, in, head);
  size_t at = head;
  for (; at + kLine <= from.size(); at += kLine) {
    if (kPrefetch) _mm_prefetch(reinterpret_cast<const char*>(in + at + kPrefetchBytes), _MM_HINT_T0);
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + at));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + at + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out + at + 32), high);
  }
  std::memcpy(out + at, in + at, from.size() - at);
}

}  // namespace

void StreamCopy(ConstBytes from, MutableBytes to) {
  assert(from.size() == to.size());
  if (from.size() < kFromBytes) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  Stream<true>(from, to);
  _mm_sfence();   // streamed stores are ordered by nothing else
}

void StreamPiece(ConstBytes from, MutableBytes to) {
  assert(from.size() == to.size());
  if (!from.empty()) Stream<false>(from, to);
}

void StreamFence() { _mm_sfence(); }

}  // namespace sluice
