// Anonymous shared memory between processes: memfds sealed against shrinking, and mappings of them.
//
// A mapping of a file that shrinks raises SIGBUS where it is read, so memory that came from a peer is mapped only if
// the kernel promises that it cannot: F_SEAL_SHRINK, which only a memfd has, and not on huge pages of a pool (there a
// hole may fail to be filled again).
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/shm/unique_fd.h"

namespace sluice::transport {

inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kHugePageBytes = 2 << 20;

constexpr size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// A zeroed memfd of this size (a multiple of kPageBytes) that can neither shrink nor grow from now on.
absl::StatusOr<UniqueFd> CreateSealedMemory(const char* name, size_t bytes);

// The size of a peer's memfd, if it is one that can be mapped without danger.
absl::StatusOr<size_t> CheckSealedMemory(int fd);

// One mapping of a whole memfd, readable and writable; unmapped when dropped.
class Mapping {
 public:
  // Mappings of kHugePageBytes and more are aligned to it and ask for transparent huge pages.
  static absl::StatusOr<std::shared_ptr<Mapping>> Map(int fd, size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  // Cuts the pages that hold [offset, offset + bytes) loose from the file: they keep what they hold and from now on
  // belong to this process alone, at the same address. Readers on other threads see the same bytes throughout.
  absl::Status Detach(size_t offset, size_t bytes);

 private:
  Mapping(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_;
  size_t size_;
};

}  // namespace sluice::transport
