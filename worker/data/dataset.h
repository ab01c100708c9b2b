// Labelled examples in memory, dense, and how to read them from files: IDX (MNIST's), CSV, LIBSVM; plain or gzipped.
//
// Nothing in a file can crash the reader or make it allocate beyond its limits: an error names file and line (text) or
// file and offset (IDX, in uncompressed bytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::worker {

struct Dataset {
  size_t rows = 0;
  size_t features = 0;
  size_t classes = 0;          // labels are 0 to classes - 1
  std::vector<float> x;        // rows x features, row-major
  std::vector<int32_t> y;      // rows
  int first_index = 0;         // LIBSVM: number of the first feature in the file

  std::span<const float> row(size_t i) const { return {x.data() + i * features, features}; }
};

struct ReadLimits {
  uint64_t max_bytes = uint64_t{32} << 30;   // of the data set in memory
  size_t max_line_bytes = 64 << 20;
  size_t max_features = 1 << 24;
  size_t max_classes = 1 << 16;
};

struct ReadOptions {
  enum class Format { kAuto, kIdx, kCsv, kLibsvm };  // kAuto: by the file's name
  Format format = Format::kAuto;
  // 0 = as many as the file has. A second file of the same kind (test data) is read with the first one's: fewer
  // features or classes are filled up (LIBSVM, labels), more are an error.
  size_t features = 0;
  size_t classes = 0;
  // CSV
  int label_column = 0;        // from 0; negative: from the end
  enum class Header { kAuto, kYes, kNo };
  Header header = Header::kAuto;  // kAuto: a first line with something that is no number is a header
  char delimiter = ',';
  // LIBSVM: index of the first feature; -1: 0 if index 0 occurs in the file, else 1
  int first_index = -1;
  // Values are multiplied by this. 0: 1/255 for IDX files of bytes, else 1.
  float scale = 0;
  ReadLimits limits;
};

// path: one file; for IDX "IMAGES,LABELS", or IMAGES alone if its name has "images-idx3" and the labels lie beside it
// under "labels-idx1". NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS (truncated), RESOURCE_EXHAUSTED (limits).
absl::StatusOr<Dataset> ReadDataset(const std::string& path, const ReadOptions& options = {});

// What is wrong with the path alone, before anything is read: OK if every file that ReadDataset would open is there and
// may be read. The error names the file and says what to do.
absl::Status CheckDataFiles(const std::string& path, ReadOptions::Format format);

// Options for a second file of the same kind as the first.
ReadOptions OptionsLike(const Dataset& first, ReadOptions options);

// "auto", "idx", "csv", "libsvm".
absl::StatusOr<ReadOptions::Format> ParseFormat(std::string_view name);

// The last part of the rows (at least one, if share > 0 and there are two) becomes a data set of its own.
Dataset SplitTail(Dataset* data, double share);

}  // namespace sluice::worker
