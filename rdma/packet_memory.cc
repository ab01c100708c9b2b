#include "rdma/packet_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::rdma {

absl::StatusOr<std::unique_ptr<PacketMemory>> PacketMemory::Create(Domain* domain, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no ", bytes, " bytes for packets of a queue pair: ", std::strerror(errno)));
  }
  auto memory = std::unique_ptr<PacketMemory>(new PacketMemory(domain, static_cast<std::byte*>(data), bytes));
  madvise(data, bytes, MADV_DONTFORK);  // a kernel that cannot is no worse off than without
  SLUICE_ASSIGN_OR_RETURN(memory->mr_, domain->RegisterLocal(data, bytes));
  return memory;
}

PacketMemory::~PacketMemory() {
  if (mr_ != nullptr) domain_->DeregisterLocal(mr_);
  munmap(data_, bytes_);
}

}  // namespace sluice::rdma
