// Memory of the endpoint for payloads that live as long as their partition. Small pieces share slabs, so that ten
// thousand small tensors do not become ten thousand mappings; large ones have a mapping each. Single-threaded.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "transport/transport.h"

namespace sluice::worker {

class SlabAllocator {
 public:
  static constexpr size_t kSlabBytes = 1 << 20;
  static constexpr size_t kOwnMapping = kSlabBytes / 4;  // pieces from this size are not carved out of slabs
  static constexpr size_t kAlign = 64;

  explicit SlabAllocator(transport::Endpoint* endpoint) : endpoint_(endpoint) {}

  // Zeroed when the slab is new; a slab is freed with the last of its pieces.
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes);

 private:
  transport::Endpoint* const endpoint_;
  std::shared_ptr<std::byte> slab_;
  size_t used_ = 0;
};

}  // namespace sluice::worker
