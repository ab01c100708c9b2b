#include "server/table/row_optimizer.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config_schema.h"
#include "base/fixed_sum.h"
#include "base/status_macros.h"
#include "base/optimizer/power.h"

namespace sluice::server {
namespace {

const std::vector<std::string>& Kinds() {  // in the order of RowOptimizer::Kind
  static const auto* kinds = new std::vector<std::string>{"sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"};
  return *kinds;
}

absl::Status CheckRange(const char* field, double value, double low, double high, const char* allowed) {
  if (value >= low && value < high) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError(absl::StrCat("table.optimizer.", field, " is ", value, "; it must be ", allowed));
}

double OrDefault(double value, double otherwise) { return value == 0 ? otherwise : value; }

}  // namespace

absl::StatusOr<RowOptimizer> RowOptimizer::Create(const proto::TableOptimizer& config) {
  const std::string name = config.kind().empty() ? "sgd" : config.kind();
  const auto found = std::find(Kinds().begin(), Kinds().end(), name);
  if (found == Kinds().end())
    return absl::InvalidArgumentError(absl::StrCat("table.optimizer.kind: no optimizer \"", name.substr(0, 80), "\" (",
                                                   absl::StrJoin(Kinds(), ", "), "); the nearest is \"",
                                                   Nearest(name, Kinds()), "\""));
  RowOptimizer optimizer;
  optimizer.kind_ = static_cast<Kind>(found - Kinds().begin());
  optimizer.rate_ = OrDefault(config.rate(), 0.01);
  optimizer.beta1_ = OrDefault(config.beta1(), 0.9);
  optimizer.beta2_ = OrDefault(config.beta2(), 0.999);
  optimizer.l2_ = config.l2();
  const double epsilon = OrDefault(config.epsilon(), 1e-8), beta = OrDefault(config.beta(), 1.0);
  SLUICE_RETURN_IF_ERROR(CheckRange("rate", optimizer.rate_, 0, 1e30, "from 0 (meaning 0.01) to below 1e30"));
  SLUICE_RETURN_IF_ERROR(CheckRange("beta1", optimizer.beta1_, 0, 1, "from 0 (meaning 0.9) to below 1"));
  SLUICE_RETURN_IF_ERROR(CheckRange("beta2", optimizer.beta2_, 0, 1, "from 0 (meaning 0.999) to below 1"));
  // Below 1e-30 it could round to 0 in fp32, and 0 / 0 is where an accumulator is still zero.
  SLUICE_RETURN_IF_ERROR(CheckRange("epsilon", epsilon, 1e-30, 1e30, "from 1e-30 to below 1e30"));
  SLUICE_RETURN_IF_ERROR(CheckRange("beta", beta, 1e-30, 1e30, "from 1e-30 to below 1e30"));
  SLUICE_RETURN_IF_ERROR(
      CheckRange("initial_accumulator", config.initial_accumulator(), 0, 1e30, "from 0 to below 1e30"));
  SLUICE_RETURN_IF_ERROR(CheckRange("l2", config.l2(), 0, 1e30, "from 0 to below 1e30"));
  SLUICE_RETURN_IF_ERROR(CheckRange("l1", config.l1(), 0, 1e30, "from 0 to below 1e30"));
  if (config.l1() != 0 && optimizer.kind_ != Kind::kFtrl)
    return absl::InvalidArgumentError(
        absl::StrCat("table.optimizer.l1 is ", config.l1(), " with kind ", name, "; only ftrl has it: leave it 0"));
  optimizer.b1_ = static_cast<float>(optimizer.beta1_);
  optimizer.one_minus_b1_ = static_cast<float>(1.0 - optimizer.beta1_);
  optimizer.b2_ = static_cast<float>(optimizer.beta2_);
  optimizer.one_minus_b2_ = static_cast<float>(1.0 - optimizer.beta2_);
  optimizer.epsilon_ = static_cast<float>(epsilon);
  optimizer.initial_ = static_cast<float>(config.initial_accumulator());
  optimizer.l1_ = static_cast<float>(config.l1());
  optimizer.l2_float_ = static_cast<float>(config.l2());
  optimizer.beta_ = static_cast<float>(beta);
  return optimizer;
}

size_t RowOptimizer::StateFloats(uint32_t dim) const {
  switch (kind_) {
    case Kind::kSgd: return 0;
    case Kind::kAdagrad: return dim;
    case Kind::kRowwiseAdagrad: return 1;
    case Kind::kAdam: return 2 * size_t{dim} + 1;
    case Kind::kFtrl: return 2 * size_t{dim};
  }
  return 0;
}

RowOptimizer::Round RowOptimizer::BeginRound(float rate) const {
  return {.rate = rate, .decay = static_cast<float>(1.0 - static_cast<double>(rate) * l2_)};
}

void RowOptimizer::Start(const Round& round, std::span<const float> values, std::span<float> state) const {
  const size_t dim = values.size();
  assert(state.size() == StateFloats(static_cast<uint32_t>(dim)));
  const bool accumulates = kind_ == Kind::kAdagrad || kind_ == Kind::kRowwiseAdagrad;
  std::fill(state.begin(), state.end(), accumulates ? initial_ : 0.0f);
  if (kind_ != Kind::kFtrl) return;
  std::fill(state.begin() + static_cast<ptrdiff_t>(dim), state.end(), initial_);
  if (!(round.rate > 0)) return;
  const float q = (beta_ + std::sqrt(initial_)) / round.rate + l2_float_;
  for (size_t i = 0; i < dim; ++i)
    if (values[i] != 0) state[i] = -(values[i] * q + std::copysign(l1_, values[i]));
}

void RowOptimizer::Apply(const Round& round, std::span<float> values, std::span<const float> gradient,
                         std::span<float> state) const {
  const size_t dim = values.size();
  assert(gradient.size() == dim && state.size() == StateFloats(static_cast<uint32_t>(dim)));
  const float r = round.rate, d = round.decay, epsilon = epsilon_;
  float* __restrict x = values.data();
  const float* __restrict g = gradient.data();
  switch (kind_) {
    case Kind::kSgd:
      for (size_t i = 0; i < dim; ++i) x[i] = d * x[i] - r * g[i];
      break;
    case Kind::kAdagrad: {
      float* __restrict a = state.data();
      for (size_t i = 0; i < dim; ++i) {
        a[i] = a[i] + g[i] * g[i];
        x[i] = d * x[i] - (r * g[i]) / (std::sqrt(a[i]) + epsilon);
      }
      break;
    }
    case Kind::kRowwiseAdagrad: {
      state[0] = state[0] + static_cast<float>(SumOfSquares(gradient) / static_cast<double>(dim));
      const float root = std::sqrt(state[0]) + epsilon;
      for (size_t i = 0; i < dim; ++i) x[i] = d * x[i] - (r * g[i]) / root;
      break;
    }
    case Kind::kAdam: {
      float* __restrict m = state.data();
      float* __restrict v = state.data() + dim;
      float& count = state[2 * dim];
      if (count < 0x1p24f) count += 1.0f;
      const auto t = static_cast<uint64_t>(count);
      const auto step = static_cast<float>(static_cast<double>(r) / (1.0 - PowInt(beta1_, t)));
      const auto c = static_cast<float>(1.0 / std::sqrt(1.0 - PowInt(beta2_, t)));
      for (size_t i = 0; i < dim; ++i) {
        m[i] = b1_ * m[i] + one_minus_b1_ * g[i];
        v[i] = b2_ * v[i] + one_minus_b2_ * (g[i] * g[i]);
        x[i] = d * x[i] - step * (m[i] / (std::sqrt(v[i]) * c + epsilon));
      }
      break;
    }
    case Kind::kFtrl: {
      if (!(r > 0)) return;
      float* __restrict z = state.data();
      float* __restrict n = state.data() + dim;
      for (size_t i = 0; i < dim; ++i) {
        const float grown = n[i] + g[i] * g[i], root = std::sqrt(grown);
        const float s = (root - std::sqrt(n[i])) / r;
        z[i] = z[i] + (g[i] - s * x[i]);
        n[i] = grown;
        const float weight = (std::copysign(l1_, z[i]) - z[i]) / ((beta_ + root) / r + l2_float_);
        x[i] = std::fabs(z[i]) <= l1_ ? 0.0f : weight;
      }
      break;
    }
  }
}

}  // namespace sluice::server
