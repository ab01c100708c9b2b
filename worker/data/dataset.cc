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

absl::StatusOr<Dataset> ReadIdxFiles(const std::string& path, const ReadOptions& options) {
  std::string images = path, labels;
  constexpr absl::string_view kImages = "images-idx3";
  if (const size_t comma = path.find(','); comma != path.npos) {
    images = path.substr(0, comma);
    labels = path.substr(comma + 1);
  } else if (const size_t at = path.rfind(kImages.data()); at != path.npos) {
    labels = path;
    labels.replace(at, kImages.size(), "labels-idx1");
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("where are the labels of ", path, "? Name both files: IMAGES,LABELS"));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto image_source, OpenFile(images));
  SLUICE_ASSIGN_OR_RETURN(const auto label_source, OpenFile(labels));
  return ReadIdx(image_source.get(), label_source.get(), options);
}

// So that a mistyped name is not taken for a format that cannot be guessed. "IMAGES,LABELS" is two files.
absl::Status CheckExists(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) || error) return absl::OkStatus();  // opening it will say what is wrong
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(path, ','))) {
    if (!std::filesystem::exists(part, error) && !error)
      return absl::NotFoundError(absl::StrCat(part, ": there is no such file or folder"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Dataset> ReadDataset(const std::string& path, const ReadOptions& options) {
  Format format = options.format;
  if (format == Format::kAuto) {
    SLUICE_RETURN_IF_ERROR(CheckExists(path));
    SLUICE_ASSIGN_OR_RETURN(format, GuessFormat(path));
  }
  if (format == Format::kIdx) return ReadIdxFiles(path, options);
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
