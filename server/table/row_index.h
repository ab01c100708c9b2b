// From ids to slots: open addressing over lines of the cache, in pages that grow one at a time.
//
// A group is one cache line: 12 tags of 8 bits (0 = free), 12 slots, and how many entries had to pass it because it was
// full. A page is an array of groups, probed one after the other from a home that follows from the id; a lookup ends at a
// group that nobody has passed. An erased entry is gone at once and takes back its marks of passing, so no tombstones gather
// (as in Facebook's F14). Tags only hint: the id is compared in the row.
//
// Growth is by small acts, so that no insert pauses: a page that is full gets one or two blocks of 64 groups more; and for every 4096 rows
// one page is split in two, in turn (linear hashing, Litwin 1980), so that pages hold 4,000 to 8,200 rows whatever the number
// of rows. Either act moves one page's entries. A row's share of the index is 6.4 to 8 bytes (more below 1,000 rows). The
// index never shrinks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compression/row_payload.h"
#include "server/table/index_blocks.h"
#include "server/table/row_slabs.h"

namespace sluice::server {

class RowIndex {
 public:
  struct Page {
    std::vector<IndexGroup*> blocks;
    uint32_t rows = 0;
    uint32_t block_rows = 0;   // at most, on average

    uint32_t group_count() const { return static_cast<uint32_t>(blocks.size() * kBlockGroups); }
    IndexGroup& group(uint32_t at) const { return blocks[at / kBlockGroups][at % kBlockGroups]; }
    uint32_t Next(uint32_t at) const { return at + 1 == group_count() ? 0 : at + 1; }
  };

  static constexpr uint32_t kNone = RowSlabs::kNone;
  static constexpr size_t kPageRows = 4096;

  RowIndex(const RowSlabs* slabs, bool huge_pages);

  uint32_t Find(uint64_t id) const;
  void Insert(uint64_t id, uint32_t slot);   // id is not there; the slot's header has it
  void Erase(uint64_t id, uint32_t slot);    // is there

  size_t rows() const { return rows_; }
  size_t bytes() const { return blocks_.bytes() + pages_.capacity() * sizeof(Page) + pages_.size() * kPageBytes; }

  // A lookup in steps, for callers that keep many in flight: Start, fetch the home; First, fetch the row; compare its id.
  struct Probe {
    const IndexGroup* home;
    const Page* page;
    uint32_t at;   // of the home in the page
    uint8_t tag;
  };
  Probe Start(uint64_t id) const {
    const Hash hash(id);
    const Page& page = pages_[PageOf(hash)];
    const uint32_t at = hash.Home(page.group_count());
    return {&page.group(at), &page, at, hash.tag()};
  }
  // The slot that the first equal tag suggests; kNone if the row is surely not there.
  static uint32_t First(const Probe& probe) {
    const IndexGroup* group = probe.home;
    uint32_t at = probe.at;
    for (uint32_t probes = 0; probes < probe.page->group_count(); ++probes) {
      if (const unsigned matches = group->Matches(probe.tag); matches != 0) return group->slots[std::countr_zero(matches)];
      if (group->passed == 0) return kNone;
      at = probe.page->Next(at);
      group = &probe.page->group(at);
    }
    return kNone;
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

  // Pages that wait to be split have about the same number of rows; so that not all grow at once, one fills its blocks to 79 %
  // and another to 88 % first.
  static uint32_t BlockRows(size_t page) { return static_cast<uint32_t>(19 * kBlockGroups / 2 + page * 37 % kBlockGroups); }
  static constexpr size_t kPageBytes = 160;                   // of the list of a page's blocks, as allocated

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
  IndexBlocks blocks_;
};

}  // namespace sluice::server
