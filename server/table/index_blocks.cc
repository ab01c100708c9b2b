#include "server/table/index_blocks.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include <sys/mman.h>

namespace sluice::server {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kBlockBytes = kBlockGroups * sizeof(IndexGroup);

}  // namespace

void IndexBlocks::Release::operator()(IndexGroup* chunk) const { std::free(chunk); }

IndexGroup* IndexBlocks::Take() {
  if (unused_.empty()) {
    const size_t more = std::clamp<size_t>(blocks_ / 32, 1, kHugePage / kBlockBytes);
    const bool huge = huge_pages_ && more * kBlockBytes == kHugePage;
    void* chunk = nullptr;
    if (::posix_memalign(&chunk, huge ? kHugePage : kBlockBytes, more * kBlockBytes) != 0) throw std::bad_alloc();   // as operator new
    if (huge) ::madvise(chunk, kHugePage, MADV_HUGEPAGE);   // a wish: without it all works, slower
  chunks_.emplace_back(static_cast<IndexGroup*>(chunk));
    blocks_ += more;
    for (size_t i = more; i-- > 0;) unused_.push_back(chunks_.back().get() + i * kBlockGroups);
  }
  IndexGroup* const block = unused_.back();
  unused_.pop_back();
  std::memset(static_cast<void*>(block), 0, kBlockBytes);
  return block;
}

}  // namespace sluice::server
