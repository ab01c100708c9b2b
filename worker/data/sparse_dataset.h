// Labelled examples of few features each, out of 2^64: rows in CSR form, and how to read them from LIBSVM files and
// tab-separated click logs, plain or gzipped.
//
// A worker reads its share alone: of n workers, the one of rank r keeps the examples r, r + n, r + 2n, … of the file (the
// lines that are neither empty nor only a comment, counted from 0). The other lines are passed over: only their label is
// looked at, so that all workers agree on which two labels there are.
//
// Nothing in a file can crash the reader or make it allocate beyond its limits. A malformed line is an error that names
// file and line, or is left out and counted, up to a bound; each worker answers for its own lines.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/byte_source.h"
#include "worker/data/dataset.h"

namespace sluice::worker {

struct SparseDataset {
  std::vector<uint64_t> row_begin = {0};  // rows + 1: where each row begins in ids and values
  std::vector<uint64_t> ids;              // no id twice in a row of a LIBSVM file
  std::vector<float> values;
  std::vector<float> labels;              // rows; 0 and 1, or real numbers

  uint64_t examples_in_file = 0;          // of all workers, malformed ones too
  std::optional<std::array<float, 2>> label_values;  // the file's labels that became 0 and 1
  size_t columns = 0;                     // of a click log, behind the label
  uint64_t malformed = 0;                 // lines left out of this worker's share
  std::string first_malformed;            // "file:12: what is wrong"

  size_t rows() const { return labels.size(); }
  std::span<const uint64_t> row_ids(size_t row) const {
    return {ids.data() + row_begin[row], row_begin[row + 1] - row_begin[row]};
  }
  std::span<const float> row_values(size_t row) const {
    return {values.data() + row_begin[row], row_begin[row + 1] - row_begin[row]};
  }
  uint64_t bytes() const {
    return (row_begin.size() + ids.size()) * sizeof(uint64_t) + (values.size() + labels.size()) * sizeof(float);
  }
};

struct SparseOptions {
  enum class Format { kAuto, kLibsvm, kClickLog };  // kAuto: by the file's name (.libsvm, .svm, .tsv; .gz behind it)
  Format format = Format::kAuto;

  // kBinary: a file has two labels; the smaller one becomes 0, the larger one 1. If it has only one, it must be 1, or
  // else 0 or -1, which become 0. kReal: labels stay as they are.
  enum class Labels { kBinary, kReal };
  Labels labels = Labels::kBinary;
  // kBinary: these two and no others. A second file (test data) is read with those of the first.
  std::optional<std::array<float, 2>> label_values;

  // Click logs: how many of the columns behind the label are numbers (they come first), and how many columns there are
  // (0 = as many as the first example has).
  size_t numeric_columns = 0;
  size_t columns = 0;
  // kBucket: a number x is the category floor(log2(|x| + 1)^2), negative ones apart. kValue: it is the value of one
  // feature that the column has.
  enum class Numeric { kBucket, kValue };
  Numeric numeric = Numeric::kBucket;

  uint32_t rank = 0, workers = 1;
  uint64_t max_malformed = 0;  // lines of this worker that may be left out; one more is an error

  // max_bytes: of this worker's share. max_features: of one example. max_classes has no meaning here.
  ReadLimits limits;
};

// NOT_FOUND, INVALID_ARGUMENT (malformed), DATA_LOSS (truncated), RESOURCE_EXHAUSTED (limits).
absl::StatusOr<SparseDataset> ReadSparse(const std::string& path, const SparseOptions& options = {});
// options.format must not be kAuto.
absl::StatusOr<SparseDataset> ReadSparse(ByteSource* source, const SparseOptions& options);

// Options for a second file of the same kind as the first.
SparseOptions OptionsLike(const SparseDataset& first, SparseOptions options);

// "auto", "libsvm", "clicks".
absl::StatusOr<SparseOptions::Format> ParseSparseFormat(std::string_view name);

// The id of a category: XXH3-64 of its text, seeded with its column, counted from 0 behind the label.
uint64_t CategoryId(uint64_t column, std::string_view text);
// The category of a number under Numeric::kBucket.
int64_t NumericBucket(double x);

}  // namespace sluice::worker
