// Learning-rate schedules: the rate of a round as a pure function of the round.
//
// Computed in fp64 and rounded once to fp32. With w = warmup_rounds, i = round - w and T = total_rounds - w:
//   warm-up   round < w:  rate (round + 1) / w
//   constant  rate
//   step      rate factor^(i / step_rounds), integer division
//   linear    rate + (final - rate) min(1, i / T)
//   cosine    final + (rate - final) (1 + cos(pi min(1, i / T))) / 2          Loshchilov & Hutter 2017, one period
// Powers and cosine are made of products and sums, so every machine gets the same bits.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"

namespace sluice {

class Schedule {
 public:
  // INVALID_ARGUMENT names the field, its value and what is allowed. Zero fields mean the defaults of
  // proto/config.proto. With optimizer kind "none" every rate is 0.
  static absl::StatusOr<Schedule> Create(const proto::OptimizerConfig& config);

  float Rate(uint64_t round) const;   // rounds count from 0

 private:
  enum class Shape : uint8_t { kConstant, kStep, kCosine, kLinear };
  Schedule() = default;

  Shape shape_ = Shape::kConstant;
  double rate_ = 0, final_rate_ = 0, step_factor_ = 1;
  uint64_t warmup_ = 0, length_ = 0, step_rounds_ = 0;
};

}  // namespace sluice
