// The built-in models of the worker daemon. A model owns no parameters: the trainer does (in buffers that the
// transports reach), and hands them in as spans, in order of parameters().
//
// The same batch and parameters give the same bits on every machine with the same build: one thread, fixed blocking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace sluice::worker {

enum class ParameterKind { kWeight, kBias };

struct ParameterSpec {
  std::string name;             // "layer0.weight"
  std::vector<uint64_t> shape;  // row-major; weights are inputs x outputs
  ParameterKind kind = ParameterKind::kWeight;

  size_t size() const {
    size_t n = 1;
    for (const uint64_t d : shape) n *= d;
    return n;
  }
};

// Examples of one step; x is row-major.
struct Batch {
  size_t rows = 0;
  std::span<const float> x;     // rows x features
  std::span<const int32_t> y;   // rows
};

struct BatchScore {
  double loss = 0;       // mean over the rows
  size_t correct = 0;    // rows whose largest output is that of their label
};

struct Evaluation {
  double loss = 0;
  double accuracy = 0;
};

// So that communication overlaps with compute.
struct StepHooks {
  // Before the forward pass reads parameter i for the first time: the trainer may wait here for its new value.
  std::function<void(size_t parameter)> before_layer;
  // The gradient of parameter i is complete, last layer first; nothing in this step reads parameter i or writes its
  // gradient from now on, so both may be overwritten.
  std::function<void(size_t parameter)> on_gradient;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  virtual size_t features() const = 0;
  virtual size_t classes() const = 0;

  // The start values, by the seed alone.
  virtual void Initialize(uint64_t seed, std::span<const std::span<float>> parameters) const = 0;

  // Mean cross-entropy of the batch, and its gradient into `gradients` (all of it is overwritten). The labels must be
  // below classes(). Not thread-safe: the model holds scratch memory, which grows with the largest batch.
  virtual BatchScore LossAndGradient(const Batch& batch, std::span<const std::span<const float>> parameters,
                                     std::span<const std::span<float>> gradients, const StepHooks& hooks = {}) = 0;

  // INVALID_ARGUMENT if the data does not fit the model.
  virtual absl::StatusOr<Evaluation> Evaluate(const Dataset& data,
                                              std::span<const std::span<const float>> parameters) = 0;

  // Floating-point operations of one LossAndGradient with this many rows, for rates.
  virtual double FlopsPerStep(size_t rows) const = 0;
};

struct ModelSpec {
  std::string kind = "softmax";        // or "mlp"
  size_t features = 0, classes = 0;
  std::vector<size_t> hidden;          // mlp: width of each hidden layer, at least one
};

// INVALID_ARGUMENT names what is wrong.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec);

// Copies the named rows of the data set side by side: a batch's memory.
class BatchBuffer {
 public:
  Batch Gather(const Dataset& data, std::span<const uint32_t> rows);

 private:
  std::vector<float> x_;
  std::vector<int32_t> y_;
};

}  // namespace sluice::worker
