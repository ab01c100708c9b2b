// What a sparse model is trained on: this worker's share of the data, and the model.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/sparse_dataset.h"
#include "worker/model/sparse_model.h"
#include "worker/train/options.h"

namespace sluice::worker {

struct SparseTask {
  SparseDataset train, test;  // test may be empty
  // Examples that every worker's epoch is made for: of an equal share, without what is held out.
  uint64_t epoch_examples = 0;
  std::unique_ptr<SparseModel> model;
};

// What is wrong with the files' names alone, before anything connects. The error names the flag.
absl::Status CheckSparseFiles(const TrainOptions& options);

// --data and --test_data are files. Without the latter the last --test_share of each worker's share is held out.
absl::StatusOr<SparseTask> LoadSparseTask(const TrainOptions& options, uint32_t rank, uint32_t workers);

// The last `count` rows become a data set of their own; one stays at least.
SparseDataset TakeTail(SparseDataset* data, uint64_t count);

}  // namespace sluice::worker
