#include "worker/slab.h"

#include <utility>

namespace sluice::worker {

absl::StatusOr<std::shared_ptr<std::byte>> SlabAllocator::Allocate(size_t bytes) {
  if (bytes >= kOwnMapping) return endpoint_->Allocate(bytes);
  const size_t rounded = (bytes + kAlign - 1) / kAlign * kAlign;
  if (slab_ == nullptr || kSlabBytes - used_ < rounded) {
    absl::StatusOr<std::shared_ptr<std::byte>> slab = endpoint_->Allocate(kSlabBytes);
    if (!slab.ok()) return slab.status();
    slab_ = *std::move(slab);
    used_ = 0;
  }
  std::shared_ptr<std::byte> piece(slab_, slab_.get() + used_);
  used_ += rounded;
  return piece;
}

}  // namespace sluice::worker
