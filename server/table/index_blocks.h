// The memory of row_index.h: cache lines of entries, by blocks of one size, so that none is lost between them when
// pages grow.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/table/big_memory.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace sluice::server {

struct alignas(64) IndexGroup {
  static constexpr unsigned kEntries = 12;
  uint8_t tags[kEntries];
  uint32_t passed;
  uint32_t slots[kEntries];

  unsigned Matches(uint8_t tag) const {  // a bit an entry
#ifdef __SSE2__
    const __m128i line = _mm_load_si128(reinterpret_cast<const __m128i*>(tags));
    return static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(line, _mm_set1_epi8(static_cast<char>(tag))))) &
           0xFFF;
#else
    unsigned bits = 0;
    for (unsigned i = 0; i < kEntries; ++i) bits |= static_cast<unsigned>(tags[i] == tag) << i;
    return bits;
#endif
  }
};
static_assert(sizeof(IndexGroup) == 64);

inline constexpr uint32_t kBlockGroups = 64;  // 4 KiB

// Blocks have numbers and are cut from chunks of 512, the first ones of which become real as they are used. Blocks are
// given back to be taken again, chunks never.
class IndexBlocks {
 public:
  explicit IndexBlocks(bool huge_pages) : huge_pages_(huge_pages) {}

  uint32_t Take();  // of zeros
  void Give(uint32_t block) { unused_.push_back(block); }
  IndexGroup* At(uint32_t block) const {
    return reinterpret_cast<IndexGroup*>(chunks_[block / kChunkBlocks].get()) + block % kChunkBlocks * kBlockGroups;
  }
  size_t bytes() const { return taken_ * kBlockGroups * sizeof(IndexGroup) + unused_.capacity() * sizeof(unused_[0]); }

 private:
  static constexpr uint32_t kChunkBlocks = 512;  // 2 MiB

  const bool huge_pages_;
  std::vector<BigMemory> chunks_;  // of IndexGroup
  std::vector<uint32_t> unused_;
  uint32_t taken_ = 0;  // blocks that were ever taken; in huge pages, memory follows in steps of a chunk
};

}  // namespace sluice::server
