// Trains a sparse model in one process, its rows in a hash map: what a job on servers must come to, and how settings are
// tried quickly. Plain and slow next to the servers' tables; the formulas of the optimizers are theirs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/sparse_dataset.h"
#include "worker/model/sparse_model.h"

namespace sluice::worker {

struct LocalTrainerOptions {
  SparseModelSpec model;
  std::string optimizer = "rowwise_adagrad";  // of rows; or "adagrad", "sgd"
  double rate = 0.1;
  double epsilon = 1e-8;
  double initial_accumulator = 1e-5;  // of the Adagrads
  double init_deviation = 0;       // of normal initial values; 0: zeros
  double bias_rate = 0.5;          // plain SGD
  uint32_t batch = 4096;
  uint64_t seed = 1;               // of initial values and of the order of examples
};

class LocalTrainer {
 public:
  static absl::StatusOr<LocalTrainer> Create(const LocalTrainerOptions& options);

  // One pass in an order drawn from (seed, epoch); what does not fill a batch is left out. Returns the mean loss.
  double Epoch(const SparseDataset& data, uint32_t epoch);
  // One step on these rows. Returns its loss.
  double Step(const SparseDataset& data, std::span<const uint32_t> rows);

  struct Evaluation {
    double auc = 0;
    double log_loss = 0;
  };
  // INVALID_ARGUMENT if the data has one label only, or an output is NaN.
  absl::StatusOr<Evaluation> Evaluate(const SparseDataset& data);

  size_t rows() const { return table_.size(); }
  float bias() const { return bias_; }

 private:
  struct Row {
    std::vector<float> values;
    std::vector<float> state;  // of the optimizer: none, one, or one a value
  };
  explicit LocalTrainer(const LocalTrainerOptions& options) : options_(options) {}
  Row InitialRow(uint64_t id) const;
  // Rows that are not in the table are read at their initial values.
  void Gather(std::span<const uint64_t> ids);
  void Apply(uint64_t id, std::span<const float> gradient);

  LocalTrainerOptions options_;
  std::unique_ptr<SparseModel> model_;
  std::unordered_map<uint64_t, Row> table_;
  float bias_ = 0;
  SparseBatchBuffer buffer_;
  std::vector<float> values_, gradients_;
};

}  // namespace sluice::worker
