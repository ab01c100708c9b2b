// What a trainer says about the snapshot that it goes on from, or has to do without.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice::worker {

// A setting that decides what is computed, as it was when the snapshot was taken and as it is in this process.
struct SavedSetting {
  absl::string_view name;  // "--batch"
  uint64_t saved = 0, mine = 0;
};

// FAILED_PRECONDITION at the first that differs: names the files (Client::snapshot_path), both values, and what to do.
absl::Status CheckSavedSettings(const std::string& path, std::initializer_list<SavedSetting> settings);

// Why a worker that joins a job in its course has no snapshot to go on from. `restored`: what RestoreSnapshot returned,
// OK where it found none.
std::string WhyNoSnapshot(const std::string& path, const absl::Status& restored);

}  // namespace sluice::worker
