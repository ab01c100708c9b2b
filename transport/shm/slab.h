// Page-aligned memory that peers on this host can map: carved out of sealed memfds ("slabs").
//
// Allocations below half a slab share slabs (first fit, neighbours are joined again); larger ones have a slab of their
// own. Pages of freed memory go back to the system at once and read as zero when they are used again. Slab ids are
// never reused. Thread-safe; it lives as long as the last memory that came from it, so that may outlive its endpoint.
// Endpoints of one process may share one allocator; then any of them sends the others' memory by reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/shm/shared_memory.h"

namespace sluice::transport {

// A piece of a slab, as it is named to peers.
struct SlabRange {
  uint32_t slab = 0;  // 0 = none
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct SlabFile {
  UniqueFd fd;  // a duplicate of the caller's own
  uint64_t bytes = 0;
};

class SlabAllocator : public std::enable_shared_from_this<SlabAllocator> {
 public:
  static constexpr size_t kDefaultSlabBytes = 64 << 20;

  // slab_bytes: a multiple of kPageBytes.
  static std::shared_ptr<SlabAllocator> Create(size_t slab_bytes = kDefaultSlabBytes);
  ~SlabAllocator();

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes);

  // Where these bytes lie, if all of them lie in one slab.
  std::optional<SlabRange> Find(ConstBytes bytes) const;

  // The file of a slab, to be passed to a peer. NOT_FOUND if it was freed.
  absl::StatusOr<SlabFile> File(uint32_t slab) const;

  // retired(slab) is called after a slab was freed, on the thread that freed it, without locks held; not after
  // RemoveListener has returned. It must not call back into the allocator.
  uint64_t AddListener(std::function<void(uint32_t slab)> retired);
  void RemoveListener(uint64_t listener);

 private:
  struct Slab {
    uint32_t id;
    UniqueFd fd;
    std::shared_ptr<Mapping> mapping;
    size_t used = 0;
    std::map<size_t, size_t> free;  // offset -> bytes, never adjacent
  };
  using Slabs = std::map<std::uintptr_t, Slab>;  // by address

  explicit SlabAllocator(size_t slab_bytes) : slab_bytes_(slab_bytes) {}
  absl::StatusOr<Slabs::iterator> NewSlab(size_t bytes);  // needs mutex_
  void Free(std::byte* data, size_t bytes);

  const size_t slab_bytes_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  Slabs slabs_;
  uint32_t last_id_ = 0;
  // Guarded by listeners_mutex_, which is never taken together with mutex_:
  std::mutex listeners_mutex_;
  std::map<uint64_t, std::function<void(uint32_t)>> listeners_;
  uint64_t last_listener_ = 0;
};

}  // namespace sluice::transport
