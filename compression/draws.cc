#include "compression/draws.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/philox.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace sluice::compression {
namespace {

constexpr size_t kLanes = 8;   // blocks that are made side by side
constexpr size_t kDraws = 4 * kLanes;

#ifdef __AVX2__

// Four blocks, each word of theirs in the lower half of a 64-bit lane; the upper halves are rubbish, which the
// multiplication ignores.
void FourBlocks(std::array<uint32_t, 2> key, uint64_t first, uint32_t* out) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  __m256i c0 = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(first)), _mm256_set_epi64x(3, 2, 1, 0));
  __m256i c1 = _mm256_srli_epi64(c0, 32), c2 = _mm256_setzero_si256(), c3 = c2;
  for (int round = 0; round < 10; ++round) {
    const __m256i p0 = _mm256_mul_epu32(c0, m0), p1 = _mm256_mul_epu32(c2, m1);
    c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1), _mm256_set1_epi64x(key[0]));
    c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3), _mm256_set1_epi64x(key[1]));
    c1 = p1;
    c3 = p0;
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const __m256i low = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xAA);    // words 0 and 1 of each block
  const __m256i high = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xAA);   // 2 and 3
  const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8), _mm256_permute2x128_si256(even, odd, 0x31));
}

void EightBlocks(std::array<uint32_t, 2> key, uint64_t first, uint32_t* out) {
  FourBlocks(key, first, out);
  FourBlocks(key, first + 4, out + 16);
}

#else

// The draws of blocks [first, first + 8): Philox4x32 of base/philox.h, word by word over the lanes.
void EightBlocks(std::array<uint32_t, 2> key, uint64_t first, uint32_t* __restrict out) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes] = {}, c3[kLanes] = {};
  for (size_t j = 0; j < kLanes; ++j) {
    c0[j] = static_cast<uint32_t>(first + j);
    c1[j] = static_cast<uint32_t>((first + j) >> 32);
  }
  for (int round = 0; round < 10; ++round) {
    for (size_t j = 0; j < kLanes; ++j) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c0[j], p1 = uint64_t{0xCD9E8D57} * c2[j];
      c0[j] = static_cast<uint32_t>(p1 >> 32) ^ c1[j] ^ key[0];
      c2[j] = static_cast<uint32_t>(p0 >> 32) ^ c3[j] ^ key[1];
      c1[j] = static_cast<uint32_t>(p1);
      c3[j] = static_cast<uint32_t>(p0);
    }
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  for (size_t j = 0; j < kLanes; ++j) {
    out[4 * j] = c0[j];
    out[4 * j + 1] = c1[j];
    out[4 * j + 2] = c2[j];
    out[4 * j + 3] = c3[j];
  }
}

#endif

}  // namespace

uint64_t RandomSeed(std::string_view job, uint32_t rank) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : job) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return hash ^ (uint64_t{rank} + 1) * 0x9E3779B97F4A7C15;
}

std::array<uint32_t, 2> DrawKey(const RandomKey& random, DrawPurpose purpose) {
  const PhiloxBlock block = Philox4x32({static_cast<uint32_t>(random.round), static_cast<uint32_t>(random.round >> 32),
                                        random.tensor, static_cast<uint32_t>(purpose)},
                                       {static_cast<uint32_t>(random.seed), static_cast<uint32_t>(random.seed >> 32)});
  return {block[0], block[1]};
}

void FillDraws(std::array<uint32_t, 2> key, uint64_t first, std::span<uint32_t> out) {
  size_t at = 0;
  uint32_t group[kDraws];
  if (first % 4 != 0) {   // the rest of a block that begins before
    EightBlocks(key, first / 4, group);
    at = std::min<size_t>(kDraws - first % 4, out.size());
    std::copy_n(group + first % 4, at, out.begin());   // perhaps nothing, into nothing
  }
  for (; at + kDraws <= out.size(); at += kDraws) EightBlocks(key, (first + at) / 4, out.data() + at);
  if (at == out.size()) return;
  EightBlocks(key, (first + at) / 4, group);
  std::memcpy(out.data() + at, group, (out.size() - at) * sizeof(uint32_t));
}

}  // namespace sluice::compression
