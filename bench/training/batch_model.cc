#include "bench/training/batch_model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/philox.h"

namespace sluice::bench {
namespace {

constexpr size_t kEvaluationRows = 256;

// Mean cross-entropy; the logits become (softmax - one-hot) / rows if the gradient is wanted.
worker::BatchScore Softmax(std::span<const int32_t> labels, bool gradient, Matrix* logits) {
  worker::BatchScore score;
  const double weight = 1.0 / static_cast<double>(labels.size());
  const auto classes = static_cast<size_t>(logits->cols());
  for (size_t r = 0; r < labels.size(); ++r) {
    float* const o = logits->data() + r * classes;
    const auto label = static_cast<size_t>(labels[r]);
    const auto best = static_cast<size_t>(std::max_element(o, o + classes) - o);
    const float top = o[best];
    double sum = 0;
    for (size_t c = 0; c < classes; ++c) sum += std::exp(o[c] - top);
    score.loss += (std::log(sum) + top - o[label]) * weight;
    score.correct += best == label && std::isfinite(sum);
    if (!gradient) continue;
    for (size_t c = 0; c < classes; ++c) {
      o[c] = static_cast<float>((std::exp(o[c] - top) / sum - (c == label ? 1.0 : 0.0)) * weight);
    }
  }
  return score;
}

}  // namespace

void BatchModel::Initialize(uint64_t seed, std::span<const std::span<float>> parameters) const {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (parameters_[p].kind == worker::ParameterKind::kBias) {
      std::fill(parameters[p].begin(), parameters[p].end(), 0.0f);
      continue;
    }
    const auto inputs = static_cast<float>(parameters_[p].size() / parameters_[p].shape.back());
    const float bound = std::sqrt(6.0f / inputs);
    PhiloxRandom random(seed, p);
    for (float& w : parameters[p]) w = (2 * random.Uniform() - 1) * bound;
  }
}

worker::BatchScore BatchModel::LossAndGradient(const worker::Batch& batch, Values parameters, Gradients gradients,
                                               const worker::StepHooks& hooks) {
  for (size_t p = 0; hooks.before_layer && p < parameters_.size(); ++p) hooks.before_layer(p);
  worker::BatchScore score;
  if (batch.rows == 0) {
    for (const std::span<float> g : gradients) std::fill(g.begin(), g.end(), 0.0f);
  } else {
    Forward(batch.x.data(), batch.rows, parameters, &logits_);
    score = Softmax(batch.y, /*gradient=*/true, &logits_);
    Backward(batch.x.data(), logits_, parameters, gradients);
  }
  for (size_t p = parameters_.size(); hooks.on_gradient && p-- > 0;) hooks.on_gradient(p);
  return score;
}

absl::StatusOr<worker::Evaluation> BatchModel::Evaluate(const worker::Dataset& data, Values parameters) {
  if (data.rows == 0 || data.features != features_ || data.classes > classes_) {
    return absl::InvalidArgumentError(absl::StrCat("the model takes ", features_, " features and ", classes_,
                                                   " classes, the data has ", data.rows, " rows of ", data.features,
                                                   " and ", data.classes));
  }
  double loss = 0;
  size_t correct = 0;
  for (size_t begin = 0; begin < data.rows; begin += kEvaluationRows) {
    const size_t rows = std::min(kEvaluationRows, data.rows - begin);
    Forward(data.x.data() + begin * features_, rows, parameters, &logits_);
    const worker::BatchScore score = Softmax(std::span(data.y).subspan(begin, rows), /*gradient=*/false, &logits_);
    loss += score.loss * static_cast<double>(rows);
    correct += score.correct;
  }
  const auto rows = static_cast<double>(data.rows);
  return worker::Evaluation{.loss = loss / rows, .accuracy = static_cast<double>(correct) / rows};
}

void Dense(const ConstMap& in, std::span<const float> weight, std::span<const float> bias, bool relu, Matrix* out) {
  out->noalias() = in * ConstMap(weight.data(), in.cols(), Index(bias.size()));
  out->rowwise() += Eigen::Map<const Eigen::RowVectorXf>(bias.data(), Index(bias.size()));
  if (relu) *out = out->cwiseMax(0.0f);
}

void DenseGradient(const ConstMap& in, const Matrix& delta, std::span<float> weight, std::span<float> bias) {
  Map(weight.data(), in.cols(), delta.cols()).noalias() = in.transpose() * delta;
  Map(bias.data(), 1, delta.cols()) = delta.colwise().sum();
}

}  // namespace sluice::bench
