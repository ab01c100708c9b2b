#include "worker/data/sparse_dataset.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/data/parsers.h"
#include "worker/data/sparse_lines.h"

namespace sluice::worker {
namespace {

using Format = SparseOptions::Format;

absl::StatusOr<Format> GuessFormat(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  if (absl::EndsWith(name, ".gz")) name.resize(name.size() - 3);
  if (absl::EndsWith(name, ".libsvm") || absl::EndsWith(name, ".svm")) return Format::kLibsvm;
  if (absl::EndsWith(name, ".tsv")) return Format::kClickLog;
  return absl::InvalidArgumentError(
      absl::StrCat("cannot tell the format of ", path, " by its name; say libsvm or clicks"));
}

// The two labels of a file in the order of their first appearance, over the lines of all workers.
class LabelPair {
 public:
  explicit LabelPair(const std::optional<std::array<float, 2>>& known) {
    if (known.has_value()) {
      values_ = *known;
      count_ = 2;
    }
  }

  void See(float label) {
    if (count_ == 2 || (count_ == 1 && label == values_[0])) return;
    values_[count_++] = label;
  }
  bool Has(float label) const {
    return std::find(values_.begin(), values_.begin() + count_, label) != values_.begin() + count_;
  }
  std::string Names() const { return absl::StrCat(values_[0], " and ", values_[1]); }

  // {the one that becomes 0, the one that becomes 1}. There is one at least.
  absl::StatusOr<std::array<float, 2>> Decide(std::string_view file) const {
    const float only = values_[0];
    if (count_ == 2) return std::array<float, 2>{std::min(only, values_[1]), std::max(only, values_[1])};
    if (only == 1) return std::array<float, 2>{0, 1};
    if (only == 0 || only == -1) return std::array<float, 2>{only, 1};
    return absl::InvalidArgumentError(absl::StrCat(absl::string_view(file.data(), file.size()), ": all labels are ",
                                                   only, "; a binary model needs two, or 1 or 0"));
  }

 private:
  std::array<float, 2> values_ = {};
  int count_ = 0;
};

class SparseReader {
 public:
  SparseReader(ByteSource* source, const SparseOptions& options)
      : source_(source),
        options_(options),
        lines_(source, options.limits.max_line_bytes),
        format_(options.format == Format::kLibsvm ? MakeLibsvmLines(options) : MakeClickLogLines(options)),
        pair_(options.label_values) {}

  absl::StatusOr<SparseDataset> Read() {
    try {
      std::string_view line;
      for (;;) {
        SLUICE_ASSIGN_OR_RETURN(const bool more, lines_.Next(&line));
        if (!more) break;
        line = format_->Strip(line);
        if (!line.empty()) SLUICE_RETURN_IF_ERROR(AddExample(line));
      }
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for the examples up to ", lines_.Where()));
    }
    SLUICE_RETURN_IF_ERROR(CheckCount());
    if (options_.labels == SparseOptions::Labels::kBinary) SLUICE_RETURN_IF_ERROR(MapLabels());
    return std::move(data_);
  }

 private:
  absl::Status AddExample(std::string_view line) {
    const std::string_view label_text = format_->TakeLabel(&line);
    if (data_.examples_in_file == 0) format_->SeeFirst(line, &data_);
    const bool mine = data_.examples_in_file++ % options_.workers == options_.rank;
    const bool binary = options_.labels == SparseOptions::Labels::kBinary;
    float label = 0;
    const bool is_number = ParseNumber(label_text, &label);
    if (is_number && binary) pair_.See(label);
    if (!mine) return absl::OkStatus();

    if (!is_number) return Malformed(absl::StrCat("the label ", Quote(label_text), " is no finite number"));
    if (binary && !pair_.Has(label)) {
      return Malformed(absl::StrCat("label ", label, " besides ", pair_.Names(), "; a binary model takes two"));
    }
    const size_t size = data_.ids.size();
    if (const std::string problem = format_->AppendFeatures(line, &data_); !problem.empty()) {
      data_.ids.resize(size);
      data_.values.resize(size);
      return Malformed(problem);
    }
    data_.labels.push_back(label);
    data_.row_begin.push_back(data_.ids.size());
    if (data_.bytes() > options_.limits.max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(lines_.Where(), ": the examples up to here need more than the ",
                                                       options_.limits.max_bytes,
                                                       " bytes allowed; use more workers or allow more"));
    }
    return absl::OkStatus();
  }

  absl::Status Malformed(std::string_view what) {
    absl::Status error = lines_.Error(what);
    if (++data_.malformed == 1) data_.first_malformed = std::string(error.message());
    if (data_.malformed <= options_.max_malformed) return absl::OkStatus();
    if (options_.max_malformed == 0) return error;
    return absl::InvalidArgumentError(absl::StrCat(error.message(), "; that is malformed line ", data_.malformed,
                                                   ", and ", options_.max_malformed, " may be left out (the first: ",
                                                   data_.first_malformed, ")"));
  }

  absl::Status CheckCount() const {
    if (data_.examples_in_file == 0) {
      return absl::InvalidArgumentError(absl::StrCat(source_->name(), ": there is no example in it"));
    }
    if (data_.rows() > 0) return absl::OkStatus();
    if (data_.malformed > 0) {
      return absl::InvalidArgumentError(absl::StrCat(source_->name(), ": all ", data_.malformed, " lines of worker ",
                                                     options_.rank, " are malformed (", data_.first_malformed, ")"));
    }
    return absl::InvalidArgumentError(absl::StrCat(source_->name(), ": its ", data_.examples_in_file,
                                                   " examples leave none for worker ", options_.rank, " of ",
                                                   options_.workers));
  }

  absl::Status MapLabels() {
    SLUICE_ASSIGN_OR_RETURN(const auto values, pair_.Decide(source_->name()));
    data_.label_values = values;
    for (float& label : data_.labels) label = label == values[1] ? 1 : 0;
    return absl::OkStatus();
  }

  ByteSource* const source_;
  const SparseOptions& options_;
  LineReader lines_;
  const std::unique_ptr<SparseLines> format_;
  LabelPair pair_;
  SparseDataset data_;
};

}  // namespace

absl::StatusOr<SparseDataset> ReadSparse(ByteSource* source, const SparseOptions& options) {
  if (options.format == Format::kAuto) {
    return absl::InvalidArgumentError(absl::StrCat("say the format of ", source->name(), ": libsvm or clicks"));
  }
  if (options.workers == 0 || options.rank >= options.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no worker ", options.rank, " of ", options.workers, "; ranks count from 0"));
  }
  if (options.label_values.has_value() && !((*options.label_values)[0] < (*options.label_values)[1])) {
    return absl::InvalidArgumentError("the two labels must be given as smaller, larger");
  }
  return SparseReader(source, options).Read();
}

absl::StatusOr<SparseDataset> ReadSparse(const std::string& path, const SparseOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const auto source, OpenFile(path));
  SparseOptions known = options;
  if (known.format == Format::kAuto) {
    SLUICE_ASSIGN_OR_RETURN(known.format, GuessFormat(path));
  }
  return ReadSparse(source.get(), known);
}

SparseOptions OptionsLike(const SparseDataset& first, SparseOptions options) {
  options.label_values = first.label_values;
  options.columns = first.columns;
  return options;
}

absl::StatusOr<Format> ParseSparseFormat(std::string_view name) {
  if (name == "auto") return Format::kAuto;
  if (name == "libsvm") return Format::kLibsvm;
  if (name == "clicks") return Format::kClickLog;
  return absl::InvalidArgumentError(
      absl::StrCat("there is no sparse data format ", Quote(name), "; auto, libsvm and clicks are known"));
}

}  // namespace sluice::worker
