#include "rdma/memory.h"

#include <sys/resource.h>

#include <utility>

namespace sluice::rdma {

struct MemoryRegistry::Handle::State {
  mutable std::mutex mutex;
  // Guarded by mutex:
  RangeMap<Access> regions;
  uint64_t last_region = 0;
  // Guarded by listeners_mutex, which is taken before a domain's and before mutex, never after:
  std::mutex listeners_mutex;
  std::map<uint64_t, std::function<void(uint64_t)>> listeners;
  uint64_t last_listener = 0;

  void Remove(uint64_t id) {
    {
      std::lock_guard lock(mutex);
      regions.Erase(id);
    }
    // A domain that found the region just before registers it under its own lock, which the listener takes after it.
    std::lock_guard lock(listeners_mutex);
    for (auto& [key, removed] : listeners) removed(id);
  }
};

MemoryRegistry::Handle& MemoryRegistry::Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    Reset();
    state_ = std::move(other.state_);
    id_ = std::exchange(other.id_, 0);
  }
  return *this;
}

void MemoryRegistry::Handle::Reset() {
  if (state_ != nullptr && id_ != 0) state_->Remove(id_);
  state_.reset();
  id_ = 0;
}

MemoryRegistry::MemoryRegistry() : state_(std::make_shared<Handle::State>()) {}
MemoryRegistry::~MemoryRegistry() = default;

MemoryRegistry::Handle MemoryRegistry::Add(void* address, size_t bytes, Access access) {
  std::lock_guard lock(state_->mutex);
  const uint64_t id = ++state_->last_region;
  state_->regions.Insert(id, reinterpret_cast<uintptr_t>(address), bytes, access);
  return Handle(state_, id);
}

std::optional<MemoryRegistry::Region> MemoryRegistry::Find(ConstBytes bytes, Access access) const {
  std::lock_guard lock(state_->mutex);
  uint64_t id = 0;
  const auto* range = state_->regions.Find(bytes, [&](uint64_t candidate, const RangeMap<Access>::Range& found) {
    id = candidate;
    return found.value >= access;
  });
  if (range == nullptr) return std::nullopt;
  return Region{id, reinterpret_cast<std::byte*>(range->begin), range->bytes, range->value};
}

uint64_t MemoryRegistry::AddListener(std::function<void(uint64_t)> removed) {
  std::lock_guard lock(state_->listeners_mutex);
  state_->listeners.emplace(++state_->last_listener, std::move(removed));
  return state_->last_listener;
}

void MemoryRegistry::RemoveListener(uint64_t listener) {
  std::lock_guard lock(state_->listeners_mutex);
  state_->listeners.erase(listener);
}

std::optional<uint64_t> MemlockLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

const char* MemlockMend() {
  return "raise it: `ulimit -l unlimited` in the launching shell, `* - memlock unlimited` in "
         "/etc/security/limits.d, LimitMEMLOCK=infinity in a systemd unit (also Slurm's slurmd), "
         "--ulimit memlock=-1 for a container";
}

}  // namespace sluice::rdma
