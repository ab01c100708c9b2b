// Memory of a queue pair's packets: page-aligned, registered for local use, not inherited by children (a fork would
// make the pages of one of the two strange to the device).
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "rdma/context.h"

namespace sluice::rdma {

class PacketMemory {
 public:
  // domain outlives it. RESOURCE_EXHAUSTED: no memory, or not so much may be registered.
  static absl::StatusOr<std::unique_ptr<PacketMemory>> Create(Domain* domain, size_t bytes);
  ~PacketMemory();
  PacketMemory(const PacketMemory&) = delete;
  PacketMemory& operator=(const PacketMemory&) = delete;

  std::byte* data() const { return data_; }
  uint32_t key() const { return mr_->lkey; }

 private:
  PacketMemory(Domain* domain, std::byte* data, size_t bytes) : domain_(domain), data_(data), bytes_(bytes) {}

  Domain* const domain_;
  std::byte* const data_;
  const size_t bytes_;
  ibv_mr* mr_ = nullptr;
};

}  // namespace sluice::rdma
