// The rows of a segment: found by id, inline in slabs, made and erased one at a time.
//
// Memory: with dim 16, fp32 and sgd a row is 64 bytes of values and 8 of id; the store takes at most 93.6 bytes for it
// (1.3 times) from about 1,000 rows on: 80 in the slab (with its last round and the link of row_ages.h), 7 to 9 of
// index, up to 2.5 of slab not used yet. Bigger rows are nearer to 1. row_store_test.cc measures it. Lookups allocate
// nothing; an insert moves at most two pages of the index (about 7,000 entries each), on average four entries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "server/table/row_index.h"
#include "server/table/row_slabs.h"

namespace sluice::server {

class RowStore {
 public:
  static constexpr uint32_t kNone = RowSlabs::kNone;

  explicit RowStore(const RowLayout& layout, bool huge_pages = true)
      : slabs_(layout, huge_pages), index_(&slabs_, huge_pages) {}
  RowStore(const RowStore&) = delete;  // the index points to the slabs
  RowStore& operator=(const RowStore&) = delete;

  uint32_t Find(uint64_t id) const { return index_.Find(id); }

  // Calls visit(i, slot or kNone) for each id in order, with the memory of those ahead on its way. visit may erase the
  // row that it is called with, and nothing else.
  template <typename Visit>
  void VisitRows(std::span<const uint64_t> ids, Visit visit) const;

  // For Find and Insert, in two steps: the second some calls later. In the caller's own body, because gcc takes a
  // function that only prefetches for one without effect, and drops the calls of it.
  [[gnu::always_inline]] void PrefetchPage(uint64_t id) const { RowIndex::Probe(index_, id); }
  [[gnu::always_inline]] void PrefetchHome(uint64_t id) const { RowIndex::Probe(index_, id).FindHome(index_); }
  uint32_t Insert(uint64_t id);  // requires that it is not there; values and state are anything
  void Erase(uint32_t slot);

  RowHeader* header(uint32_t slot) const { return slabs_.Header(slot); }
  bool live(uint32_t slot) const { return slabs_.Header(slot)->last_round != RowSlabs::kErased; }
  std::byte* raw_values(uint32_t slot) const { return slabs_.At(slot) + sizeof(RowHeader); }
  std::span<float> values(uint32_t slot) const {  // of fp32 rows
    return {reinterpret_cast<float*>(raw_values(slot)), layout().dim};
  }
  std::span<float> state(uint32_t slot) const {
    return {reinterpret_cast<float*>(slabs_.At(slot) + layout().state_at), layout().state_floats};
  }

  const RowLayout& layout() const { return slabs_.layout(); }
  size_t rows() const { return index_.rows(); }
  uint64_t moved() const { return index_.moved(); }
  uint32_t slots() const { return slabs_.slots(); }  // below which all slots lie
  size_t bytes() const { return slabs_.bytes() + index_.bytes(); }

  // What `rows` rows take at most, for bounds on bytes.
  static size_t MostBytes(const RowLayout& layout, uint64_t rows);

 private:
  static constexpr size_t kApart = 8;
  static constexpr size_t kInFlight = 64;  // ids; a power of two, at least 3 kApart
  static constexpr size_t kLine = 64;
  static constexpr size_t kAhead = 6 * kLine;  // of a row; the processor fetches the rest by itself

  RowSlabs slabs_;
  RowIndex index_;
};

// Each turn takes one id through one act: fetch its page, its home, its row, and visit it. The acts of an id are kApart
// turns from each other, so that fetches and work alternate and as many lines are on their way as a core can have.
template <typename Visit>
void RowStore::VisitRows(std::span<const uint64_t> ids, Visit visit) const {
  RowIndex::Probe probes[kInFlight];
  uint32_t slots[kInFlight];
  const size_t ahead = std::min<size_t>(layout().stride, kAhead);
  const auto fetch_row = [&](size_t i) {
    const uint32_t slot = slots[i % kInFlight] = probes[i % kInFlight].First(index_);
    if (slot == kNone) return;
    const std::byte* const row = slabs_.At(slot);
    const std::byte* line = row - reinterpret_cast<uintptr_t>(row) % kLine;
    for (; line < row + ahead; line += kLine) __builtin_prefetch(line);
  };
  const auto visit_row = [&](size_t i) {
    uint32_t slot = slots[i % kInFlight];
    if (slot != kNone && slabs_.Header(slot)->id() != ids[i]) [[unlikely]]
      slot = index_.Find(ids[i]);  // an equal tag
    visit(i, slot);
  };
  const size_t n = ids.size();
  size_t paged = 0, homed = 0, fetched = 0, visited = 0;  // ids that have had the act
  while (visited + 3 * kApart < n) {
    for (; paged < std::min(n, visited + 3 * kApart); ++paged)
      probes[paged % kInFlight] = RowIndex::Probe(index_, ids[paged]);
    for (; homed < visited + 2 * kApart; ++homed) probes[homed % kInFlight].FindHome(index_);
    for (; fetched < visited + kApart; ++fetched) fetch_row(fetched);
    visit_row(visited++);
  }
  for (; paged < n; ++paged) probes[paged % kInFlight] = RowIndex::Probe(index_, ids[paged]);
  for (; homed < n; ++homed) probes[homed % kInFlight].FindHome(index_);
  for (; fetched < n; ++fetched) fetch_row(fetched);
  for (; visited < n; ++visited) visit_row(visited);
}

}  // namespace sluice::server
