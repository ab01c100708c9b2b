#include "transport/shm/peer_memory.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::transport {

absl::Status PeerMemory::Add(uint32_t slab, const UniqueFd& file) {
  if (slab == 0 || slabs_.contains(slab)) {
    return absl::InvalidArgumentError(absl::StrCat("the peer announced slab ", slab, " twice, or without a number"));
  }
  SLUICE_ASSIGN_OR_RETURN(const size_t bytes, CheckSealedMemory(file.get()));
  if (slabs_.size() >= kMaxSlabs || bytes > kMaxBytes - mapped_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("the peer shares more than ", kMaxSlabs, " slabs or ", kMaxBytes,
                                                     " bytes; it should register fewer, larger buffers"));
  }
  SLUICE_ASSIGN_OR_RETURN(slabs_[slab], Mapping::Map(file.get(), bytes));
  mapped_bytes_ += bytes;
  return absl::OkStatus();
}

void PeerMemory::Remove(uint32_t slab) {
  const auto it = slabs_.find(slab);
  if (it == slabs_.end()) return;
  mapped_bytes_ -= it->second->size();
  slabs_.erase(it);
}

absl::StatusOr<std::shared_ptr<Mapping>> PeerMemory::Find(const SlabRange& range) const {
  const auto it = slabs_.find(range.slab);
  if (it == slabs_.end()) return absl::NotFoundError(absl::StrCat("the peer never announced slab ", range.slab));
  const uint64_t size = it->second->size();
  if (range.offset > size || range.bytes > size - range.offset) {
    return absl::InvalidArgumentError(absl::StrCat("bytes ", range.offset, "+", range.bytes, " lie outside slab ",
                                                   range.slab, " of ", size, " bytes"));
  }
  return it->second;
}

bool PeerMemory::Hold(uint64_t token, std::shared_ptr<Mapping> mapping, const SlabRange& range) {
  return held_.emplace(token, Held{std::move(mapping), range}).second;
}

absl::Status PeerMemory::DetachHeld() {
  absl::Status first;
  for (auto& [token, held] : held_) {
    first.Update(held.mapping->Detach(held.range.offset, held.range.bytes));
  }
  held_.clear();
  return first;
}

}  // namespace sluice::transport
