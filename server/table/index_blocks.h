// The memory of row_index.h: cache lines of entries, by blocks of one size, so that none is lost between them when pages grow.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace sluice::server {

struct alignas(64) IndexGroup {
  static constexpr unsigned kEntries = 12;
  uint8_t tags[kEntries];
  uint32_t passed;
  uint32_t slots[kEntries];

  unsigned Matches(uint8_t tag) const {   // a bit an entry
#ifdef __SSE2__
    const __m128i line = _mm_load_si128(reinterpret_cast<const __m128i*>(tags));
    return static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(line, _mm_set1_epi8(static_cast<char>(tag))))) & 0xFFF;
#else
    unsigned bits = 0;
    for (unsigned i = 0; i < kEntries; ++i) bits |= static_cast<unsigned>(tags[i] == tag) << i;
    return bits;
#endif
  }
};
static_assert(sizeof(IndexGroup) == 64);

inline constexpr uint32_t kBlockGroups = 64;   // 4 KiB

// Blocks are cut from chunks, which grow with the whole to 2 MiB; they are given back to be taken again, chunks never.
class IndexBlocks {
 public:
  explicit IndexBlocks(bool huge_pages) : huge_pages_(huge_pages) {}

  IndexGroup* Take();              // zeros
  void Give(IndexGroup* block) { unused_.push_back(block); }
  size_t bytes() const { return blocks_ * kBlockGroups * sizeof(IndexGroup) + unused_.capacity() * sizeof(unused_[0]); }

 private:
  struct Release {
    void operator()(IndexGroup* chunk) const;
  };
  const bool huge_pages_;   // asked for when chunks are that big
  std::vector<std::unique_ptr<IndexGroup[], Release>> chunks_;
  std::vector<IndexGroup*> unused_;
  size_t blocks_ = 0;   // of all chunks
};

}  // namespace sluice::server
