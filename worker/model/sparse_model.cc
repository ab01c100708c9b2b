#include "worker/model/sparse_model.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/model/metrics.h"

namespace sluice::worker {
namespace {

constexpr uint32_t kMaxFactors = 65535;  // a table's rows have 65536 values at most

enum class Loss { kLogistic, kSquared };

class FactorModel final : public SparseModel {
 public:
  FactorModel(uint32_t factors, Loss loss) : factors_(factors), loss_(loss), sums_(factors), squares_(factors) {}

  uint32_t dim() const override { return 1 + factors_; }

  void Outputs(const SparseBatch& batch, std::span<const float> rows, float bias, std::span<float> outputs) override {
    for (size_t row = 0; row < batch.rows(); ++row) outputs[row] = Output(batch, row, rows, bias);
  }

  double LossAndGradient(const SparseBatch& batch, std::span<const float> rows, float bias,
                         std::span<float> row_gradients, float* bias_gradient) override {
    std::fill(row_gradients.begin(), row_gradients.end(), 0.0f);
    *bias_gradient = 0;
    if (batch.rows() == 0) return 0;
    const double count = static_cast<double>(batch.rows());
    double loss = 0;
    for (size_t row = 0; row < batch.rows(); ++row) {
      const double z = Output(batch, row, rows, bias);
      const double y = batch.labels[row];
      const double error = loss_ == Loss::kLogistic ? Sigmoid(z) - y : z - y;
      loss += loss_ == Loss::kLogistic ? LogLossOfLogit(z, y == 1) : error * error / 2;
      const float slope = static_cast<float>(error / count);
      *bias_gradient += slope;
      AddGradient(batch, row, slope, rows, row_gradients);
    }
    return loss / count;
  }

 private:
  // Leaves sum_i v_if x_i in sums_.
  float Output(const SparseBatch& batch, size_t row, std::span<const float> rows, float bias) {
    float z = bias;
    std::fill(sums_.begin(), sums_.end(), 0.0f);
    std::fill(squares_.begin(), squares_.end(), 0.0f);
    for (uint32_t i = batch.row_begin[row]; i < batch.row_begin[row + 1]; ++i) {
      const float x = batch.values[i];
      const float* const values = rows.data() + size_t{batch.positions[i]} * dim();
      z += values[0] * x;
      for (uint32_t f = 0; f < factors_; ++f) {
        const float product = values[1 + f] * x;
        sums_[f] += product;
        squares_[f] += product * product;
      }
    }
    float pairs = 0;
    for (uint32_t f = 0; f < factors_; ++f) pairs += sums_[f] * sums_[f] - squares_[f];
    return z + 0.5f * pairs;
  }

  // dz/dw_i = x_i, dz/dv_if = x_i (sum_j v_jf x_j - v_if x_i), times slope.
  void AddGradient(const SparseBatch& batch, size_t row, float slope, std::span<const float> rows,
                   std::span<float> gradients) const {
    for (uint32_t i = batch.row_begin[row]; i < batch.row_begin[row + 1]; ++i) {
      const float x = batch.values[i];
      const float step = slope * x;
      const float* const values = rows.data() + size_t{batch.positions[i]} * dim();
      float* const gradient = gradients.data() + size_t{batch.positions[i]} * dim();
      gradient[0] += step;
      for (uint32_t f = 0; f < factors_; ++f) gradient[1 + f] += step * (sums_[f] - values[1 + f] * x);
    }
  }

  const uint32_t factors_;  // 0: logistic regression
  const Loss loss_;
  std::vector<float> sums_, squares_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SparseModel>> MakeSparseModel(const SparseModelSpec& spec) {
  if (spec.loss != "logistic" && spec.loss != "squared") {
    return absl::InvalidArgumentError(absl::StrCat("there is no loss \"", spec.loss, "\"; logistic and squared are known"));
  }
  const Loss loss = spec.loss == "squared" ? Loss::kSquared : Loss::kLogistic;
  if (spec.kind == "lr") return std::make_unique<FactorModel>(0, loss);
  if (spec.kind != "fm") {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no sparse model \"", spec.kind, "\"; lr and fm are built in"));
  }
  if (spec.factors == 0 || spec.factors > kMaxFactors) {
    return absl::InvalidArgumentError(
        absl::StrCat("a factorization machine has 1 to ", kMaxFactors, " factors, not ", spec.factors));
  }
  return std::make_unique<FactorModel>(spec.factors, loss);
}

}  // namespace sluice::worker
