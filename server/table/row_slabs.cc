#include "server/table/row_slabs.h"

#include <algorithm>

namespace sluice::server {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kRegion = size_t{32} << 20;     // of address space, that slabs are cut from
constexpr size_t kLeastCut = size_t{256} << 10;  // slabs of less stand alone: a huge page would be much to them

}  // namespace

RowLayout::RowLayout(uint32_t dim, bool bf16, size_t state_floats)
    : dim(dim), bf16(bf16), state_floats(static_cast<uint32_t>(state_floats)) {
  const uint32_t value_bytes = bf16 ? (2 * dim + 3) / 4 * 4 : 4 * dim;
  state_at = static_cast<uint32_t>(sizeof(RowHeader)) + value_bytes;
  stride = state_at + 4 * this->state_floats;
}

// Huge pages want memory that is contiguous by many of them, and slabs are small in a segment that is one of many: so
// slabs of a size are cut from regions. What of a region is not used yet is address space alone.
void RowSlabs::AddSlab(size_t rows) {
  const size_t size = rows * layout_.stride;
  if (region_left_ < size || region_slab_ != size) {
    const bool huge = huge_pages_ && size >= kLeastCut;
    const size_t same = 32 - slabs_.size() % 32;  // slabs of this size that are still to come
    const size_t region = huge ? std::clamp(kRegion / size, size_t{1}, same) * size : size;
    regions_.push_back(GetBigMemory(region, kLine, huge));
    region_slab_ = size;
    region_left_ = region;
    region_next_ = regions_.back().get();
  }
  slabs_.push_back(region_next_);
  region_next_ += size;
  region_left_ -= size;
  bytes_ += size;
  end_ += rows;
}

uint32_t RowSlabs::Take(uint64_t id) {
  uint32_t slot = free_;
  if (slot != kNone) {
    free_ = FreeLink(slot);
  } else {
    slot = next_++;
    if (slot >= end_) AddSlab(size_t{1} << (static_cast<unsigned>(std::bit_width(uint64_t{slot} + kOffset)) - 6));
    Header(slot)->next = kNone;
  }
  RowHeader* const header = Header(slot);
  header->set_id(id);
  header->last_round = 0;
  return slot;
}

void RowSlabs::Free(uint32_t slot) {
  RowHeader* const header = Header(slot);
  header->set_id(~header->id());
  header->last_round = kErased;
  FreeLink(slot) = free_;
  free_ = slot;
}

}  // namespace sluice::server
