// The memory of a process that devices may be told about: slabs, tensors of the trainer.
//
// Nothing is registered with a device here. Each protection domain (rdma/context.h) looks a region up when it first
// meets a payload in it, registers it then, and forgets it before the region's handle is gone:
//   t=0  slab allocator  region = memory.Add(slab, 64 MiB)
//   t=1  loop            domain.Find(payload in the slab): registered in this domain, keys
//   t=2  any thread      region.Reset(): no Find meets it from now on; every domain deregisters it; then it returns
//   t=3  any thread      munmap(slab)
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "rdma/range_map.h"

namespace sluice::rdma {

enum class Access : uint8_t {
  kSend = 0,            // peers never write there
  kSendAndReceive = 1,  // slots may be granted in it
};

class MemoryRegistry {
 public:
  struct Region {
    uint64_t id = 0;  // never reused
    std::byte* address = nullptr;
    size_t bytes = 0;
    Access access = Access::kSend;
  };

  // Keeps a region in the registry; may outlive the registry.
  class Handle {
   public:
    Handle() = default;
    Handle(Handle&& other) noexcept : state_(std::move(other.state_)), id_(std::exchange(other.id_, 0)) {}
    Handle& operator=(Handle&& other) noexcept;
    ~Handle() { Reset(); }
    // Blocks until no domain has it registered any more. The memory is still there until then.
    void Reset();

   private:
    friend class MemoryRegistry;
    struct State;
    Handle(std::shared_ptr<State> state, uint64_t id) : state_(std::move(state)), id_(id) {}
    std::shared_ptr<State> state_;
    uint64_t id_ = 0;
  };

  MemoryRegistry();
  ~MemoryRegistry();

  [[nodiscard]] Handle Add(void* address, size_t bytes, Access access = Access::kSendAndReceive);

  // A region that all of these bytes lie in and that allows at least this access.
  std::optional<Region> Find(ConstBytes bytes, Access access = Access::kSend) const;

  // removed(id) is called after a region has left the registry, on the thread that removed it; not after RemoveListener
  // has returned. It may call Find, but must not add or remove anything.
  uint64_t AddListener(std::function<void(uint64_t region)> removed);
  void RemoveListener(uint64_t listener);

 private:
  std::shared_ptr<Handle::State> state_;
};

// RLIMIT_MEMLOCK: how much a process without CAP_IPC_LOCK may register. nullopt = no limit.
std::optional<uint64_t> MemlockLimit();

// How to raise it, for people: "ulimit -l unlimited, LimitMEMLOCK=infinity in the systemd unit, …".
const char* MemlockMend();

}  // namespace sluice::rdma
