// What the models of bench/convergence share: softmax with cross-entropy at the end, evaluation in parts, and hooks that
// are all called at once (these models are small: nothing hides behind their backward pass).
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "eigen3/Eigen/Core"
#include "worker/model/model.h"

namespace sluice::bench {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const Matrix>;
using Map = Eigen::Map<Matrix>;
using Values = std::span<const std::span<const float>>;
using Gradients = std::span<const std::span<float>>;

inline Eigen::Index Index(size_t n) { return static_cast<Eigen::Index>(n); }

class BatchModel : public worker::Model {
 public:
  const std::vector<worker::ParameterSpec>& parameters() const override { return parameters_; }
  size_t features() const override { return features_; }
  size_t classes() const override { return classes_; }
  // Weights uniform in ±sqrt(6 / inputs) (He; inputs: all extents but the last), biases 0.
  void Initialize(uint64_t seed, std::span<const std::span<float>> parameters) const override;
  worker::BatchScore LossAndGradient(const worker::Batch& batch, Values parameters, Gradients gradients,
                                     const worker::StepHooks& hooks) override;
  absl::StatusOr<worker::Evaluation> Evaluate(const worker::Dataset& data, Values parameters) override;
  double FlopsPerStep(size_t rows) const override { return 6.0 * static_cast<double>(rows) * multiplications_; }

 protected:
  // multiplications: of one example's forward pass.
  BatchModel(size_t features, size_t classes, double multiplications)
      : features_(features), classes_(classes), multiplications_(multiplications) {}

  void AddParameter(std::string name, std::vector<uint64_t> shape, worker::ParameterKind kind) {
    parameters_.push_back({std::move(name), std::move(shape), kind});
  }

  // x: rows x features. logits: rows x classes.
  virtual void Forward(const float* x, size_t rows, Values parameters, Matrix* logits) = 0;
  // After Forward of the same batch, with the gradient of the logits. Overwrites all gradients.
  virtual void Backward(const float* x, const Matrix& logits, Values parameters, Gradients gradients) = 0;

 private:
  const size_t features_, classes_;
  const double multiplications_;
  std::vector<worker::ParameterSpec> parameters_;
  Matrix logits_;
};

// out = in * weight + bias, with ReLU or without.
void Dense(const ConstMap& in, std::span<const float> weight, std::span<const float> bias, bool relu, Matrix* out);

// The gradients of weight and bias of a dense layer; weight: inputs x outputs.
void DenseGradient(const ConstMap& in, const Matrix& delta, std::span<float> weight, std::span<float> bias);

}  // namespace sluice::bench
