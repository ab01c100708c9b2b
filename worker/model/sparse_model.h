// The built-in models over sparse rows: logistic regression, and the factorization machine (Rendle, "Factorization
// Machines", ICDM 2010). They own no parameters: a row of `dim` values for each feature id comes from a table, a bias
// from a tensor, and both are handed in.
//
// With x_i the value of feature i in an example, w_i the first value of its row and v_i the other k ones, the output is
//   z = bias + sum_i w_i x_i                                                      logistic regression; dim = 1
//     + 1/2 sum_f [ (sum_i v_if x_i)^2 - sum_i (v_if x_i)^2 ]                     factorization machine; dim = 1 + k
// where the second line is the sum over all pairs of features, <v_i, v_j> x_i x_j, in O(k n) (eq. 1 and lemma 3.1).
//
// Factors must not start at zero: their gradient is zero there. A table with a normal or uniform initializer of a small
// scale (0.01) will do for the whole row.
//
// The same batch and parameters give the same bits on every machine with the same build: one thread, fp32, examples in
// their order, features in their order, factors summed from the first to the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "worker/model/sparse_batch.h"

namespace sluice::worker {

struct SparseModelSpec {
  std::string kind = "lr";          // or "fm"
  uint32_t factors = 8;             // fm: k
  std::string loss = "logistic";    // labels 0 and 1; "squared": real labels, half the squared error
};

class SparseModel {
 public:
  virtual ~SparseModel() = default;

  virtual uint32_t dim() const = 0;  // of a row

  // The outputs z of the batch's examples, before the sigmoid. rows: batch.ids.size() x dim(). Not thread-safe, as the
  // model holds scratch memory; so for LossAndGradient.
  virtual void Outputs(const SparseBatch& batch, std::span<const float> rows, float bias,
                       std::span<float> outputs) = 0;

  // Mean loss over the examples (0 if there is none), and its gradient: row_gradients as rows (all of it is
  // overwritten), *bias_gradient.
  virtual double LossAndGradient(const SparseBatch& batch, std::span<const float> rows, float bias,
                                 std::span<float> row_gradients, float* bias_gradient) = 0;
};

// INVALID_ARGUMENT names what is wrong.
absl::StatusOr<std::unique_ptr<SparseModel>> MakeSparseModel(const SparseModelSpec& spec);

}  // namespace sluice::worker
