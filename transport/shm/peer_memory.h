// What one link has of its peer's slabs: the mappings, and the payloads in them that the application still holds.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/shm/shared_memory.h"
#include "transport/shm/slab.h"

namespace sluice::transport {

class PeerMemory {
 public:
  // Bounds on what one peer may have mapped here (address space, not memory).
  static constexpr size_t kMaxSlabs = 8192;
  static constexpr uint64_t kMaxBytes = uint64_t{4} << 40;

  // Maps the slab that the peer has announced.
  absl::Status Add(uint32_t slab, const UniqueFd& file);
  void Remove(uint32_t slab);
  bool Has(uint32_t slab) const { return slabs_.contains(slab); }

  // The mapping that the range lies in. NOT_FOUND: unknown slab; INVALID_ARGUMENT: outside of it.
  absl::StatusOr<std::shared_ptr<Mapping>> Find(const SlabRange& range) const;

  // Payloads that the application holds, by the sender's token. False: the token is in use.
  bool Hold(uint64_t token, std::shared_ptr<Mapping> mapping, const SlabRange& range);
  void Drop(uint64_t token) { held_.erase(token); }

  // The link is going down: what is held becomes this process's own, so that the peer may use its memory again while
  // the application goes on reading the same bytes. The first error is returned; the rest is tried nevertheless.
  absl::Status DetachHeld();

 private:
  struct Held {
    std::shared_ptr<Mapping> mapping;
    SlabRange range;
  };
  std::unordered_map<uint32_t, std::shared_ptr<Mapping>> slabs_;
  uint64_t mapped_bytes_ = 0;
  std::unordered_map<uint64_t, Held> held_;
};

}  // namespace sluice::transport
