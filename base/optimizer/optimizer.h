// Optimizers: how a partition's parameters change by one reduced gradient.
//
// fp32 arithmetic, one rounding an operation, in the order written below; the same bits on every machine and build (no
// fused multiply-add). Scalars that depend on the step only (bias corrections, decay factor) are computed in fp64 once
// a call and rounded once to fp32. Powers are products by repeated squaring, so no libm is asked.
//
// With g = scale * gradient, r = rate, w = weight decay (0 on biases and norms unless decay_all), d = fp32(1 - r w),
// and state vectors m, v that start at zero:
//
//   sgd       x = d x - r g
//   momentum  m = mu m + g;                 x = d x - r m            Polyak 1964, without dampening
//   nesterov  m = mu m + g;                 x = d x - r (g + mu m)   Sutskever et al. 2013, in PyTorch's form
//   adagrad   g = g + w x; v = v + g g;     x = x - r g / (sqrt(v) + eps)                  Duchi et al. 2011
//   adam      g = g + w x; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g g;
//             x = x - (r/(1-b1^t)) (m / (sqrt(v) c + eps)), c = fp32(1/sqrt(1-b2^t))     Kingma & Ba 2015, alg. 1
//   adamw     as adam without "g + w x", from d x instead of x    Loshchilov & Hutter 2019, alg. 2 (decay by r w)
//   lamb      m, v as adamw; u = (m h) / (sqrt(v) c + eps) + w x, h = fp32(1/(1-b1^t));
//             x = x - fp32(r trust) u, trust = |x| / |u| over the tensor                   You et al. 2020, algorithm 2
//   none      x = g: the value of the partition is the aggregate
//
// LAMB takes two passes: LayerNorms of each partition, summed over the tensor; TrustRatio of the sums; Apply with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "proto/plan.pb.h"

namespace sluice {

struct ApplyParams {
  uint64_t step = 1;    // t: counts the updates that were applied to this partition, this one included
  float rate = 0;
  double scale = 1.0;   // multiplies the gradient (global-norm clipping); rounded to fp32 once
  double trust = 1.0;   // layer-wise optimizers only; ignored by the others
};

struct LayerNorms {
  double parameters = 0;   // sum of squares of x, over the tree of base/fixed_sum.h
  double update = 0;       // sum of squares of u
};

class Optimizer {
 public:
  // INVALID_ARGUMENT names the field, its value and what is allowed; an unknown kind names the nearest. Zero fields
  // mean the defaults of proto/config.proto.
  static absl::StatusOr<Optimizer> Create(const proto::OptimizerConfig& config, proto::TensorKind kind);

  bool none() const { return kind_ == Kind::kNone; }
  bool layerwise() const { return kind_ == Kind::kLamb; }

  // fp32 of state for n elements, all zero at first. m lies before v.
  size_t StateFloats(size_t n) const { return StateVectors() * n; }
  size_t StateVectors() const;

  // Requires x.size() == g.size() and state.size() == StateFloats(x.size()); no overlaps. With `first` only of the
  // elements from there on, as many as g has: calls that cover all of x, each element once, are one update.
  void Apply(std::span<float> x, std::span<const float> g, std::span<float> state, const ApplyParams& params,
             size_t first = 0) const;

  // What Apply would do, without doing it: the update has the same bits. Zeros unless layerwise().
  LayerNorms Norms(std::span<const float> x, std::span<const float> g, std::span<const float> state,
                   const ApplyParams& params) const;

  // From the sums over all partitions of a tensor, added in order of their index. 1 where either norm is zero or not
  // finite, for optimizers that are not layer-wise, and for biases and norms unless decay_all: as in the authors' code,
  // those exempt from decay are exempt from layer-wise rates too (a bias that starts at zero would never leave it).
  double TrustRatio(const LayerNorms& sums) const;

 private:
  enum class Kind : uint8_t { kNone, kSgd, kMomentum, kNesterov, kAdagrad, kAdam, kAdamW, kLamb };
  struct Scalars;   // fp32 factors of one call

  Optimizer() = default;
  Scalars MakeScalars(const ApplyParams& params) const;

  Kind kind_ = Kind::kNone;
  bool exempt_ = false;
  double momentum_ = 0, beta1_ = 0, beta2_ = 0, epsilon_ = 0, weight_decay_ = 0;
};

}  // namespace sluice
