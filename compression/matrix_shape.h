// A tensor as a matrix: its first extent by all others, as convolutions are flattened.
#pragma once

#include <cstdint>

#include "proto/plan.pb.h"

namespace sluice::compression {

// Elements of one row: the product of all extents but the first, 1 if there are no others. The shape must be checked before
// (no extent is 0, the product overflows nowhere). Partitions are cut between rows where one row fits in them.
inline uint64_t ColumnsOf(const proto::TensorSpec& spec) {
  uint64_t columns = 1;
  for (int i = 1; i < spec.shape_size(); ++i) columns *= spec.shape(i);
  return columns;
}

}  // namespace sluice::compression
