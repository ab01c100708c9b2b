// How good a sparse model is on test data of which every worker has a share: what a worker says of its own share, as
// numbers that can be gathered, and what comes of all of them together.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/metrics.h"

namespace sluice::worker {

struct SparseScores {
  bool logistic = true;
  uint64_t examples = 0;
  double loss_sum = 0;     // log loss, or half the squared error; in the order of base/fixed_sum.h for each Add
  AucHistogram histogram;  // logistic only
  uint64_t hash = 0;       // of what else the worker wants to be known, or 0

  explicit SparseScores(bool is_logistic) : logistic(is_logistic) {}
  void Add(std::span<const float> outputs, std::span<const float> labels);

  static size_t Numbers();
  std::vector<uint64_t> ToNumbers() const;
};

struct SparseEvaluation {
  uint64_t examples = 0;
  double loss = 0;            // mean
  std::optional<double> auc;  // none for real labels, or where the test data has one kind of label only
  double auc_error = 0;       // by the histogram's buckets
  uint64_t not_numbers = 0;   // outputs that were NaN
  uint64_t hash = 0;          // over those of all workers, in order of rank; 0 if all are 0
};

// parts: what the workers gathered, by rank; empty ones are left out.
absl::StatusOr<SparseEvaluation> Together(bool logistic, const std::vector<std::span<const uint64_t>>& parts);

}  // namespace sluice::worker
