// Optimizers of rows: how one row changes by the sum of its gradients. Only rows that were pushed change ("lazy").
//
// fp32 arithmetic, one rounding an operation, in the order written below; the same bits on every machine and build (no
// fused multiply-add). Scalars of a round or a row (decay, bias corrections) are computed in fp64 and rounded once to
// fp32. Powers are products by repeated squaring (base/optimizer/power.h). With r = rate, d = fp32(1 - r l2), and state
// that starts at zero unless said otherwise (A = initial_accumulator):
//
//   sgd              x = d x - r g
//   adagrad          a = a + g g;  x = d x - (r g) / (sqrt(a) + eps); a starts at A                     Duchi et al.
//   2011 rowwise_adagrad  one a for the row: a = a + fp32(S / dim), S the fp64 sum of squares over the tree of
//   base/fixed_sum.h;
//                    x = d x - (r g) / (sqrt(a) + eps); a starts at A       Gupta et al. 2014; as in Mudigere et al.
//                    2022
//   adam             t = t + 1, the row's own count (fp32: it stays at 2^24, where both corrections are 1 in fp32);
//                    m = b1 m + (1-b1) g;  v = b2 v + (1-b2) (g g);
//                    x = d x - (r/(1-b1^t)) (m / (sqrt(v) c + eps)), c = fp32(1/sqrt(1-b2^t))   Kingma & Ba 2015, alg.
//                    1
//   ftrl             n' = n + g g;  s = (sqrt(n') - sqrt(n)) / r;  z = z + (g - s x);  n = n';
//                    x = +0 where |z| <= l1, else (sign(z) l1 - z) / ((beta + sqrt(n)) / r + l2)
//                    McMahan et al. 2013, alg. 1, with alpha = r: x is computed from z and n alone, so l1 gives true
//                    zeros. n starts at A; z where the initial x comes out again: z = -(x q + sign(x) l1) with q =
//                    (beta + sqrt(A)) / r + l2, and 0 where x is 0. A round with r = 0 changes nothing
//
// State of a row, in order: adagrad a[dim]; rowwise_adagrad a; adam m[dim] v[dim] t; ftrl z[dim] n[dim].
// Values at rest in bf16 are widened before and rounded after; s x above is of the value at rest, which is what workers
// saw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "proto/plan.pb.h"

namespace sluice::server {

class RowOptimizer {
 public:
  // INVALID_ARGUMENT names the field, its value and what is allowed; an unknown kind names the nearest. Zero fields
  // mean the defaults of proto/plan.proto.
  static absl::StatusOr<RowOptimizer> Create(const proto::TableOptimizer& config);

  double rate() const { return rate_; }  // the configured one
  size_t StateFloats(uint32_t dim) const;

  // What all rows of a round have in common.
  struct Round {
    float rate = 0;
    float decay = 1;  // fp32(1 - r l2)
  };
  Round BeginRound(float rate) const;

  // State of a new row with these values. Requires state.size() == StateFloats(values.size()), as Apply does.
  void Start(const Round& round, std::span<const float> values, std::span<float> state) const;

  // No overlaps.
  void Apply(const Round& round, std::span<float> values, std::span<const float> gradient,
             std::span<float> state) const;

 private:
  enum class Kind : uint8_t { kSgd, kAdagrad, kRowwiseAdagrad, kAdam, kFtrl };
  RowOptimizer() = default;

  Kind kind_ = Kind::kSgd;
  double rate_ = 0, beta1_ = 0, beta2_ = 0, l2_ = 0;
  float b1_ = 0, one_minus_b1_ = 0, b2_ = 0, one_minus_b2_ = 0;
  float epsilon_ = 0, initial_ = 0, l1_ = 0, l2_float_ = 0, beta_ = 0;
};

}  // namespace sluice::server
