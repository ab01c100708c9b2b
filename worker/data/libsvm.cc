// Rows are kept sparse until the file has been read, because only then the number of features is known.
#include <algorithm>
#include <charconv>
#include <new>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/data/parsers.h"

namespace sluice::worker {
namespace {

struct Entry {
  uint32_t index;
  float value;
};

std::string_view NextWord(std::string_view* line) {
  *line = Trim(*line);
  const std::string_view word = line->substr(0, line->find_first_of(" \t"));
  line->remove_prefix(word.size());
  return word;
}

class LibsvmReader {
 public:
  LibsvmReader(ByteSource* source, const ReadOptions& options)
      : source_(source), options_(options), lines_(source, options.limits.max_line_bytes) {}

  absl::StatusOr<Dataset> Read() {
    try {
      std::string_view line;
      for (;;) {
        SLUICE_ASSIGN_OR_RETURN(const bool more, lines_.Next(&line));
        if (!more) break;
        line = Trim(line.substr(0, line.find('#')));
        if (!line.empty()) SLUICE_RETURN_IF_ERROR(AddRow(line));
      }
      return Densify();
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for the examples up to ", lines_.Where()));
    }
  }

 private:
  absl::Status AddRow(std::string_view line) {
    const std::string_view label_text = NextWord(&line);
    int32_t label;
    if (!ParseLabel(label_text, &label) || label < -1) {
      return lines_.Error(absl::StrCat(Quote(label_text), " is no label; labels are 0, 1, …, or -1 and 1"));
    }
    has_minus_ |= label == -1;
    has_zero_ |= label == 0;
    if (has_minus_ && has_zero_) return lines_.Error("labels -1 and 0 in one file: which is the negative class?");
    y_.push_back(std::max(label, 0));
    int64_t last = -1;
    for (std::string_view word = NextWord(&line); !word.empty(); word = NextWord(&line)) {
      if (word.starts_with("qid:") && last < 0) continue;
      const size_t colon = word.find(':');
      uint32_t index = 0;
      const auto [stop, error] = std::from_chars(word.data(), word.data() + std::min(colon, word.size()), index);
      if (colon == word.npos || error != std::errc() || stop != word.data() + colon || colon == 0) {
        return lines_.Error(absl::StrCat(Quote(word), " is not INDEX:VALUE"));
      }
      float value;
      if (!ParseNumber(word.substr(colon + 1), &value)) {
        return lines_.Error(absl::StrCat("the value in ", Quote(word), " is no finite number"));
      }
      if (index > options_.limits.max_features) {
        return lines_.Error(absl::StrCat("feature ", index, "; the limit is ", options_.limits.max_features));
      }
      if (index <= last) return lines_.Error(absl::StrCat("feature ", index, " after ", last, ": indices must rise"));
      if (index == 0 && options_.first_index == 1) return lines_.Error("feature 0, but the first one is 1");
      if (options_.features > 0 && index > options_.features) {
        return lines_.Error(absl::StrCat("feature ", index, "; there are only ", options_.features));
      }
      last = index;
      entries_.push_back({index, value});
    }
    if (last >= 0) {
      smallest_ = std::min<uint32_t>(smallest_, entries_[ends_.empty() ? 0 : ends_.back()].index);
      largest_ = std::max<uint32_t>(largest_, static_cast<uint32_t>(last));
      largest_line_ = largest_ == last ? lines_.Where() : largest_line_;
    }
    ends_.push_back(entries_.size());
    // What is kept so far, sparse; dense is checked at the end.
    if (entries_.size() * sizeof(Entry) + y_.size() * (sizeof(int32_t) + sizeof(size_t)) > options_.limits.max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(lines_.Where(), ": more than ", options_.limits.max_bytes, " bytes of values"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Dataset> Densify() {
    Dataset data;
    data.rows = y_.size();
    const uint32_t first = options_.first_index >= 0 ? static_cast<uint32_t>(options_.first_index)
                           : smallest_ == 0          ? 0
                                                     : 1;
    data.first_index = static_cast<int>(first);
    const uint64_t found = largest_ + 1 > first ? largest_ + 1 - first : 0;
    data.features = options_.features > 0 ? options_.features : found;
    if (found > data.features) {
      return absl::InvalidArgumentError(absl::StrCat(largest_line_, ": feature ", largest_, "; there are only ",
                                                     data.features, ", from ", first));
    }
    data.y = std::move(y_);
    SLUICE_RETURN_IF_ERROR(SetClasses(&data, options_, source_->name()));
    if (has_minus_) data.classes = std::max<size_t>(data.classes, 2);
    if (data.features == 0) {
      return absl::InvalidArgumentError(absl::StrCat(source_->name(), ": no example has a feature"));
    }
    SLUICE_RETURN_IF_ERROR(CheckSize(data.rows, data.features, options_.limits, source_->name()));
    data.x.resize(data.rows * data.features);
    const float scale = options_.scale != 0 ? options_.scale : 1;
    size_t entry = 0;
    for (size_t row = 0; row < data.rows; ++row) {
      float* const x = data.x.data() + row * data.features;
      for (; entry < ends_[row]; ++entry) x[entries_[entry].index - first] = entries_[entry].value * scale;
    }
    return data;
  }

  ByteSource* const source_;
  const ReadOptions& options_;
  LineReader lines_;
  std::vector<Entry> entries_;
  std::vector<size_t> ends_;  // of each row, in entries_
  std::vector<int32_t> y_;
  uint32_t smallest_ = UINT32_MAX, largest_ = 0;
  std::string largest_line_;
  bool has_minus_ = false, has_zero_ = false;
};

}  // namespace

absl::StatusOr<Dataset> ReadLibsvm(ByteSource* source, const ReadOptions& options) {
  return LibsvmReader(source, options).Read();
}

}  // namespace sluice::worker
