// The rows of a segment: found by id, inline in slabs, made and erased one at a time.
//
// Memory: with dim 16, fp32 and sgd a row is 64 bytes of values and 8 of id; the store takes at most 93 bytes for it (1.3
// times) from about 1,000 rows on: 80 in the slab (with its last round and the link of row_ages.h), 7.5 of index, 2.5 of
// slab not used yet, and the rest for pages. Bigger rows are nearer to 1. tests: row_store_test.cc. Lookups allocate
// nothing; an insert moves at most one page of the index in two (about 8,000 rows).
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
  RowStore(const RowStore&) = delete;   // the index points to the slabs
  RowStore& operator=(const RowStore&) = delete;

  uint32_t Find(uint64_t id) const { return index_.Find(id); }

  // Calls visit(i, slot or kNone) for each id in order, with the memory of those ahead on its way. visit may erase the row
  // that it is called with, and nothing else.
  template <typename Visit>
  void VisitRows(std::span<const uint64_t> ids, Visit visit) const;

  void Prefetch(uint64_t id) const { __builtin_prefetch(index_.Start(id).home); }   // for Find and Insert
  uint32_t Insert(uint64_t id);   // requires that it is not there; values and state are anything
  void Erase(uint32_t slot);

  RowHeader* header(uint32_t slot) const { return slabs_.Header(slot); }
  bool live(uint32_t slot) const { return slabs_.Header(slot)->last_round != RowSlabs::kErased; }
  std::byte* raw_values(uint32_t slot) const { return slabs_.At(slot) + sizeof(RowHeader); }
  std::span<float> values(uint32_t slot) const {   // of fp32 rows
    return {reinterpret_cast<float*>(raw_values(slot)), layout().dim};
  }
  std::span<float> state(uint32_t slot) const {
    return {reinterpret_cast<float*>(slabs_.At(slot) + layout().state_at), layout().state_floats};
  }

  const RowLayout& layout() const { return slabs_.layout(); }
  size_t rows() const { return index_.rows(); }
  uint32_t slots() const { return slabs_.slots(); }   // below which all slots lie
  size_t bytes() const { return slabs_.bytes() + index_.bytes(); }

  // What `rows` rows take at most, for bounds on bytes.
  static size_t MostBytes(const RowLayout& layout, uint64_t rows);

 private:
  static constexpr size_t kBatch = 32;
  static constexpr size_t kLine = 64;
  static constexpr size_t kAhead = 6 * kLine;   // of a row; the processor fetches the rest by itself

  RowSlabs slabs_;
  RowIndex index_;
};

// Two batches are in flight: while batch b is visited, the rows of batch b + 1 and the groups of batch b + 2 are fetched.
template <typename Visit>
void RowStore::VisitRows(std::span<const uint64_t> ids, Visit visit) const {
  RowIndex::Probe probes[kBatch];
  uint32_t slots[2][kBatch];
  const size_t ahead = std::min<size_t>(layout().stride, kAhead);
  const size_t batches = (ids.size() + kBatch - 1) / kBatch;
  const auto end = [&](size_t batch) { return std::min(ids.size(), (batch + 1) * kBatch); };
  const auto start = [&](size_t batch) {   // the groups
    for (size_t i = batch * kBatch; i < end(batch); ++i) {
      probes[i % kBatch] = index_.Start(ids[i]);
      __builtin_prefetch(probes[i % kBatch].home);
    }
  };
  const auto guess = [&](size_t batch) {   // the rows
    for (size_t i = batch * kBatch; i < end(batch); ++i) {
      const uint32_t slot = slots[batch % 2][i % kBatch] = RowIndex::First(probes[i % kBatch]);
      if (slot == kNone) continue;
      const std::byte* const row = slabs_.At(slot);
      const std::byte* line = row - reinterpret_cast<uintptr_t>(row) % kLine;
      for (; line < row + ahead; line += kLine) __builtin_prefetch(line);
    }
  };
  if (batches > 0) {
    start(0);
    guess(0);
  }
  if (batches > 1) start(1);
  for (size_t batch = 0; batch < batches; ++batch) {
    if (batch + 1 < batches) guess(batch + 1);
    if (batch + 2 < batches) start(batch + 2);
    for (size_t i = batch * kBatch; i < end(batch); ++i) {
      uint32_t slot = slots[batch % 2][i % kBatch];
      if (slot != kNone && slabs_.Header(slot)->id() != ids[i]) slot = index_.Find(ids[i]);   // an equal tag of another
      visit(i, slot);
    }
  }
}

}  // namespace sluice::server
