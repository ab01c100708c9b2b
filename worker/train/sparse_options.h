// The flags of the sparse models (lr, fm): the table of their rows, and how their files are read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/config.h"
#include "worker/client.h"

namespace sluice::worker {

struct SparseTrainOptions {
  int factors = 8;                // fm
  std::string loss = "logistic";  // or squared
  int prefetch = 0;               // steps of staleness that pulls may have: 0 or 1

  // Found on generated click logs (worker/model/fit_click_log.cc).
  std::string row_optimizer = "rowwise_adagrad";
  double row_rate = 0.1;
  double row_initial_accumulator = 1e-5;
  double row_l1 = 0, row_l2 = 0, row_beta = 1;
  std::string row_init = "auto";  // zero for lr; normal for fm, whose factors must not start at zero
  double row_init_scale = 0.01;
  std::string row_dtype = "fp32";
  std::string row_codec = "none";
  int64_t row_residual_rows = 0;
  int row_admit_after = 1;
  int64_t row_max_age = 0;
  int64_t max_rows = 0;
  int64_t max_row_bytes = 0;
  bool drop_zero_rows = false;

  int numeric_columns = 0;
  std::string numeric = "bucket";  // or value
  int64_t max_malformed = 0;
};

// Whether --model names a sparse model.
bool IsSparseModel(const std::string& model);

// Flags whose values land in *options, which must outlive them.
std::vector<ProgramFlag> SparseTrainFlags(SparseTrainOptions* options);
// What can be said before the servers look at it. INVALID_ARGUMENT names the flag.
absl::Status CheckSparseTrainOptions(const SparseTrainOptions& options);
// What a job of sparse models cannot have. INVALID_ARGUMENT names the setting.
absl::Status CheckSparseJob(const proto::JobConfig& job);

// The table "weights" of this model, with rows of `dim` values.
TableSpec WeightsTable(const SparseTrainOptions& options, const std::string& model, uint32_t dim, uint64_t seed);

}  // namespace sluice::worker
