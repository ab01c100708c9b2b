#include "worker/train/sparse_task.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::worker {
namespace {

absl::Status CheckFile(absl::string_view flag, const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": ", path, " is a folder; lr and fm are trained on a file"));
  }
  const absl::Status status = CheckDataFiles(path, ReadOptions::Format::kLibsvm);
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat("--", flag, ": ", status.message()));
}

absl::StatusOr<SparseDataset> Read(absl::string_view flag, const std::string& path, const SparseOptions& options) {
  absl::StatusOr<SparseDataset> data = ReadSparse(path, options);
  if (data.ok()) return data;
  return absl::Status(data.status().code(), absl::StrCat("--", flag, ": ", data.status().message()));
}

}  // namespace

absl::Status CheckSparseFiles(const TrainOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckFile("data", options.data));
  return options.test_data.empty() ? absl::OkStatus() : CheckFile("test_data", options.test_data);
}

absl::StatusOr<SparseTask> LoadSparseTask(const TrainOptions& options, uint32_t rank, uint32_t workers) {
  SparseOptions read;
  SLUICE_ASSIGN_OR_RETURN(read.format, ParseSparseFormat(options.format));
  read.labels = options.sparse.loss == "squared" ? SparseOptions::Labels::kReal : SparseOptions::Labels::kBinary;
  read.numeric_columns = static_cast<size_t>(options.sparse.numeric_columns);
  read.numeric = options.sparse.numeric == "value" ? SparseOptions::Numeric::kValue : SparseOptions::Numeric::kBucket;
  read.rank = rank;
  read.workers = workers;
  read.max_malformed = static_cast<uint64_t>(options.sparse.max_malformed);

  SparseTask task;
  SparseModelSpec spec;
  spec.kind = options.model;
  spec.factors = static_cast<uint32_t>(options.sparse.factors);
  spec.loss = options.sparse.loss;
  SLUICE_ASSIGN_OR_RETURN(task.model, MakeSparseModel(spec));
  SLUICE_ASSIGN_OR_RETURN(task.train, Read("data", options.data, read));
  task.epoch_examples = task.train.examples_in_file / workers;
  if (!options.test_data.empty()) {
    SLUICE_ASSIGN_OR_RETURN(task.test, Read("test_data", options.test_data, OptionsLike(task.train, read)));
  } else {
    const auto held_out = static_cast<uint64_t>(static_cast<double>(task.epoch_examples) * options.test_share);
    task.test = TakeTail(&task.train, held_out);
    task.epoch_examples -= held_out;
  }
  return task;
}

SparseDataset TakeTail(SparseDataset* data, uint64_t count) {
  SparseDataset tail;
  tail.label_values = data->label_values;
  tail.columns = data->columns;
  if (data->rows() == 0) return tail;
  const size_t keep = data->rows() - std::min<uint64_t>(count, data->rows() - 1);
  const uint64_t from = data->row_begin[keep];
  for (size_t row = keep; row < data->rows(); ++row) tail.row_begin.push_back(data->row_begin[row + 1] - from);
  const auto move_tail = [](auto* all, auto* to, size_t begin) {
    to->assign(all->begin() + static_cast<ptrdiff_t>(begin), all->end());
    all->resize(begin);
  };
  move_tail(&data->ids, &tail.ids, from);
  move_tail(&data->values, &tail.values, from);
  move_tail(&data->labels, &tail.labels, keep);
  data->row_begin.resize(keep + 1);
  return tail;
}

}  // namespace sluice::worker
