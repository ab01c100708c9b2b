#include "server/table/big_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

namespace sluice::server {

void ReleaseBigMemory::operator()(std::byte* memory) const {
  if (mapped == 0) {
    std::free(memory);
  } else {
    ::munmap(memory, mapped);
  }
}

BigMemory GetBigMemory(size_t size, size_t alignment, bool huge_pages) {
  if (!huge_pages) {
    void* memory = nullptr;
    if (::posix_memalign(&memory, alignment, size) != 0) throw std::bad_alloc();
    return BigMemory(static_cast<std::byte*>(memory));
  }
  // Not by way of the heap: its header before the block would touch a page more.
  constexpr size_t kPage = 4096;
  size = (size + kPage - 1) / kPage * kPage;
  void* const mapped =
      ::mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  std::byte* const first = static_cast<std::byte*>(mapped);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(first) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(first, before);
  if (before < kHugePage) ::munmap(first + before + size, kHugePage - before);
  ::madvise(first + before, size, MADV_HUGEPAGE);  // a wish: without it all works, slower
  return BigMemory(first + before, {size});
}

}  // namespace sluice::server
