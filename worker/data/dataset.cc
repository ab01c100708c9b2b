#include "worker/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "worker/data/parsers.h"

namespace sluice::worker {
namespace {

using Format = ReadOptions::Format;

absl::StatusOr<Format> GuessFormat(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  if (absl::EndsWith(name, ".gz")) name.resize(name.size() - 3);
  if (absl::StrContains(name, "idx") || absl::StrContains(name, "ubyte")) return Format::kIdx;
  if (absl::EndsWith(name, ".csv")) return Format::kCsv;
  if (absl::EndsWith(name, ".libsvm") || absl::EndsWith(name, ".svm")) return Format::kLibsvm;
  return absl::InvalidArgumentError(
      absl::StrCat("cannot tell the format of ", path, " by its name; say idx, csv or libsvm"));
}

// Images and labels of an IDX data set.
absl::StatusOr<std::vector<std::string>> IdxFiles(const std::string& path) {
  constexpr absl::string_view kImages = "images-idx3";
  if (const size_t comma = path.find(','); comma != path.npos) {
    if (comma == 0 || comma + 1 == path.size())
      return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" lacks a file's name: IMAGES,LABELS"));
    return std::vector<std::string>{path.substr(0, comma), path.substr(comma + 1)};
  }
  if (const size_t at = path.rfind(kImages.data()); at != path.npos) {
    std::string labels = path;
    labels.replace(at, kImages.size(), "labels-idx1");
    return std::vector<std::string>{path, labels};
  }
  SLUICE_RETURN_IF_ERROR(CheckReadable(path));
  return absl::InvalidArgumentError(
      absl::StrCat("where are the labels of ", path, "? Name both files: IMAGES,LABELS"));
}

// Nothing is guessed of a name that is not there, so that a mistyped one is not taken for an unknown format.
absl::StatusOr<Format> FormatOf(const std::string& path, Format wanted) {
  if (wanted != Format::kAuto) return wanted;
  std::error_code error;
  const size_t most = std::filesystem::exists(path, error) ? 0 : 1;  // splits into IMAGES,LABELS
  for (const absl::string_view part : absl::StrSplit(path, absl::MaxSplits(',', most), absl::SkipEmpty()))
    SLUICE_RETURN_IF_ERROR(CheckReadable(std::string(part)));
  return GuessFormat(path);
}

}  // namespace

absl::Status CheckDataFiles(const std::string& path, Format wanted) {
  SLUICE_ASSIGN_OR_RETURN(const Format format, FormatOf(path, wanted));
  if (format != Format::kIdx) return CheckReadable(path);
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> files, IdxFiles(path));
  for (const std::string& file : files) SLUICE_RETURN_IF_ERROR(CheckReadable(file));
  return absl::OkStatus();
}

absl::StatusOr<Dataset> ReadDataset(const std::string& path, const ReadOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const Format format, FormatOf(path, options.format));
  if (format == Format::kIdx) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> files, IdxFiles(path));
    SLUICE_ASSIGN_OR_RETURN(const auto images, OpenFile(files[0]));
    SLUICE_ASSIGN_OR_RETURN(const auto labels, OpenFile(files[1]));
    return ReadIdx(images.get(), labels.get(), options);
  }
  SLUICE_ASSIGN_OR_RETURN(const auto source, OpenFile(path));
  return format == Format::kCsv ? ReadCsv(source.get(), options) : ReadLibsvm(source.get(), options);
}

ReadOptions OptionsLike(const Dataset& first, ReadOptions options) {
  options.features = first.features;
  options.classes = first.classes;
  options.first_index = first.first_index;
  return options;
}

absl::StatusOr<Format> ParseFormat(std::string_view name) {
  if (name == "auto") return Format::kAuto;
  if (name == "idx") return Format::kIdx;
  if (name == "csv") return Format::kCsv;
  if (name == "libsvm") return Format::kLibsvm;
  return absl::InvalidArgumentError(
      absl::StrCat("there is no data format ", Quote(name), "; auto, idx, csv and libsvm are known"));
}

Dataset SplitTail(Dataset* data, double share) {
  size_t tail = 0;
  if (share > 0 && data->rows >= 2) {
    tail = static_cast<size_t>(std::llround(std::min(share, 1.0) * static_cast<double>(data->rows)));
    tail = std::clamp<size_t>(tail, 1, data->rows - 1);
  }
  const size_t head = data->rows - tail;
  Dataset out{.rows = tail, .features = data->features, .classes = data->classes, .x = {}, .y = {},
              .first_index = data->first_index};
  out.x.assign(data->x.begin() + static_cast<ptrdiff_t>(head * data->features), data->x.end());
  out.y.assign(data->y.begin() + static_cast<ptrdiff_t>(head), data->y.end());
  data->rows = head;
  data->x.resize(head * data->features);
  data->y.resize(head);
  return out;
}

}  // namespace sluice::worker
