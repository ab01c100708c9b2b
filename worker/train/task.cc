#include "worker/train/task.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::worker {
namespace {

struct Paths {
  std::string train, test;  // test may be empty
};

absl::StatusOr<std::string> FindImages(const std::string& folder, const std::string& set, bool required) {
  for (const char* suffix : {"", ".gz"}) {
    std::string path = absl::StrCat(folder, "/", set, "-images-idx3-ubyte", suffix);
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path;
  }
  if (!required) return std::string();
  return absl::NotFoundError(absl::StrCat("--data=", folder, ": the folder has no ", set, "-images-idx3-ubyte or ", set,
                                          "-images-idx3-ubyte.gz; name the file itself if it is called otherwise"));
}

absl::StatusOr<Paths> FindData(const TrainOptions& options, ReadOptions::Format format) {
  Paths paths{options.data, options.test_data};
  std::error_code error;
  if (!std::filesystem::is_directory(options.data, error)) return paths;
  if (format != ReadOptions::Format::kAuto && format != ReadOptions::Format::kIdx) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data: ", options.data, " is a folder; with --format=", options.format, " name a file in it"));
  }
  SLUICE_ASSIGN_OR_RETURN(paths.train, FindImages(options.data, "train", /*required=*/true));
  if (paths.test.empty()) {
    SLUICE_ASSIGN_OR_RETURN(paths.test, FindImages(options.data, "t10k", /*required=*/false));
  }
  return paths;
}

absl::Status CheckFiles(absl::string_view flag, const std::string& path, ReadOptions::Format format) {
  const absl::Status status = CheckDataFiles(path, format);
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat("--", flag, ": ", status.message()));
}

}  // namespace

absl::StatusOr<Task> LoadTask(const TrainOptions& options) {
  ReadOptions read;
  SLUICE_ASSIGN_OR_RETURN(read.format, ParseFormat(options.format));
  SLUICE_ASSIGN_OR_RETURN(const Paths paths, FindData(options, read.format));
  // Both before the first is read, which may take minutes.
  SLUICE_RETURN_IF_ERROR(CheckFiles("data", paths.train, read.format));
  if (!paths.test.empty()) SLUICE_RETURN_IF_ERROR(CheckFiles("test_data", paths.test, read.format));
  Task task;
  SLUICE_ASSIGN_OR_RETURN(task.train, ReadDataset(paths.train, read));
  if (!paths.test.empty()) {
    read.features = task.train.features;
    read.classes = task.train.classes;
    SLUICE_ASSIGN_OR_RETURN(task.test, ReadDataset(paths.test, read));
  } else {
    task.test = SplitTail(&task.train, options.test_share);
  }
  ModelSpec spec;
  spec.kind = options.model;
  spec.features = task.train.features;
  spec.classes = task.train.classes;
  for (int width : options.hidden) spec.hidden.push_back(static_cast<size_t>(width));
  SLUICE_ASSIGN_OR_RETURN(task.model, MakeModel(spec));
  return task;
}

}  // namespace sluice::worker
