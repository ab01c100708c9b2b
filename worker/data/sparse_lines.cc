#include "worker/data/sparse_lines.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "worker/data/parsers.h"

namespace sluice::worker {
namespace {

std::string_view TakeWord(std::string_view* line, std::string_view separators) {
  const size_t end = std::min(line->find_first_of(separators), line->size());
  const std::string_view word = line->substr(0, end);
  line->remove_prefix(end);
  return word;
}

bool ParseWhole(std::string_view text, uint64_t* out) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return !text.empty() && error == std::errc() && stop == text.data() + text.size();
}

bool IsMissing(std::string_view value) {
  return value == "nan" || value == "NaN" || value == "NAN" || value == "NA" || value == "?";
}

class LibsvmLines final : public SparseLines {
 public:
  explicit LibsvmLines(const SparseOptions& options) : max_features_(options.limits.max_features) {}

  std::string_view Strip(std::string_view line) const override { return Trim(line.substr(0, line.find('#'))); }
  std::string_view TakeLabel(std::string_view* line) const override { return TakeWord(line, " \t"); }

  std::string AppendFeatures(std::string_view line, SparseDataset* data) override {
    const size_t begin = data->ids.size();
    bool rising = true;
    for (line = Trim(line); !line.empty(); line = Trim(line)) {
      const std::string_view word = TakeWord(&line, " \t");
      const size_t colon = word.find(':');
      uint64_t id = 0;
      if (data->ids.size() == begin && word.starts_with("qid:")) {
        if (!ParseWhole(word.substr(4), &id)) return absl::StrCat(Quote(word), " names no query");
        continue;
      }
      if (colon == word.npos || !ParseWhole(word.substr(0, colon), &id)) {
        return absl::StrCat(Quote(word), " is not INDEX:VALUE with an index from 0 to 2^64 - 1");
      }
      if (IsMissing(word.substr(colon + 1))) continue;
      float value = 0;
      if (!ParseNumber(word.substr(colon + 1), &value)) {
        return absl::StrCat("the value in ", Quote(word), " is no finite number");
      }
      if (data->ids.size() - begin >= max_features_) {
        return absl::StrCat("more than ", max_features_, " features in one example");
      }
      rising = rising && (data->ids.size() == begin || data->ids.back() < id);
      data->ids.push_back(id);
      data->values.push_back(value);
    }
    if (rising) return "";
    sorted_.assign(data->ids.begin() + static_cast<ptrdiff_t>(begin), data->ids.end());
    std::sort(sorted_.begin(), sorted_.end());
    const auto twice = std::adjacent_find(sorted_.begin(), sorted_.end());
    return twice == sorted_.end() ? "" : absl::StrCat("feature ", *twice, " stands there twice");
  }

 private:
  const size_t max_features_;
  std::vector<uint64_t> sorted_;
};

class ClickLogLines final : public SparseLines {
 public:
  explicit ClickLogLines(const SparseOptions& options)
      : numeric_columns_(options.numeric_columns),
        bucket_(options.numeric == SparseOptions::Numeric::kBucket),
        max_features_(options.limits.max_features),
        columns_(options.columns) {}

  std::string_view Strip(std::string_view line) const override { return line; }
  std::string_view TakeLabel(std::string_view* line) const override { return TakeWord(line, "\t"); }

  void SeeFirst(std::string_view line, SparseDataset* data) override {
    if (columns_ == 0) columns_ = static_cast<size_t>(std::count(line.begin(), line.end(), '\t'));
    data->columns = columns_;
  }

  std::string AppendFeatures(std::string_view line, SparseDataset* data) override {
    const size_t columns = static_cast<size_t>(std::count(line.begin(), line.end(), '\t'));
    if (columns != columns_) return absl::StrCat(columns, " columns behind the label where ", columns_, " are expected");
    if (columns == 0) return "no columns behind the label; are they separated by tabs?";
    if (columns < numeric_columns_) return absl::StrCat(columns, " columns, but ", numeric_columns_, " numeric ones");
    if (columns > max_features_) return absl::StrCat("more than ", max_features_, " columns");
    for (size_t column = 0; column < columns; ++column) {
      line.remove_prefix(1);  // the tab
      std::string_view text = TakeWord(&line, "\t");
      if (text.empty()) continue;
      float value = 1;
      char bucket[24];
      if (column < numeric_columns_) {
        float number = 0;
        if (!ParseNumber(text, &number)) {
          return absl::StrCat("column ", column + 2, ": ", Quote(text), " is no finite number");
        }
        if (bucket_) {
          text = {bucket, std::to_chars(bucket, bucket + sizeof(bucket), NumericBucket(number)).ptr};
        } else {
          text = {};
          value = number;
        }
      }
      data->ids.push_back(CategoryId(column, text));
      data->values.push_back(value);
    }
    return "";
  }

 private:
  const size_t numeric_columns_;
  const bool bucket_;
  const size_t max_features_;
  size_t columns_;  // 0 = not known before the first example
};

}  // namespace

uint64_t CategoryId(uint64_t column, std::string_view text) {
  return XXH3_64bits_withSeed(text.data(), text.size(), column);
}

int64_t NumericBucket(double x) {
  const double root = std::log2(std::abs(x) + 1);
  const int64_t bucket = static_cast<int64_t>(std::floor(root * root));  // at most 128^2 for an fp32 number
  return x < 0 ? -1 - bucket : bucket;
}

std::unique_ptr<SparseLines> MakeLibsvmLines(const SparseOptions& options) {
  return std::make_unique<LibsvmLines>(options);
}

std::unique_ptr<SparseLines> MakeClickLogLines(const SparseOptions& options) {
  return std::make_unique<ClickLogLines>(options);
}

}  // namespace sluice::worker
