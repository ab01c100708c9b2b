// The trainer's own flags (the cluster's settings are --node.…, --job.…, --data.…: base/config.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/config.h"
#include "worker/train/sparse_options.h"

namespace sluice::worker {

struct TrainOptions {
  int rank = -1;
  std::string model = "softmax";
  std::vector<int> hidden = {256};  // mlp
  std::string data;
  std::string format = "auto";
  std::string test_data;
  double test_share = 0.1;
  int epochs = 0;     // 0 = one, or as many as --steps takes
  int64_t steps = 0;  // 0 = all of the epochs; both: whichever ends first
  int batch = 0;      // 0 = 32, of sparse models 1024
  int64_t seed = 1;
  int eval_every = 1;  // epochs
  int report_ms = 500;
  std::string progress;
  std::string result;

  SparseTrainOptions sparse;  // of lr and fm

  // As they are given on the command line.
  std::string hidden_text = "256";
};

// Flags whose values land in *options, which must outlive them.
std::vector<ProgramFlag> TrainFlags(TrainOptions* options);
// After parsing: INVALID_ARGUMENT names the flag.
absl::Status FinishTrainOptions(TrainOptions* options);

// How many steps the whole training has.
uint64_t TotalSteps(const TrainOptions& options, uint64_t steps_per_epoch);

}  // namespace sluice::worker
