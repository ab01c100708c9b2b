#include "transport/shm/slab.h"

#include <fcntl.h>
#include <linux/falloc.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::transport {

std::shared_ptr<SlabAllocator> SlabAllocator::Create(size_t slab_bytes) {
  return std::shared_ptr<SlabAllocator>(new SlabAllocator(RoundUp(slab_bytes, kPageBytes)));
}

SlabAllocator::~SlabAllocator() = default;

absl::StatusOr<SlabAllocator::Slabs::iterator> SlabAllocator::NewSlab(size_t bytes) {
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, CreateSealedMemory("sluice-slab", bytes));
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<Mapping> mapping, Mapping::Map(fd.get(), bytes));
  Slab slab{.id = ++last_id_, .fd = std::move(fd), .mapping = std::move(mapping), .used = 0, .free = {{0, bytes}}};
  const auto address = reinterpret_cast<std::uintptr_t>(slab.mapping->data());
  return slabs_.emplace(address, std::move(slab)).first;
}

absl::StatusOr<std::shared_ptr<std::byte>> SlabAllocator::Allocate(size_t bytes) {
  if (bytes == 0 || bytes > std::numeric_limits<size_t>::max() / 2) {
    return absl::InvalidArgumentError(absl::StrCat("cannot allocate ", bytes, " bytes of shared memory"));
  }
  // From 2 MiB on whole huge pages, so that neighbours do not keep each other's alive.
  const size_t unit = bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  const size_t need = RoundUp(bytes, unit);
  std::byte* data = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto take = [&](Slab& slab) {
      for (auto it = slab.free.begin(); it != slab.free.end(); ++it) {
        const auto [offset, length] = *it;
        const size_t begin = RoundUp(offset, unit);
        if (begin + need > offset + length) continue;
        slab.free.erase(it);
        if (begin > offset) slab.free.emplace(offset, begin - offset);
        if (begin + need < offset + length) slab.free.emplace(begin + need, offset + length - begin - need);
        slab.used += need;
        data = slab.mapping->data() + begin;
        return true;
      }
      return false;
    };
    const bool alone = need > slab_bytes_ / 2;
    if (!alone) {
      for (auto& [address, slab] : slabs_) {
        if (take(slab)) break;
      }
    }
    if (data == nullptr) {
      SLUICE_ASSIGN_OR_RETURN(auto it, NewSlab(alone ? need : slab_bytes_));
      take(it->second);
    }
  }
  return std::shared_ptr<std::byte>(data, [self = shared_from_this(), need](std::byte* p) { self->Free(p, need); });
}

void SlabAllocator::Free(std::byte* data, size_t bytes) {
  uint32_t retired = 0;
  {
    std::lock_guard lock(mutex_);
    auto it = std::prev(slabs_.upper_bound(reinterpret_cast<std::uintptr_t>(data)));
    Slab& slab = it->second;
    const size_t offset = data - slab.mapping->data();
    // Gives the pages back although peers may still map the slab, and makes them zero for the next owner.
    if (::fallocate(slab.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes)) != 0) {
      std::memset(data, 0, bytes);
    }
    slab.used -= bytes;
    if (slab.used == 0) {
      retired = slab.id;
      slabs_.erase(it);
    } else {
      auto next = slab.free.upper_bound(offset);
      size_t begin = offset, end = offset + bytes;
      if (next != slab.free.end() && next->first == end) {
        end += next->second;
        next = slab.free.erase(next);
      }
      if (next != slab.free.begin()) {
        auto previous = std::prev(next);
        if (previous->first + previous->second == begin) {
          begin = previous->first;
          slab.free.erase(previous);
        }
      }
      slab.free.emplace(begin, end - begin);
    }
  }
  if (retired != 0) {
    std::lock_guard lock(listeners_mutex_);
    for (auto& [id, listener] : listeners_) listener(retired);
  }
}

std::optional<SlabRange> SlabAllocator::Find(ConstBytes bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  std::lock_guard lock(mutex_);
  auto it = slabs_.upper_bound(address);
  if (it == slabs_.begin()) return std::nullopt;
  const Slab& slab = std::prev(it)->second;
  const std::uintptr_t offset = address - std::prev(it)->first;
  if (offset >= slab.mapping->size() || bytes.size() > slab.mapping->size() - offset) return std::nullopt;
  return SlabRange{.slab = slab.id, .offset = offset, .bytes = bytes.size()};
}

absl::StatusOr<SlabFile> SlabAllocator::File(uint32_t slab) const {
  std::lock_guard lock(mutex_);
  for (const auto& [address, candidate] : slabs_) {
    if (candidate.id != slab) continue;
    UniqueFd copy(::fcntl(candidate.fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return absl::ErrnoToStatus(errno, "duplicating a slab's file; check the limit of open files");
    return SlabFile{.fd = std::move(copy), .bytes = candidate.mapping->size()};
  }
  return absl::NotFoundError(absl::StrCat("slab ", slab, " was freed"));
}

uint64_t SlabAllocator::AddListener(std::function<void(uint32_t)> retired) {
  std::lock_guard lock(listeners_mutex_);
  listeners_.emplace(++last_listener_, std::move(retired));
  return last_listener_;
}

void SlabAllocator::RemoveListener(uint64_t listener) {
  std::lock_guard lock(listeners_mutex_);
  listeners_.erase(listener);
}

}  // namespace sluice::transport
