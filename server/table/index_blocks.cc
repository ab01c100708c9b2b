#include "server/table/index_blocks.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace sluice::server {
namespace {

constexpr size_t kBlockBytes = kBlockGroups * sizeof(IndexGroup);

}  // namespace

void IndexBlocks::Release::operator()(IndexGroup* chunk) const { std::free(chunk); }

uint32_t IndexBlocks::Take() {
  uint32_t block = taken_;
  if (!unused_.empty()) {
    block = unused_.back();
    unused_.pop_back();
  } else if (taken_++ % kChunkBlocks == 0) {
    constexpr size_t kChunkBytes = kChunkBlocks * kBlockBytes;
    const bool first = chunks_.empty();  // small segments use little of it: small pages
    void* chunk = nullptr;
    if (::posix_memalign(&chunk, first ? kBlockBytes : kChunkBytes, kChunkBytes) != 0)
      throw std::bad_alloc();                                                 // as operator new
    if (huge_pages_ && !first) ::madvise(chunk, kChunkBytes, MADV_HUGEPAGE);  // a wish: without it all works, slower
    chunks_.emplace_back(static_cast<IndexGroup*>(chunk));
  }
  std::memset(static_cast<void*>(At(block)), 0, kBlockBytes);
  return block;
}

}  // namespace sluice::server
