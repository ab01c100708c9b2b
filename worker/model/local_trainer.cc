#include "worker/model/local_trainer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "worker/model/metrics.h"

namespace sluice::worker {

absl::StatusOr<LocalTrainer> LocalTrainer::Create(const LocalTrainerOptions& options) {
  if (options.optimizer != "sgd" && options.optimizer != "adagrad" && options.optimizer != "rowwise_adagrad") {
    return absl::InvalidArgumentError(absl::StrCat("the local trainer has no optimizer \"", options.optimizer,
                                                   "\"; sgd, adagrad and rowwise_adagrad are known"));
  }
  if (options.batch == 0) return absl::InvalidArgumentError("a batch has one example at least");
  LocalTrainer trainer(options);
  SLUICE_ASSIGN_OR_RETURN(trainer.model_, MakeSparseModel(options.model));
  return trainer;
}

LocalTrainer::Row LocalTrainer::InitialRow(uint64_t id) const {
  Row row;
  row.values.resize(model_->dim());
  PhiloxRandom random(options_.seed, id);
  for (float& value : row.values) {
    if (options_.init_deviation == 0) break;
    const double u = (random() + 0.5) * 0x1p-32, angle = 2 * std::numbers::pi * random() * 0x1p-32;
    value = static_cast<float>(options_.init_deviation * std::sqrt(-2 * std::log(u)) * std::cos(angle));
  }
  if (options_.optimizer != "sgd") {
    row.state.assign(options_.optimizer == "adagrad" ? row.values.size() : 1,
                     static_cast<float>(options_.initial_accumulator));
  }
  return row;
}

void LocalTrainer::Gather(std::span<const uint64_t> ids) {
  values_.clear();
  for (const uint64_t id : ids) {
    const auto found = table_.find(id);
    if (found != table_.end()) {
      values_.insert(values_.end(), found->second.values.begin(), found->second.values.end());
    } else {
      const Row row = InitialRow(id);
      values_.insert(values_.end(), row.values.begin(), row.values.end());
    }
  }
}

void LocalTrainer::Apply(uint64_t id, std::span<const float> gradient) {
  auto found = table_.find(id);
  if (found == table_.end()) found = table_.emplace(id, InitialRow(id)).first;
  Row& row = found->second;
  const float rate = static_cast<float>(options_.rate), epsilon = static_cast<float>(options_.epsilon);
  if (options_.optimizer == "sgd") {
    for (size_t i = 0; i < gradient.size(); ++i) row.values[i] -= rate * gradient[i];
  } else if (options_.optimizer == "adagrad") {
    for (size_t i = 0; i < gradient.size(); ++i) {
      row.state[i] += gradient[i] * gradient[i];
      row.values[i] -= rate * gradient[i] / (std::sqrt(row.state[i]) + epsilon);
    }
  } else {
    float squares = 0;
    for (const float g : gradient) squares += g * g;
    row.state[0] += squares / static_cast<float>(gradient.size());
    const float scale = rate / (std::sqrt(row.state[0]) + epsilon);
    for (size_t i = 0; i < gradient.size(); ++i) row.values[i] -= scale * gradient[i];
  }
}

double LocalTrainer::Step(const SparseDataset& data, std::span<const uint32_t> rows) {
  const SparseBatch batch = buffer_.Gather(data, rows);
  Gather(batch.ids);
  gradients_.resize(values_.size());
  float bias_gradient = 0;
  const double loss = model_->LossAndGradient(batch, values_, bias_, gradients_, &bias_gradient);
  const size_t dim = model_->dim();
  for (size_t i = 0; i < batch.ids.size(); ++i) Apply(batch.ids[i], std::span(gradients_).subspan(i * dim, dim));
  bias_ -= static_cast<float>(options_.bias_rate) * bias_gradient;
  return loss;
}

double LocalTrainer::Epoch(const SparseDataset& data, uint32_t epoch) {
  std::vector<uint32_t> order(data.rows());
  std::iota(order.begin(), order.end(), 0);
  PhiloxRandom random(options_.seed, uint64_t{1} << 63 | epoch);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(static_cast<uint32_t>(i))]);
  double sum = 0;
  const size_t steps = order.size() / options_.batch;
  for (size_t step = 0; step < steps; ++step) {
    sum += Step(data, std::span(order).subspan(step * options_.batch, options_.batch));
  }
  return steps == 0 ? 0 : sum / static_cast<double>(steps);
}

absl::StatusOr<LocalTrainer::Evaluation> LocalTrainer::Evaluate(const SparseDataset& data) {
  std::vector<float> outputs(data.rows());
  std::vector<uint32_t> rows;
  for (size_t begin = 0; begin < data.rows(); begin += rows.size()) {
    rows.resize(std::min<size_t>(4096, data.rows() - begin));
    std::iota(rows.begin(), rows.end(), static_cast<uint32_t>(begin));
    const SparseBatch batch = buffer_.Gather(data, rows);
    Gather(batch.ids);
    model_->Outputs(batch, values_, bias_, std::span(outputs).subspan(begin, rows.size()));
  }
  SLUICE_ASSIGN_OR_RETURN(const double auc, ExactAuc(outputs, data.labels));
  return Evaluation{.auc = auc, .log_loss = MeanLogLossOfLogits(outputs, data.labels)};
}

}  // namespace sluice::worker
