// Memory for what grows large: from the heap, or in huge pages, straight from the kernel.
#pragma once

#include <cstddef>
#include <memory>

namespace sluice::server {

struct ReleaseBigMemory {
  size_t mapped = 0;  // bytes; 0: it is the heap's
  void operator()(std::byte* memory) const;
};
using BigMemory = std::unique_ptr<std::byte, ReleaseBigMemory>;

inline constexpr size_t kHugePage = size_t{2} << 20;

// At least `size` bytes, with any contents. It becomes real where it is touched first: 4 KiB at a time, or with
// huge_pages 2 MiB at a time, as far as that fits into `size` and the kernel agrees. Aligned to `alignment`, a power of
// two; with huge_pages to kHugePage. Throws std::bad_alloc as operator new does.
BigMemory GetBigMemory(size_t size, size_t alignment, bool huge_pages);

}  // namespace sluice::server
