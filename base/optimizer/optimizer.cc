#include "base/optimizer/optimizer.h"

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

namespace sluice {
namespace {

const std::vector<std::string>& Kinds() {   // in the order of Optimizer::Kind
  static const auto* kinds = new std::vector<std::string>{"none",    "sgd",  "momentum", "nesterov",
                                                          "adagrad", "adam", "adamw",    "lamb"};
  return *kinds;
}

absl::Status CheckRange(const char* field, double value, double low, double high, const char* allowed) {
  if (value >= low && value < high) return absl::OkStatus();   // false for NaN
  return absl::InvalidArgumentError(absl::StrCat("job.optimizer.", field, " is ", value, "; it must be ", allowed));
}

}  // namespace

struct Optimizer::Scalars {
  float scale;
  float rate;
  float decay;           // fp32(1 - r w)
  float weight_decay;
  float momentum;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  float step_size;       // r / (1 - b1^t)
  float inverse_bias1;   // 1 / (1 - b1^t)
  float inverse_root2;   // 1 / sqrt(1 - b2^t)
  float trust_rate;      // r trust
};

namespace {

// The moments and the update of LAMB: one place, so that Norms and Apply cannot differ.
struct LambUpdate {
  float m, v, update;
};
template <typename Scalars>
inline LambUpdate Lamb(const Scalars& s, float x, float gradient, float m, float v) {
  const float g = s.scale * gradient;
  m = s.beta1 * m + s.one_minus_beta1 * g;
  v = s.beta2 * v + s.one_minus_beta2 * (g * g);
  const float direction = (m * s.inverse_bias1) / (std::sqrt(v) * s.inverse_root2 + s.epsilon);
  return {m, v, direction + s.weight_decay * x};
}

template <typename Scalars>
inline void AdamMoments(const Scalars& s, float g, float* m, float* v) {
  *m = s.beta1 * *m + s.one_minus_beta1 * g;
  *v = s.beta2 * *v + s.one_minus_beta2 * (g * g);
}
template <typename Scalars>
inline float AdamDirection(const Scalars& s, float m, float v) {
  return m / (std::sqrt(v) * s.inverse_root2 + s.epsilon);
}

}  // namespace

absl::StatusOr<Optimizer> Optimizer::Create(const proto::OptimizerConfig& config, proto::TensorKind kind) {
  const std::string name = config.kind().empty() ? "none" : config.kind();
  const auto found = std::find(Kinds().begin(), Kinds().end(), name);
  if (found == Kinds().end())
    return absl::InvalidArgumentError(absl::StrCat("job.optimizer.kind: no optimizer \"", name.substr(0, 80), "\" (",
                                                   absl::StrJoin(Kinds(), ", "), "); the nearest is \"",
                                                   Nearest(name, Kinds()), "\""));
  Optimizer optimizer;
  optimizer.kind_ = static_cast<Kind>(found - Kinds().begin());
  optimizer.exempt_ = kind != proto::TENSOR_WEIGHT && !config.decay_all();
  optimizer.momentum_ = config.momentum() == 0 ? 0.9 : config.momentum();
  optimizer.beta1_ = config.beta1() == 0 ? 0.9 : config.beta1();
  optimizer.beta2_ = config.beta2() == 0 ? 0.999 : config.beta2();
  optimizer.epsilon_ = config.epsilon() == 0 ? 1e-8 : config.epsilon();
  SLUICE_RETURN_IF_ERROR(CheckRange("momentum", optimizer.momentum_, 0, 1, "from 0 to below 1"));
  SLUICE_RETURN_IF_ERROR(CheckRange("beta1", optimizer.beta1_, 0, 1, "from 0 to below 1"));
  SLUICE_RETURN_IF_ERROR(CheckRange("beta2", optimizer.beta2_, 0, 1, "from 0 to below 1"));
  // Below 1e-30 it could round to 0 in fp32, and 0 / 0 is where v is still zero.
  SLUICE_RETURN_IF_ERROR(CheckRange("epsilon", optimizer.epsilon_, 1e-30, 1e30, "from 1e-30 to below 1e30"));
  SLUICE_RETURN_IF_ERROR(CheckRange("weight_decay", config.weight_decay(), 0, 1e30, "from 0 to below 1e30"));
  SLUICE_RETURN_IF_ERROR(CheckRange("clip_norm", config.clip_norm(), 0, 1e300, "from 0 (off) to below 1e300"));
  optimizer.weight_decay_ = optimizer.exempt_ ? 0.0 : config.weight_decay();
  return optimizer;
}

size_t Optimizer::StateVectors() const {
  switch (kind_) {
    case Kind::kNone:
    case Kind::kSgd: return 0;
    case Kind::kMomentum:
    case Kind::kNesterov:
    case Kind::kAdagrad: return 1;
    case Kind::kAdam:
    case Kind::kAdamW:
    case Kind::kLamb: return 2;
  }
  return 0;
}

Optimizer::Scalars Optimizer::MakeScalars(const ApplyParams& params) const {
  const double rate = params.rate;
  const uint64_t step = std::max<uint64_t>(params.step, 1);
  const double bias1 = 1.0 - PowInt(beta1_, step);
  const double bias2 = 1.0 - PowInt(beta2_, step);
  Scalars s;
  s.scale = static_cast<float>(params.scale);
  s.rate = params.rate;
  s.decay = static_cast<float>(1.0 - rate * weight_decay_);
  s.weight_decay = static_cast<float>(weight_decay_);
  s.momentum = static_cast<float>(momentum_);
  s.beta1 = static_cast<float>(beta1_);
  s.one_minus_beta1 = static_cast<float>(1.0 - beta1_);
  s.beta2 = static_cast<float>(beta2_);
  s.one_minus_beta2 = static_cast<float>(1.0 - beta2_);
  s.epsilon = static_cast<float>(epsilon_);
  s.step_size = static_cast<float>(rate / bias1);
  s.inverse_bias1 = static_cast<float>(1.0 / bias1);
  s.inverse_root2 = static_cast<float>(1.0 / std::sqrt(bias2));
  s.trust_rate = static_cast<float>(rate * params.trust);
  return s;
}

void Optimizer::Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float> state,
                      const ApplyParams& params, size_t first) const {
  const size_t n = gradient.size();
  assert(first + n <= parameters.size() && state.size() == StateFloats(parameters.size()));
  const Scalars s = MakeScalars(params);
  float* __restrict x = parameters.data() + first;
  const float* __restrict gradients = gradient.data();
  float* __restrict m = StateVectors() >= 1 ? state.data() + first : nullptr;
  float* __restrict v = StateVectors() == 2 ? state.data() + parameters.size() + first : nullptr;
  switch (kind_) {
    case Kind::kNone:
      for (size_t i = 0; i < n; ++i) x[i] = s.scale * gradients[i];
      break;
    case Kind::kSgd:
      for (size_t i = 0; i < n; ++i) x[i] = s.decay * x[i] - s.rate * (s.scale * gradients[i]);
      break;
    case Kind::kMomentum:
      for (size_t i = 0; i < n; ++i) {
        m[i] = s.momentum * m[i] + s.scale * gradients[i];
        x[i] = s.decay * x[i] - s.rate * m[i];
      }
      break;
    case Kind::kNesterov:
      for (size_t i = 0; i < n; ++i) {
        const float g = s.scale * gradients[i];
        m[i] = s.momentum * m[i] + g;
        x[i] = s.decay * x[i] - s.rate * (g + s.momentum * m[i]);
      }
      break;
    case Kind::kAdagrad:
      for (size_t i = 0; i < n; ++i) {
        const float g = s.scale * gradients[i] + s.weight_decay * x[i];
        m[i] = m[i] + g * g;   // v: the only vector of state
        x[i] = x[i] - (s.rate * g) / (std::sqrt(m[i]) + s.epsilon);
      }
      break;
    case Kind::kAdam:
      for (size_t i = 0; i < n; ++i) {
        AdamMoments(s, s.scale * gradients[i] + s.weight_decay * x[i], &m[i], &v[i]);
        x[i] = x[i] - s.step_size * AdamDirection(s, m[i], v[i]);
      }
      break;
    case Kind::kAdamW:
      for (size_t i = 0; i < n; ++i) {
        AdamMoments(s, s.scale * gradients[i], &m[i], &v[i]);
        x[i] = s.decay * x[i] - s.step_size * AdamDirection(s, m[i], v[i]);
      }
      break;
    case Kind::kLamb:
      for (size_t i = 0; i < n; ++i) {
        const LambUpdate next = Lamb(s, x[i], gradients[i], m[i], v[i]);
        m[i] = next.m;
        v[i] = next.v;
        x[i] = x[i] - s.trust_rate * next.update;
      }
      break;
  }
}

LayerNorms Optimizer::Norms(std::span<const float> parameters, std::span<const float> gradient,
                            std::span<const float> state, const ApplyParams& params) const {
  LayerNorms norms;
  if (!layerwise()) return norms;
  const size_t n = parameters.size();
  assert(gradient.size() == n && state.size() == StateFloats(n));
  const Scalars s = MakeScalars(params);
  norms.parameters = SumOfSquares(parameters);
  // A block of the tree at a time: block sums added in order are the sum over the whole.
  constexpr size_t kBlock = 4096;
  float update[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t length = std::min(kBlock, n - begin);
    const float* __restrict x = parameters.data() + begin;
    const float* __restrict gradients = gradient.data() + begin;
    const float* __restrict m = state.data() + begin;
    const float* __restrict v = state.data() + n + begin;
    for (size_t i = 0; i < length; ++i) update[i] = Lamb(s, x[i], gradients[i], m[i], v[i]).update;
    norms.update += SumOfSquares({update, length});
  }
  return norms;
}

double Optimizer::TrustRatio(const LayerNorms& sums) const {
  if (!layerwise() || exempt_) return 1.0;
  const double x = std::sqrt(sums.parameters), update = std::sqrt(sums.update);
  if (!(x > 0 && update > 0 && std::isfinite(x) && std::isfinite(update))) return 1.0;
  return x / update;
}

}  // namespace sluice
