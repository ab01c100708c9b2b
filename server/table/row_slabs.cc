#include "server/table/row_slabs.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace sluice::server {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

RowLayout::RowLayout(uint32_t dim, bool bf16, size_t state_floats)
    : dim(dim), bf16(bf16), state_floats(static_cast<uint32_t>(state_floats)) {
  const uint32_t value_bytes = bf16 ? (2 * dim + 3) / 4 * 4 : 4 * dim;
  state_at = static_cast<uint32_t>(sizeof(RowHeader)) + value_bytes;
  stride = state_at + 4 * this->state_floats;
}

void RowSlabs::Release::operator()(std::byte* slab) const { std::free(slab); }

void RowSlabs::AddSlab(size_t rows) {
  const size_t size = rows * layout_.stride;
  const bool huge = huge_pages_ && size >= 2 * kHugePage;
  void* memory = nullptr;
  if (::posix_memalign(&memory, huge ? kHugePage : kLine, size) != 0) throw std::bad_alloc();  // as operator new would
  if (huge) ::madvise(memory, size / kHugePage * kHugePage, MADV_HUGEPAGE);  // a wish: without it all works, slower
  slabs_.emplace_back(static_cast<std::byte*>(memory));
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
