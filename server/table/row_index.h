// From ids to slots: open addressing over lines of the cache, in pages that grow one at a time.
//
// A group is one cache line: 12 tags of 8 bits (0 = free), 12 slots, and how many entries had to pass it because it was
// full. A page is an array of groups, probed one after the other from a home that follows from the id; a lookup ends at
// a group that nobody has passed. An erased entry is gone at once and takes back its marks of passing, so no tombstones
// gather (as in Facebook's F14). Tags only hint: the id is compared in the row.
//
// Growth is by small acts, so that no insert pauses. For every 3400 rows one page is split in two, in turn (linear
// hashing, Litwin 1980), so that pages hold 1,700 to 7,000 rows whatever the number of rows. A page is split when it
// has twice the rows that it began with, and in between, when it has 1.45 times as many, it is moved to more blocks of
// 64 groups. As it goes by the rows that a page began with, both come evenly: 3.4 entries are moved for each new row,
// and never all pages' at the same time. A row's share of the index is about 8 bytes. The index never shrinks.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compression/row_payload.h"
#include "server/table/index_blocks.h"
#include "server/table/row_slabs.h"

namespace sluice::server {

class RowIndex {
 public:
  static constexpr uint32_t kNone = RowSlabs::kNone;
  static constexpr size_t kPageRows = 3400;

  RowIndex(const RowSlabs* slabs, bool huge_pages);

  uint32_t Find(uint64_t id) const;
  void Insert(uint64_t id, uint32_t slot);  // id is not there; the slot's header has it
  void Erase(uint64_t id, uint32_t slot);   // is there

  size_t rows() const { return rows_; }
  uint64_t moved() const { return moved_; }  // entries that growth has moved so far
  size_t bytes() const { return blocks_.bytes() + pages_.capacity() * sizeof(Page) + spilled_.size() * kSpilledBytes; }

 private:
  // Segments take the upper bits of MixId, so pages take the lower ones, and home and tag come from another product.
  struct Hash {
    explicit Hash(uint64_t id) : id(id), low(compression::MixId(id)), high(low * 0x9E3779B97F4A7C15) {}
    uint32_t Home(uint32_t groups) const { return static_cast<uint32_t>(((high >> 32) * groups) >> 32); }
    uint8_t tag() const {
      const auto tag = static_cast<uint8_t>(high >> 24);
      return tag == 0 ? 1 : tag;
    }
    uint64_t id, low, high;
  };

  static constexpr uint32_t kMostBlocks = 13;
  struct alignas(64) Page {  // one cache line, all that a lookup has to know
    uint32_t rows = 0;       // without spilled ones
    uint16_t grow_at = 0;    // rows with which it gets more blocks, or spills if it has the most
    uint8_t block_count = 0;
    bool spilled = false;  // it or a page that it was split from has had entries in spilled_
    uint32_t group_count = 0;
    uint32_t blocks[kMostBlocks] = {};
  };
  static_assert(sizeof(Page) == 64);

 public:
  // A lookup in steps, for callers that keep many in flight: each fetches what the next looks at.
  class Probe {
   public:
    Probe() = default;
    [[gnu::always_inline]] Probe(const RowIndex& index, uint64_t id)
        : hash_(id), page_(&index.pages_[index.PageOf(hash_)]) {
      __builtin_prefetch(page_);
    }
    [[gnu::always_inline]] void FindHome(const RowIndex& index) {
      at_ = hash_.Home(page_->group_count);
      home_ = &index.GroupAt(*page_, at_);
      __builtin_prefetch(home_);
    }
    // The slot that the first equal tag suggests: its row's id is to be compared, and Find to be asked if it is
    // another. kNone if the row is surely not there.
    uint32_t First(const RowIndex& index) const {
      const IndexGroup* group = home_;
      uint32_t at = at_;
      for (uint32_t probes = 0; probes < page_->group_count; ++probes) {
        if (const unsigned matches = group->Matches(hash_.tag()); matches != 0)
          return group->slots[std::countr_zero(matches)];
        if (group->passed == 0) break;
        at = Next(*page_, at);
        group = &index.GroupAt(*page_, at);
      }
      return page_->spilled ? index.FindSpilled(hash_.id) : kNone;
    }

   private:
    Hash hash_{0};
    const Page* page_;
    const IndexGroup* home_;
    uint32_t at_;
  };

 private:
  static constexpr uint32_t kBlockRows = kBlockGroups * IndexGroup::kEntries * 7 / 8;  // at most, on average
  static constexpr size_t kSpilledBytes = 32;  // of an entry, as a hash table takes them at most

  size_t PageOf(const Hash& hash) const {
    const size_t page = hash.low & mask_;
    return page < pages_.size() ? page : page & (mask_ >> 1);
  }
  IndexGroup& GroupAt(const Page& page, uint32_t at) const {
    return blocks_.At(page.blocks[at / kBlockGroups])[at % kBlockGroups];
  }
  static uint32_t Next(const Page& page, uint32_t at) { return at + 1 == page.group_count ? 0 : at + 1; }
  uint32_t FindSpilled(uint64_t id) const {
    const auto found = spilled_.find(id);
    return found == spilled_.end() ? kNone : found->second;
  }
  void Put(Page& page, const Hash& hash, uint32_t slot);
  void Rebuild(Page* page, const std::vector<uint32_t>& slots);  // with as many blocks as they need and some more
  std::vector<uint32_t> Slots(const Page& page) const;
  void SplitNext();

  const RowSlabs* const slabs_;
  std::vector<Page> pages_;
  size_t mask_ = 0;  // of the round of splits under way: pages_.size() is in (mask_ / 2 + 1, mask_ + 1]
  size_t rows_ = 0;
  uint64_t moved_ = 0;
  IndexBlocks blocks_;
  // Entries that their page has no room for: with ids that were chosen to share the bits that pages go by, never else.
  absl::flat_hash_map<uint64_t, uint32_t> spilled_;
};

}  // namespace sluice::server
