// From ids to slots: open addressing over lines of the cache, in pages that grow one at a time.
//
// A group is one cache line: 12 tags of 8 bits (0 = free), 12 slots, and how many entries had to pass it because it was
// full. A page is an array of groups, probed one after the other from a home that follows from the id; a lookup ends at a
// group that nobody has passed. An erased entry is gone at once and takes back its marks of passing, so no tombstones gather
// (as in Facebook's F14). Tags only hint: the id is compared in the row.
//
// Growth is by small acts, so that no insert pauses: a page that is full gets an eighth more groups; and for every 4096 rows
// one page is split in two, in turn (linear hashing, Litwin 1980), so that pages hold 4,000 to 8,200 rows whatever the number
// of rows. Either act moves one page's entries. A row's share of the index is 6.4 to 7.5 bytes (more below 100 rows). The
// index never shrinks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "compression/row_payload.h"
#include "server/table/row_slabs.h"

namespace sluice::server {

class RowIndex {
 public:
  static constexpr uint32_t kNone = RowSlabs::kNone;
  static constexpr size_t kPageRows = 4096;

  explicit RowIndex(const RowSlabs* slabs);

  uint32_t Find(uint64_t id) const;
  void Insert(uint64_t id, uint32_t slot);   // id is not there; the slot's header has it
  void Erase(uint64_t id, uint32_t slot);    // is there

  size_t rows() const { return rows_; }
  size_t bytes() const { return bytes_ + pages_.capacity() * sizeof(Page); }

  // A lookup in steps, for callers that keep many in flight: Start, fetch Line(); First, fetch the row; compare its id.
  struct alignas(64) Group {
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
  static_assert(sizeof(Group) == 64);

  struct Probe {
    const Group* group;
    uint8_t tag;
  };
  Probe Start(uint64_t id) const {
    const Hash hash(id);
    const Page& page = pages_[PageOf(hash)];
    return {page.groups.get() + hash.Home(page.group_count), hash.tag()};
  }
  // The slot that the home group suggests; kNone if the row is surely not there; kAsk if only Find knows.
  static constexpr uint32_t kAsk = UINT32_MAX - 1;
  static uint32_t First(const Probe& probe) {
    const unsigned matches = probe.group->Matches(probe.tag);
    if (matches != 0) return probe.group->slots[std::countr_zero(matches)];
    return probe.group->passed == 0 ? kNone : kAsk;
  }

 private:
  // Segments take the upper bits of MixId, so pages take the lower ones, and home and tag come from another product.
  struct Hash {
    explicit Hash(uint64_t id) : low(compression::MixId(id)), high(low * 0x9E3779B97F4A7C15) {}
    uint32_t Home(uint32_t groups) const { return static_cast<uint32_t>(((high >> 32) * groups) >> 32); }
    uint8_t tag() const {
      const auto tag = static_cast<uint8_t>(high >> 24);
      return tag == 0 ? 1 : tag;
    }
    uint64_t low, high;
  };

  struct Page {
    std::unique_ptr<Group[]> groups;
    uint32_t group_count = 0;
    uint32_t rows = 0;
  };
  static uint64_t RowsOf(uint32_t groups) { return uint64_t{groups} * 10; }   // of 12
  static uint32_t GroupsFor(uint64_t rows) { return static_cast<uint32_t>((rows + rows / 8 + 9) / 10); }

  size_t PageOf(const Hash& hash) const {
    const size_t page = hash.low & mask_;
    return page < pages_.size() ? page : page & (mask_ >> 1);
  }
  static void Put(Page& page, const Hash& hash, uint32_t slot);
  void Rebuild(Page* page, const std::vector<uint32_t>& slots);
  std::vector<uint32_t> Slots(const Page& page) const;
  void SplitNext();

  const RowSlabs* const slabs_;
  std::vector<Page> pages_;
  size_t mask_ = 0;   // of the round of splits under way: pages_.size() is in (mask_ / 2 + 1, mask_ + 1]
  size_t rows_ = 0;
  size_t bytes_ = 0;
};

}  // namespace sluice::server
