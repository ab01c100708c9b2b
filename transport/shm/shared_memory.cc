#include "transport/shm/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sluice::transport {
namespace {

absl::Status Failed(const char* what, size_t bytes) {
  const int error = errno;
  return absl::ErrnoToStatus(
      error, absl::StrCat(what, " of ", bytes, " bytes of shared memory failed; check the memory limit ",
                          "of the process or container, and vm.max_map_count"));
}

}  // namespace

absl::StatusOr<UniqueFd> CreateSealedMemory(const char* name, size_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Failed("memfd_create", bytes);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return Failed("ftruncate", bytes);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return Failed("sealing", bytes);
  return fd;
}

absl::StatusOr<size_t> CheckSealedMemory(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return absl::InvalidArgumentError("the peer passed a file that is no memfd");
  if ((seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("the peer passed shared memory that is not sealed against shrinking");
  }
  struct statfs fs;
  if (::fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("the peer passed shared memory that does not lie in tmpfs");
  }
  struct stat file;
  if (::fstat(fd, &file) != 0 || file.st_size <= 0 || file.st_size % static_cast<off_t>(kPageBytes) != 0) {
    return absl::InvalidArgumentError("the peer passed shared memory that is not a whole number of pages");
  }
  return static_cast<size_t>(file.st_size);
}

absl::StatusOr<std::shared_ptr<Mapping>> Mapping::Map(int fd, size_t bytes) {
  const bool huge = bytes >= kHugePageBytes;
  // Huge pages need address and offset aligned alike, so address space is reserved first and trimmed.
  const size_t reserved = huge ? bytes + kHugePageBytes : bytes;
  void* base = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return Failed("reserving addresses", bytes);
  std::byte* const begin = static_cast<std::byte*>(base);
  std::byte* const end = begin + reserved;
  std::byte* const data =
      huge ? reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePageBytes)) : begin;
  if (::mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    absl::Status status = Failed("mapping", bytes);
    ::munmap(base, reserved);
    return status;
  }
  if (data > begin) ::munmap(begin, data - begin);
  if (end > data + bytes) ::munmap(data + bytes, end - (data + bytes));
  if (huge) ::madvise(data, bytes, MADV_HUGEPAGE);  // a wish: without it everything works, in small pages
  return std::shared_ptr<Mapping>(new Mapping(data, bytes));
}

Mapping::~Mapping() { ::munmap(data_, size_); }

absl::Status Mapping::Detach(size_t offset, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (offset > size_ || bytes > size_ - offset) return absl::InternalError("a detached range lies outside its mapping");
  const size_t first = offset / kPageBytes * kPageBytes;
  const size_t length = RoundUp(offset + bytes, kPageBytes) - first;
  void* copy = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return Failed("a private copy", length);
  std::memcpy(copy, data_ + first, length);
  if (::mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, data_ + first) == MAP_FAILED) {
    absl::Status status = Failed("moving a private copy", length);
    ::munmap(copy, length);
    return status;
  }
  return absl::OkStatus();
}

}  // namespace sluice::transport
