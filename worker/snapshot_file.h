// The newest snapshot on disk, safe against the death of this process at any instant.
//
// Two files, PATH.0 and PATH.1. A write goes over the older one, and its header carries a sequence number and a hash
// over everything: a torn write does not match its hash, and the other file still does. Nothing is synced to the disk:
// the page cache survives the process. Not against the loss of the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace sluice::worker {

class SnapshotFile {
 public:
  struct Content {
    std::vector<std::byte> core;  // WorkerCore::Snapshot
    std::vector<std::byte> user;  // the trainer's
  };

  // The directory is made if it is missing.
  static absl::StatusOr<SnapshotFile> Open(const std::string& directory, const std::string& name);
  SnapshotFile(SnapshotFile&& other) noexcept;
  SnapshotFile& operator=(SnapshotFile&&) = delete;
  ~SnapshotFile();

  absl::Status Write(ConstBytes core, ConstBytes user);
  // The newer of the two that is whole. nullopt if no snapshot was ever completed: one file at most has anything in it.
  // DATA_LOSS if both have and neither is whole, which no kill of this process leaves behind.
  absl::StatusOr<std::optional<Content>> ReadNewest() const;
  void Remove();  // from the directory: the job has ended

  const std::string& path() const { return path_; }

 private:
  explicit SnapshotFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  int fds_[2] = {-1, -1};
  uint64_t sequence_ = 0;  // of the newest
  int newest_ = 1;         // index of its file
};

}  // namespace sluice::worker
