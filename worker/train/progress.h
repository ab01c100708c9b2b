// Lines of progress and the result, as JSON for launchers (deploy/quickstart renders them).
//
//   {"epoch":1,"step":120,"steps":9360,"loss":0.61,"accuracy":0.79,"test_accuracy":null,"step_ms":3.1,"rate":0.05,
//    "push_wire_bytes":…,"push_raw_bytes":…,"pull_wire_bytes":…}
// loss and accuracy are means over the examples since the last line; test_accuracy stands on the line at an epoch's
// end. Sparse models have test_auc and test_loss in the place of accuracy, of the test data of all workers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::worker {

struct ProgressLine {
  uint64_t epoch = 0;  // from 1
  uint64_t step = 0, steps = 0;
  double loss = 0, accuracy = 0;
  std::optional<double> test_accuracy;
  double step_ms = 0;
  float rate = 0;
  uint64_t push_wire_bytes = 0, push_raw_bytes = 0, pull_wire_bytes = 0;
};

struct TrainResult {
  uint32_t rank = 0;
  double test_accuracy = 0;
  double test_loss = 0;
  double seconds = 0;
  uint64_t steps = 0;
  uint64_t wire_bytes_push = 0, wire_bytes_pull = 0;
  std::string transport;      // ClientStats::transport at the end
  uint64_t skipped_steps = 0;
  uint64_t params_hash = 0;  // XXH3-64 of all parameters, in order of the tensors
};

// Of a sparse model; loss and examples are this worker's, what was tested is of all.
struct SparseProgressLine {
  uint64_t epoch = 0;  // from 1
  uint64_t step = 0, steps = 0;
  double loss = 0;
  std::optional<double> test_auc, test_loss;
  double step_ms = 0;
  double examples_per_s = 0;
  float rate = 0;
  uint64_t push_wire_bytes = 0, push_raw_bytes = 0, pull_wire_bytes = 0;
};

struct SparseTrainResult {
  uint32_t rank = 0;
  std::optional<double> auc;
  double auc_error = 0;       // the exact one lies within auc ± auc_error
  double logloss = 0;         // half the mean squared error, with --loss=squared
  uint64_t test_examples = 0;
  double seconds = 0;
  uint64_t steps = 0;
  uint64_t examples = 0;      // this worker has trained on, counted once an epoch
  double examples_per_s = 0;
  uint64_t ids = 0;           // different ones in this worker's share
  uint64_t malformed = 0;     // lines left out of this worker's share
  uint64_t wire_bytes_push = 0, wire_bytes_pull = 0;
  std::string transport;      // ClientStats::transport at the end
  uint64_t params_hash = 0;   // over the bias and the same rows of each worker, in order of rank
};

std::string ToJson(const ProgressLine& line);
std::string ToJson(const SparseProgressLine& line);
std::string ToJson(const SparseTrainResult& result);
std::string ToJson(const TrainResult& result);

// Whole lines, each in one write, so that a reader never sees half of one.
class ProgressWriter {
 public:
  // path "" writes nowhere, "-" to standard output; a file is begun anew.
  static absl::StatusOr<ProgressWriter> Open(const std::string& path);
  ProgressWriter(ProgressWriter&& other) noexcept;
  ProgressWriter& operator=(ProgressWriter&&) = delete;
  ~ProgressWriter();
  absl::Status Write(const std::string& line);

 private:
  ProgressWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
};

// Through a temporary file beside it: whoever reads the name finds a whole result.
absl::Status WriteFile(const std::string& path, const std::string& content);

}  // namespace sluice::worker
