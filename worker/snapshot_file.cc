#include "worker/snapshot_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/wire.h"

namespace sluice::worker {
namespace {

// u64 magic, u64 sequence, u64 bytes of core, u64 bytes of user, u64 hash of core, u64 hash of user, u64 hash of the 48
// bytes before; then core, then user.
constexpr size_t kHeaderBytes = 56;
constexpr uint64_t kMagic = 0x3130534E53434C53;  // "SLCSNS01"
constexpr uint64_t kMaxBytes = uint64_t{1} << 40;

absl::Status Errno(const std::string& what, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  return error == ENOSPC ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

// Writes all of it, at `offset`.
absl::Status WriteAt(int fd, ConstBytes bytes, uint64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Errno("writing the snapshot", path);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

// False: the file ends early.
bool ReadAt(int fd, MutableBytes bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return true;
}

struct Found {
  uint64_t sequence = 0;
  SnapshotFile::Content content;
};

std::optional<Found> ReadOne(int fd) {
  std::byte header[kHeaderBytes];
  if (!ReadAt(fd, header, 0)) return std::nullopt;
  if (LoadLe<uint64_t>(header) != kMagic) return std::nullopt;
  if (LoadLe<uint64_t>(header + 48) != transport::HashBytes(ConstBytes(header, 48))) return std::nullopt;
  const uint64_t core = LoadLe<uint64_t>(header + 16), user = LoadLe<uint64_t>(header + 24);
  struct stat file {};
  if (fstat(fd, &file) != 0 || core > kMaxBytes || user > kMaxBytes ||
      kHeaderBytes + core + user > static_cast<uint64_t>(file.st_size)) {
    return std::nullopt;
  }
  Found found;
  found.sequence = LoadLe<uint64_t>(header + 8);
  found.content.core.resize(core);
  found.content.user.resize(user);
  if (!ReadAt(fd, found.content.core, kHeaderBytes) || !ReadAt(fd, found.content.user, kHeaderBytes + core) ||
      LoadLe<uint64_t>(header + 32) != transport::HashBytes(found.content.core) ||
      LoadLe<uint64_t>(header + 40) != transport::HashBytes(found.content.user)) {
    return std::nullopt;
  }
  return found;
}

}  // namespace

absl::StatusOr<SnapshotFile> SnapshotFile::Open(const std::string& directory, const std::string& name) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("data.snapshot_dir ", directory, ": ", error.message()));
  }
  SnapshotFile file(absl::StrCat(directory, "/", name));
  std::optional<uint64_t> sequences[2];
  for (int i = 0; i < 2; ++i) {
    const std::string path = absl::StrCat(file.path_, ".", i);
    file.fds_[i] = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file.fds_[i] < 0) return Errno("opening the snapshot", path);
    if (std::optional<Found> found = ReadOne(file.fds_[i])) sequences[i] = found->sequence;
  }
  // One that is not whole is the next to be written, and so is the older.
  file.newest_ = sequences[1].has_value() && (!sequences[0].has_value() || *sequences[1] > *sequences[0]) ? 1 : 0;
  file.sequence_ = sequences[file.newest_].value_or(0);
  return file;
}

SnapshotFile::SnapshotFile(SnapshotFile&& other) noexcept
    : path_(std::move(other.path_)),
      fds_{std::exchange(other.fds_[0], -1), std::exchange(other.fds_[1], -1)},
      sequence_(other.sequence_),
      newest_(other.newest_) {}

SnapshotFile::~SnapshotFile() {
  for (int fd : fds_) {
    if (fd >= 0) close(fd);
  }
}

absl::Status SnapshotFile::Write(ConstBytes core, ConstBytes user) {
  const int target = 1 - newest_;
  std::byte header[kHeaderBytes];
  StoreLe<uint64_t>(header, kMagic);
  StoreLe<uint64_t>(header + 8, sequence_ + 1);
  StoreLe<uint64_t>(header + 16, core.size());
  StoreLe<uint64_t>(header + 24, user.size());
  StoreLe<uint64_t>(header + 32, transport::HashBytes(core));
  StoreLe<uint64_t>(header + 40, transport::HashBytes(user));
  StoreLe<uint64_t>(header + 48, transport::HashBytes(ConstBytes(header, 48)));
  const std::string path = absl::StrCat(path_, ".", target);
  SLUICE_RETURN_IF_ERROR(WriteAt(fds_[target], header, 0, path));
  SLUICE_RETURN_IF_ERROR(WriteAt(fds_[target], core, kHeaderBytes, path));
  SLUICE_RETURN_IF_ERROR(WriteAt(fds_[target], user, kHeaderBytes + core.size(), path));
  newest_ = target;
  ++sequence_;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SnapshotFile::Content>> SnapshotFile::ReadNewest() const {
  std::optional<Found> newest;
  int damaged = 0;
  for (int fd : fds_) {
    std::optional<Found> found = ReadOne(fd);
    if (struct stat file {}; !found.has_value() && fstat(fd, &file) == 0 && file.st_size > 0) ++damaged;
    if (found.has_value() && (!newest.has_value() || found->sequence > newest->sequence)) newest = std::move(found);
  }
  if (damaged == 2) {
    return absl::DataLossError(absl::StrCat(path_, ".0 and .1: both files of the snapshot are damaged"));
  }
  if (!newest.has_value()) return std::nullopt;
  return std::move(newest->content);
}

void SnapshotFile::Remove() {
  for (int i = 0; i < 2; ++i) unlink(absl::StrCat(path_, ".", i).c_str());
}

}  // namespace sluice::worker
