#include "server/sparse_sum.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "compression/index_pack.h"

namespace sluice::server {
namespace {

constexpr size_t kWordElements = 64;
constexpr size_t kSamples = 64, kSampleElements = 16;   // a cache line each
constexpr size_t kScanWords = 64;                       // between two looks at the limit

// Gaps are worth a try below this share of elements: with more, groups of 64 need more bits than one an element.
constexpr size_t kGapsBelow = 6;

bool NotZero(float value) { return std::bit_cast<uint32_t>(value) != 0; }

uint64_t WordOf(const float* at) {
  uint64_t word = 0;
  const __m256i zero = _mm256_setzero_si256();
  for (unsigned i = 0; i < kWordElements; i += 8) {
    const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + i));
    const int zeros = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(values, zero)));
    word |= static_cast<uint64_t>(~static_cast<unsigned>(zeros) & 0xFF) << i;
  }
  return word;
}

// The most elements that fit half of the dense form beside a bitmap.
size_t MostElements(size_t n) {
  const size_t half = n * sizeof(float) / 2, bitmap = compression::BitmapBytes(n);
  return half < bitmap ? 0 : (half - bitmap) / sizeof(float);
}

// By elements from all over the sum. What is dense in places only is judged by the whole.
bool LooksDense(std::span<const float> sum) {
  if (sum.size() < 4 * kSamples * kSampleElements) return false;   // as quickly counted
  const size_t stride = sum.size() / kSamples;
  size_t seen = 0;
  for (size_t i = 0; i < kSamples; ++i) {
    const auto sample = sum.subspan(i * stride, kSampleElements);
    seen += static_cast<size_t>(std::ranges::count_if(sample, NotZero));
  }
  return seen > kSamples * kSampleElements / 2;
}

}  // namespace

std::optional<SparseSum> SparseSum::Of(std::span<const float> sum) {
  const size_t n = sum.size(), most = MostElements(n);
  if (n > UINT32_MAX || LooksDense(sum)) return std::nullopt;
  SparseSum sparse;
  sparse.sum_ = sum;
  sparse.bitmap_.resize((n + kWordElements - 1) / kWordElements);
  const size_t whole = n / kWordElements;
  for (size_t word = 0; word < whole;) {
    for (const size_t end = std::min(whole, word + kScanWords); word < end; ++word) {
      const uint64_t bits = WordOf(&sum[word * kWordElements]);
      sparse.bitmap_[word] = bits;
      sparse.count_ += static_cast<size_t>(std::popcount(bits));
    }
    if (sparse.count_ > most) return std::nullopt;
  }
  for (size_t i = whole * kWordElements; i < n; ++i) {
    if (!NotZero(sum[i])) continue;
    sparse.bitmap_.back() |= uint64_t{1} << i % kWordElements;
    ++sparse.count_;
  }
  if (sparse.count_ > most) return std::nullopt;
  sparse.index_bytes_ = compression::BitmapBytes(n);
  if (sparse.count_ > n / kGapsBelow) return sparse;
  sparse.indices_.reserve(sparse.count_);
  for (size_t word = 0; word < sparse.bitmap_.size(); ++word) {
    for (uint64_t bits = sparse.bitmap_[word]; bits != 0; bits &= bits - 1) {
      const size_t index = word * kWordElements + static_cast<size_t>(std::countr_zero(bits));
      sparse.indices_.push_back(static_cast<uint32_t>(index));
    }
  }
  if (const size_t gaps = compression::PackedGapBytes(sparse.indices_); gaps < sparse.index_bytes_) {
    sparse.form_ = kSumGaps;
    sparse.index_bytes_ = gaps;
  }
  return sparse;
}

void SparseSum::Write(MutableBytes out) const {
  std::byte* at = out.data();
  for (size_t word = 0; word < bitmap_.size(); ++word) {
    for (uint64_t bits = bitmap_[word]; bits != 0; bits &= bits - 1) {
      StoreLe(at, sum_[word * kWordElements + static_cast<size_t>(std::countr_zero(bits))]);
      at += sizeof(float);
    }
  }
  if (form_ == kSumGaps) {
    compression::PackGaps(indices_, at);
  } else {
    // Its bytes are in the order of the elements: little-endian.
    std::ranges::copy(std::as_bytes(std::span(bitmap_)).first(index_bytes_), at);
  }
}

}  // namespace sluice::server
