// What is to be trained: the data, and the model that fits it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/train/options.h"

namespace sluice::worker {

struct Task {
  Dataset train, test;  // test may be empty
  std::unique_ptr<Model> model;
};

// --data is a file, or a folder with MNIST's file names (train-images-idx3-ubyte, t10k-images-idx3-ubyte and their
// labels; plain or .gz). Test data is --test_data, the folder's t10k files, or --test_share of the training data's end.
// A file of either that is missing or may not be read is said first, with its flag.
absl::StatusOr<Task> LoadTask(const TrainOptions& options);

}  // namespace sluice::worker
