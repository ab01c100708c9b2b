#include "server/table/index_blocks.h"

#include <cstring>

namespace sluice::server {
namespace {

constexpr size_t kBlockBytes = kBlockGroups * sizeof(IndexGroup);

}  // namespace

uint32_t IndexBlocks::Take() {
  uint32_t block = taken_;
  if (!unused_.empty()) {
    block = unused_.back();
    unused_.pop_back();
  } else if (taken_++ % kChunkBlocks == 0) {
    const bool first = chunks_.empty();  // small segments use little of it: small pages
    chunks_.push_back(GetBigMemory(kChunkBlocks * kBlockBytes, kBlockBytes, huge_pages_ && !first));
  }
  std::memset(static_cast<void*>(At(block)), 0, kBlockBytes);
  return block;
}

}  // namespace sluice::server
