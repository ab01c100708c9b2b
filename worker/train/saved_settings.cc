#include "worker/train/saved_settings.h"

#include "absl/strings/str_cat.h"

namespace sluice::worker {

absl::Status CheckSavedSettings(const std::string& path, std::initializer_list<SavedSetting> settings) {
  for (const SavedSetting& setting : settings) {
    if (setting.saved == setting.mine) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(path, ".0 and .1: the snapshot was taken with ", setting.name, "=", setting.saved,
                     ", this process has ", setting.name, "=", setting.mine, "; start it with ", setting.name, "=",
                     setting.saved, ", or move both files away to go on without them (not to the same bits then)"));
  }
  return absl::OkStatus();
}

std::string WhyNoSnapshot(const std::string& path, const absl::Status& restored) {
  if (path.empty()) return "data.snapshot_dir is not set (--data.snapshot_dir=DIR on every worker keeps snapshots)";
  if (!restored.ok()) return restored.ToString();
  return absl::StrCat("there is no whole snapshot in ", path, ".0 or .1 (was data.snapshot_dir another before?)");
}

}  // namespace sluice::worker
