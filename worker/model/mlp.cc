// One step, for layers l = 0 … L-1 with inputs A(0) = X, A(l+1) = relu(A(l) W(l) + b(l)):
//   1. Forward; the last layer's output is the logits.
//   2. Softmax and cross-entropy, row by row in fp64; D(L) = (softmax - one-hot) / rows.
//   3. Backward, l = L-1 … 0: D(l) = D(l+1) W(l)^T where A(l) > 0 (not for l = 0); then gW(l) = A(l)^T D(l+1) and
//      gb(l) = the column sums of D(l+1). D(l) comes first, because W(l) may be overwritten from on_gradient on.
#include "worker/model/mlp.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "eigen3/Eigen/Core"
#include "absl/strings/str_cat.h"
#include "base/philox.h"

namespace sluice::worker {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const Matrix>;
using Map = Eigen::Map<Matrix>;

// Eigen blocks a product by the sizes of the caches, and the blocks decide the order of the sums. Fixed sizes instead
// of this machine's make the bits the same everywhere.
void FixBlocking() {
  static std::once_flag once;
  std::call_once(once, [] { Eigen::setCpuCacheSizes(32 << 10, 512 << 10, 4 << 20); });
}

constexpr size_t kEvaluationRows = 512;

class Mlp final : public Model {
 public:
  explicit Mlp(std::vector<size_t> widths) : widths_(std::move(widths)), layers_(widths_.size() - 1) {
    FixBlocking();
    for (size_t l = 0; l < layers_; ++l) {
      parameters_.push_back(
          {absl::StrCat("layer", l, ".weight"), {widths_[l], widths_[l + 1]}, ParameterKind::kWeight});
      parameters_.push_back({absl::StrCat("layer", l, ".bias"), {widths_[l + 1]}, ParameterKind::kBias});
    }
    outputs_.resize(layers_);
  }

  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }
  size_t features() const override { return widths_.front(); }
  size_t classes() const override { return widths_.back(); }

  // Weights uniform in ±sqrt(6 / inputs) before a ReLU (He), ±sqrt(6 / (inputs + outputs)) before softmax (Glorot).
  void Initialize(uint64_t seed, std::span<const std::span<float>> parameters) const override {
    for (size_t l = 0; l < layers_; ++l) {
      const auto inputs = static_cast<float>(widths_[l]), outputs = static_cast<float>(widths_[l + 1]);
      const float bound = std::sqrt(6.0f / (l + 1 < layers_ ? inputs : inputs + outputs));
      PhiloxRandom random(seed, l);
      for (float& w : parameters[2 * l]) w = (2 * random.Uniform() - 1) * bound;
      std::fill(parameters[2 * l + 1].begin(), parameters[2 * l + 1].end(), 0.0f);
    }
  }

  BatchScore LossAndGradient(const Batch& batch, std::span<const std::span<const float>> parameters,
                             std::span<const std::span<float>> gradients, const StepHooks& hooks) override {
    if (batch.rows == 0) {
      for (size_t i = parameters_.size(); i-- > 0;) {
        std::fill(gradients[i].begin(), gradients[i].end(), 0.0f);
        if (hooks.on_gradient) hooks.on_gradient(i);
      }
      return {};
    }
    Forward(batch.x.data(), batch.rows, parameters, hooks.before_layer);
    const BatchScore score = SoftmaxInPlace(batch.y, /*gradient=*/true);
    for (size_t l = layers_; l-- > 0;) {
      const Matrix& delta = outputs_[l];
      const float* const input = l == 0 ? batch.x.data() : outputs_[l - 1].data();
      const ConstMap a(input, Rows(batch.rows), Rows(widths_[l]));
      const ConstMap w(parameters[2 * l].data(), Rows(widths_[l]), Rows(widths_[l + 1]));
      if (l > 0) back_.noalias() = delta * w.transpose();
      Map(gradients[2 * l].data(), w.rows(), w.cols()).noalias() = a.transpose() * delta;
      ColumnSums(delta, gradients[2 * l + 1]);
      if (l > 0) {
        // relu'(0) = 0.
        float* const d = back_.data();
        for (Eigen::Index i = 0; i < back_.size(); ++i) d[i] = input[i] > 0 ? d[i] : 0.0f;
        std::swap(outputs_[l - 1], back_);
      }
      if (hooks.on_gradient) {
        hooks.on_gradient(2 * l);
        hooks.on_gradient(2 * l + 1);
      }
    }
    return score;
  }

  absl::StatusOr<Evaluation> Evaluate(const Dataset& data,
                                      std::span<const std::span<const float>> parameters) override {
    if (data.features != features() || data.classes > classes()) {
      return absl::InvalidArgumentError(absl::StrCat("the model takes ", features(), " features and ", classes(),
                                                     " classes, the data has ", data.features, " and ", data.classes));
    }
    if (data.rows == 0) return absl::InvalidArgumentError("no data to evaluate the model on");
    double loss = 0;
    size_t correct = 0;
    for (size_t begin = 0; begin < data.rows; begin += kEvaluationRows) {
      const size_t rows = std::min(kEvaluationRows, data.rows - begin);
      Forward(data.x.data() + begin * data.features, rows, parameters, nullptr);
      const BatchScore score = SoftmaxInPlace(std::span(data.y).subspan(begin, rows), /*gradient=*/false);
      loss += score.loss * static_cast<double>(rows);
      correct += score.correct;
    }
    return Evaluation{.loss = loss / static_cast<double>(data.rows),
                      .accuracy = static_cast<double>(correct) / static_cast<double>(data.rows)};
  }

  double FlopsPerStep(size_t rows) const override {
    double flops = 0;
    for (size_t l = 0; l < layers_; ++l) {
      flops += (l == 0 ? 4.0 : 6.0) * static_cast<double>(rows) * static_cast<double>(widths_[l] * widths_[l + 1]);
    }
    return flops;
  }

 private:
  static Eigen::Index Rows(size_t n) { return static_cast<Eigen::Index>(n); }

  void Forward(const float* x, size_t rows, std::span<const std::span<const float>> parameters,
               const std::function<void(size_t)>& before_layer) {
    for (size_t l = 0; l < layers_; ++l) {
      if (before_layer) {
        before_layer(2 * l);
        before_layer(2 * l + 1);
      }
      const ConstMap input(l == 0 ? x : outputs_[l - 1].data(), Rows(rows), Rows(widths_[l]));
      const ConstMap w(parameters[2 * l].data(), Rows(widths_[l]), Rows(widths_[l + 1]));
      Matrix& out = outputs_[l];
      out.noalias() = input * w;
      const float* const bias = parameters[2 * l + 1].data();
      const bool relu = l + 1 < layers_;
      for (size_t r = 0; r < rows; ++r) {
        float* const o = out.data() + r * widths_[l + 1];
        if (relu) {
          for (size_t c = 0; c < widths_[l + 1]; ++c) {
            const float v = o[c] + bias[c];
            o[c] = v > 0 ? v : 0.0f * v;  // a NaN stays one
          }
        } else {
          for (size_t c = 0; c < widths_[l + 1]; ++c) o[c] += bias[c];
        }
      }
    }
  }

  // The last layer's outputs become (softmax - one-hot) / rows if the gradient is wanted.
  BatchScore SoftmaxInPlace(std::span<const int32_t> labels, bool gradient) {
    BatchScore score;
    const size_t n = classes();
    const double weight = 1.0 / static_cast<double>(labels.size());
    for (size_t r = 0; r < labels.size(); ++r) {
      float* const o = outputs_.back().data() + r * n;
      const auto label = static_cast<size_t>(labels[r]);
      const size_t best = std::max_element(o, o + n) - o;
      const double top = o[best];
      double sum = 0;
      for (size_t c = 0; c < n; ++c) sum += std::exp(o[c] - top);
      score.loss += (std::log(sum) + top - o[label]) * weight;
      score.correct += best == label && std::isfinite(sum);
      if (!gradient) continue;
      for (size_t c = 0; c < n; ++c) {
        const double p = std::exp(o[c] - top) / sum - (c == label ? 1.0 : 0.0);
        o[c] = static_cast<float>(p * weight);
      }
    }
    return score;
  }

  static void ColumnSums(const Matrix& m, std::span<float> out) {
    std::fill(out.begin(), out.end(), 0.0f);
    for (Eigen::Index r = 0; r < m.rows(); ++r) {
      const float* const row = m.data() + r * m.cols();
      for (size_t c = 0; c < out.size(); ++c) out[c] += row[c];
    }
  }

  const std::vector<size_t> widths_;
  const size_t layers_;
  std::vector<ParameterSpec> parameters_;
  std::vector<Matrix> outputs_;  // of each layer; in the backward pass the gradient of it
  Matrix back_;
};

}  // namespace

std::unique_ptr<Model> MakeMlp(std::vector<size_t> widths) { return std::make_unique<Mlp>(std::move(widths)); }

}  // namespace sluice::worker
