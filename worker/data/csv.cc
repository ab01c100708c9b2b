#include <new>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/data/parsers.h"

namespace sluice::worker {
namespace {

// Without the double quotes that may stand around a number.
std::string_view Unquote(std::string_view field) {
  field = Trim(field);
  if (field.size() >= 2 && field.front() == '"' && field.back() == '"') field = field.substr(1, field.size() - 2);
  return field;
}

// Calls fn(index, field) for each field until it returns false. Returns the number of fields.
template <typename Fn>
size_t ForEachField(std::string_view line, char delimiter, Fn fn) {
  for (size_t index = 0;; ++index) {
    const size_t comma = line.find(delimiter);
    if (!fn(index, Unquote(line.substr(0, comma))) || comma == line.npos) return index + 1;
    line.remove_prefix(comma + 1);
  }
}

class CsvReader {
 public:
  CsvReader(ByteSource* source, const ReadOptions& options)
      : source_(source), options_(options), lines_(source, options.limits.max_line_bytes) {}

  absl::StatusOr<Dataset> Read() {
    std::string_view line;
    for (bool first = true;;) {
      SLUICE_ASSIGN_OR_RETURN(const bool more, lines_.Next(&line));
      if (!more) break;
      if (Trim(line).empty()) continue;
      if (first) {
        first = false;
        SLUICE_RETURN_IF_ERROR(SetColumns(line));
        if (IsHeader(line)) continue;
      }
      SLUICE_RETURN_IF_ERROR(AddRow(line));
    }
    SLUICE_RETURN_IF_ERROR(SetClasses(&data_, options_, source_->name()));
    return std::move(data_);
  }

 private:
  absl::Status SetColumns(std::string_view line) {
    columns_ = ForEachField(line, options_.delimiter, [](size_t, std::string_view) { return true; });
    if (columns_ < 2) {
      return lines_.Error(absl::StrCat("one column only; a label and features, separated by '",
                                       std::string(1, options_.delimiter), "', are expected"));
    }
    const int64_t column = options_.label_column;
    const int64_t label = column < 0 ? static_cast<int64_t>(columns_) + column : column;
    if (label < 0 || label >= static_cast<int64_t>(columns_)) {
      return lines_.Error(absl::StrCat("there is no column ", column, " for the label: the line has ", columns_));
    }
    label_ = static_cast<size_t>(label);
    data_.features = columns_ - 1;
    if (options_.features != 0 && options_.features != data_.features) {
      return lines_.Error(absl::StrCat(data_.features, " features, expected ", options_.features));
    }
    return absl::OkStatus();
  }

  bool IsHeader(std::string_view line) const {
    if (options_.header != ReadOptions::Header::kAuto) return options_.header == ReadOptions::Header::kYes;
    size_t numbers = 0;
    std::optional<std::string_view> other;   // the first that is none
    ForEachField(line, options_.delimiter, [&](size_t, std::string_view field) {
      float ignored;
      if (ParseNumber(field, &ignored)) {
        ++numbers;
      } else if (!other.has_value()) {
        other = field;
      }
      return true;
    });
    if (numbers == columns_) return false;
    // Names of columns are seldom numbers: it may be an example that is damaged.
    if (numbers > 0) {
      Logger("data").Info(lines_.Where(), " is taken for a header, as ", Quote(*other), " is no number, though ",
                          numbers, " of its ", columns_, " cells are: ", Quote(line));
    }
    return true;
  }

  absl::Status AddRow(std::string_view line) {
    SLUICE_RETURN_IF_ERROR(CheckSize(data_.rows + 1, data_.features, options_.limits, lines_.Where()));
    const float scale = options_.scale != 0 ? options_.scale : 1;
    absl::Status status;
    try {
      const size_t fields = ForEachField(line, options_.delimiter, [&](size_t index, std::string_view field) {
        if (index == label_) {
          int32_t label;
          if (ParseLabel(field, &label) && label >= 0) {
            data_.y.push_back(label);
          } else {
            status = lines_.Error(absl::StrCat("column ", index + 1, ": ", Quote(field),
                                               " is no label; labels are 0, 1, … (is the label in this column?)"));
          }
        } else if (float value; index < columns_ && ParseNumber(field, &value)) {
          data_.x.push_back(value * scale);
        } else if (index < columns_) {
          status = lines_.Error(absl::StrCat("column ", index + 1, ": ", Quote(field), " is no finite number"));
        }
        return status.ok();
      });
      if (status.ok() && fields != columns_) {
        status = lines_.Error(absl::StrCat(fields, " columns, but the first line has ", columns_));
      }
    } catch (const std::bad_alloc&) {
      status = absl::ResourceExhaustedError(absl::StrCat("no memory for the rows before ", lines_.Where()));
    }
    ++data_.rows;
    return status;
  }

  ByteSource* const source_;
  const ReadOptions& options_;
  LineReader lines_;
  size_t columns_ = 0, label_ = 0;
  Dataset data_;
};

}  // namespace

absl::StatusOr<Dataset> ReadCsv(ByteSource* source, const ReadOptions& options) {
  return CsvReader(source, options).Read();
}

}  // namespace sluice::worker
