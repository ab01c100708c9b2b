// One line of a sparse format at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "worker/data/sparse_dataset.h"

namespace sluice::worker {

class SparseLines {
 public:
  virtual ~SparseLines() = default;
  // The line without its comment and what surrounds it; empty: no example.
  virtual std::string_view Strip(std::string_view line) const = 0;
  // Cuts the label's text off the front.
  virtual std::string_view TakeLabel(std::string_view* line) const = 0;
  // Called with what is left of the file's first example: its number of columns holds for all.
  virtual void SeeFirst(std::string_view /*line*/, SparseDataset* /*data*/) {}
  // Appends the features to data->ids and data->values. Empty, or what is wrong with the line; then what was appended
  // has to be taken away again.
  virtual std::string AppendFeatures(std::string_view line, SparseDataset* data) = 0;
};

// One example a line: LABEL [qid:N] INDEX:VALUE…, in any order; # begins a comment. Indices are ids as they are, whether
// they count from 0 or from 1. A missing value is a feature that is not there, or whose value is nan, NA or ?.
std::unique_ptr<SparseLines> MakeLibsvmLines(const SparseOptions& options);
// One example a line: LABEL, numbers, categories, separated by tabs. An empty field is a missing value. There are no
// comments, quotes or escapes.
std::unique_ptr<SparseLines> MakeClickLogLines(const SparseOptions& options);

}  // namespace sluice::worker
