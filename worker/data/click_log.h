// A click log of any length whose model is known: for demonstrations, benchmarks, and tests of what a trainer reaches.
//
// Line n is a function of (spec, n) alone, by counter-based random numbers, so every worker draws the lines it wants:
//   category of column c     Zipf over the column's vocabulary: category r (from 0) with probability ~ (r + 1)^-zipf
//   logit                    bias + sum of the categories' weights + sum over pairs of columns of <v, v'>
//   label                    1 with probability sigmoid(logit)
// Weights and vectors are functions of (seed, column, category). Lines 0 to
// lines - 1 are for training, the test_lines behind them for testing. As the true probabilities are known, so is the
// best AUC and log loss that any model can be expected to reach on the test lines: Optimum().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/sparse_dataset.h"

namespace sluice::worker {

struct ClickLogSpec {
  uint64_t lines = 1'000'000;
  uint64_t test_lines = 100'000;
  uint64_t seed = 1;
  // Vocabularies grow by equal factors from the first column to the last. One column has the largest.
  uint32_t columns = 8;
  uint32_t smallest_vocabulary = 10, largest_vocabulary = 100'000;
  double zipf = 1.05;
  double bias = -1.5;
  // Weights, and each of the factors' values: a category that comes in a share p of the lines draws one with a deviation
  // ~ min(1, p / common)^tail; then a column's are shifted and scaled so that over the lines they have mean 0 and the
  // deviation below, and all seeds are equally hard. Categories that a log shows only a few times cannot be learned: with
  // tail = 0, where they weigh as much as the others, nobody comes near the optimum.
  double common = 1.5e-3, tail = 2;
  double weight_deviation = 0.45;
  uint32_t factors = 0;  // values of v; 0: no pairs
  double factor_deviation = 0.3;
};

class ClickLog {
 public:
  // INVALID_ARGUMENT names the field.
  static absl::StatusOr<ClickLog> Create(const ClickLogSpec& spec);

  const ClickLogSpec& spec() const { return spec_; }
  std::span<const uint32_t> vocabularies() const { return vocabularies_; }

  struct Line {
    std::vector<uint32_t> categories;  // one a column
    double logit = 0;                  // the true one
    float label = 0;
  };
  void Draw(uint64_t n, Line* line) const;

  // The lines begin to end - 1 as a file of worker/data/sparse_dataset.h's click log format without numeric columns; a
  // category's text is its number.
  absl::Status Write(uint64_t begin, uint64_t end, const std::string& path) const;
  // What ReadSparse would make of that file for this worker, without the file.
  SparseDataset Read(uint64_t begin, uint64_t end, uint32_t rank = 0, uint32_t workers = 1) const;

  struct Quality {
    double auc = 0;
    double log_loss = 0;
    double click_rate = 0;
  };
  // Of the true probabilities, on the test lines. INVALID_ARGUMENT if those have one label only.
  absl::StatusOr<Quality> Optimum() const;

 private:
  ClickLog() = default;

  ClickLogSpec spec_;
  std::vector<uint32_t> vocabularies_;
  std::vector<std::vector<uint32_t>> thresholds_;  // of each column: P(category <= r) in 2^-32
  std::vector<std::vector<float>> weights_;        // of each column, by category
  std::vector<std::vector<float>> vectors_;        // of each column: categories x factors
};

}  // namespace sluice::worker
