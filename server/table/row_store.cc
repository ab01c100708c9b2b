#include "server/table/row_store.h"

namespace sluice::server {

uint32_t RowStore::Insert(uint64_t id) {
  const uint32_t slot = slabs_.Take(id);
  index_.Insert(id, slot);
  return slot;
}

void RowStore::Erase(uint32_t slot) {
  index_.Erase(slabs_.Header(slot)->id(), slot);
  slabs_.Free(slot);
}

size_t RowStore::MostBytes(const RowLayout& layout, uint64_t rows) {
  constexpr uint64_t kIndexBytes = 10;   // of a row; measured: below 9, pages that filled and emptied again included
  constexpr uint64_t kFixed = 16 << 10;  // a first slab, the tables of slabs and pages
  return rows * (layout.stride + layout.stride / 32 + 1 + kIndexBytes) + 16 * uint64_t{layout.stride} + kFixed;
}

}  // namespace sluice::server
