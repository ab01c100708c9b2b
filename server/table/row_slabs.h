// Memory of rows: each row inline in a slab, found by its slot, never moved while it lives.
//
// A row is header | values (fp32 or bf16, padded to 4) | state (fp32), all at multiples of 4 bytes. Slabs grow with the
// whole: 32 of 16 rows, then 32 of 32, 32 of 64 and so on, so that a slab is at most a 32nd of the rows before it, and
// a slot's slab follows from its leading six bits. Slabs become real page by page as rows come, so that a big one costs
// no pause; with huge_pages, all but small ones ask for those.
//
// Erased slots are kept in a list and used again before new ones; slabs are never given back.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/table/big_memory.h"

namespace sluice::server {

struct RowHeader {
  uint32_t id_halves[2];  // low, high: rows are aligned to 4 bytes. Of an erased row: the complement
  uint32_t last_round;    // of its last push; kErased = not a row
  uint32_t next;          // in a list of row_ages.h

  uint64_t id() const { return uint64_t{id_halves[1]} << 32 | id_halves[0]; }
  void set_id(uint64_t id) {
    id_halves[0] = static_cast<uint32_t>(id);
    id_halves[1] = static_cast<uint32_t>(id >> 32);
  }
};
static_assert(sizeof(RowHeader) == 16);

struct RowLayout {
  RowLayout(uint32_t dim, bool bf16, size_t state_floats);

  uint32_t dim;
  bool bf16;
  uint32_t state_floats;
  uint32_t state_at;  // offsets in bytes from the header
  uint32_t stride;
};

class RowSlabs {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;    // no slot
  static constexpr uint32_t kErased = UINT32_MAX;  // as last_round
  static constexpr uint32_t kMostRows = UINT32_MAX - 1024;

  RowSlabs(const RowLayout& layout, bool huge_pages) : layout_(layout), huge_pages_(huge_pages) {}

  std::byte* At(uint32_t slot) const {
    const uint64_t q = uint64_t{slot} + kOffset;  // its leading six bits name the slab
    const unsigned shift = static_cast<unsigned>(std::bit_width(q)) - 6;
    return slabs_[((shift - kLeastShift) << 5) + (q >> shift) - 32] +
           (q & ((uint64_t{1} << shift) - 1)) * layout_.stride;
  }
  RowHeader* Header(uint32_t slot) const { return reinterpret_cast<RowHeader*>(At(slot)); }

  // A slot whose header is `id`, round 0; `next` is as the slot's last row left it, kNone for a slot that is new.
  // Values and state are anything. Requires fewer than kMostRows slots in use.
  uint32_t Take(uint64_t id);
  void Free(uint32_t slot);

  uint32_t slots() const { return next_; }  // that were ever taken
  const RowLayout& layout() const { return layout_; }
  size_t bytes() const { return bytes_ + slabs_.capacity() * sizeof(slabs_[0]); }

 private:
  static constexpr unsigned kLeastShift = 4;  // 16 rows
  static constexpr uint64_t kOffset = uint64_t{32} << kLeastShift;

  uint32_t& FreeLink(uint32_t slot) const { return *reinterpret_cast<uint32_t*>(At(slot) + sizeof(RowHeader)); }
  void AddSlab(size_t rows);

  const RowLayout layout_;
  const bool huge_pages_;
  std::vector<std::byte*> slabs_;
  std::vector<BigMemory> regions_;    // own the slabs
  std::byte* region_next_ = nullptr;  // of the last region: what no slab has yet,
  size_t region_left_ = 0;            // so many bytes
  size_t region_slab_ = 0;            // by slabs of this size
  size_t bytes_ = 0;
  uint32_t next_ = 0;      // slots from here on were never taken
  uint64_t end_ = 0;       // slots that have memory
  uint32_t free_ = kNone;  // list through FreeLink
};

}  // namespace sluice::server
