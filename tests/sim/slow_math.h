// The numerics of a job written down a second time, from docs/codecs.md and the formulas of proto/config.proto,
// docs/design.md and server/math/*.h: one element at a time, without sharing code with what it judges. Slow on purpose.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "proto/config.pb.h"
#include "proto/plan.pb.h"

namespace sluice::sim {

// An encoding of n elements.
absl::StatusOr<std::vector<float>> SlowDecode(uint16_t codec, ConstBytes payload, size_t n);

// A payload of rows (docs/wire.md, "Rows"), and where ids live.
struct SlowRows {
  std::vector<uint64_t> ids;
  ConstBytes values;
};
absl::StatusOr<SlowRows> SlowParseRows(ConstBytes payload);
uint32_t SlowSegmentOf(uint64_t id, uint32_t segments);

// Sums in the order of the vectors (rank, fast), or reproducible ones (exact); then the mean over `contributors`.
std::vector<float> SlowReduce(proto::Order order, proto::Reduction reduction,
                              const std::vector<std::vector<float>>& vectors, size_t contributors, size_t n);

double SlowSumOfSquares(std::span<const float> values);  // the tree of base/fixed_sum.h

float SlowRate(const proto::OptimizerConfig& config, uint64_t step);

bool AllFinite(std::span<const float> values);

// One partition's parameters and optimizer state.
class SlowOptimizer {
 public:
  SlowOptimizer(const proto::OptimizerConfig& config, proto::TensorKind kind, size_t n);

  const std::vector<float>& x() const { return x_; }
  void Assign(std::vector<float> values) { x_ = std::move(values); }
  bool none() const { return kind_ == "none"; }
  bool layerwise() const { return kind_ == "lamb"; }

  void Apply(const std::vector<float>& gradient, float rate, double scale, double trust);
  // The update u of the next Apply (layer-wise only).
  std::vector<float> Update(const std::vector<float>& gradient, double scale) const;
  double Trust(double parameters, double update) const;  // from sums of squares over the tensor

 private:
  const proto::OptimizerConfig config_;
  const std::string kind_;
  const bool exempt_;
  std::vector<float> x_, m_, v_;
  uint64_t updates_ = 0;
};

}  // namespace sluice::sim
