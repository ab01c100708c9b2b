// The sum of one round of one partition: contributions go in, the aggregate comes out.
//
// rank, fast  fp32, one addition a contribution in the order of the calls; the first one assigns. The caller keeps the
//             order of ranks. Memory: 4 bytes an element.
// exact       binned sums (server/math/exact_sum.h): the same bits for every order and every tree, one rounding at the
//             end. Memory: 28 bytes an element, and 4 of scratch.
// Mean: the sum, rounded to fp32, is divided by fp32(contributors) (IEEE division) once at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "compression/codec.h"
#include "proto/config.pb.h"
#include "server/math/exact_sum.h"

namespace sluice::server {

class RoundSum {
 public:
  RoundSum(proto::Order order, size_t elements) : order_(order), elements_(elements) {}

  // Decodes one contribution and adds it. On an error the sum may hold part of it: Codec::Validate comes first.
  absl::Status Add(const compression::Codec& codec, ConstBytes payload);
  void AddValues(std::span<const float> values);   // requires elements() values

  // Adds another sum of the same order and size (an aggregation tree). With rank and fast it counts as one
  // contribution, whose own order was fixed below.
  void Merge(const RoundSum& other);

  // Order exact: the bins of what was added, and those of another sum (server/math/exact_wire.h) of `contributions` contributions.
  // Bins of nothing if nothing was added.
  const ExactSum& exact_sum() { return StartExact(); }
  absl::Status MergeBins(ConstBytes wire, uint64_t contributions);

  // The sum, or with REDUCTION_MEAN the mean over `contributors` (> 0; empty contributions count, though nothing was
  // added for them). Zeros if nothing was added. The sum stays as it is.
  void Finish(proto::Reduction reduction, uint32_t contributors, std::span<float> out) const;

  void Reset() { added_ = 0; }   // back to nothing added; memory is kept
  void Release();                // as Reset, and the memory is given back

  size_t elements() const { return elements_; }
  uint64_t added() const { return added_; }   // calls of Add, AddValues, and those of merged sums
  size_t MemoryBytes() const;                 // held now: 0 until the first contribution

 private:
  bool exact() const { return order_ == proto::ORDER_EXACT; }
  ExactSum& StartExact();

  proto::Order order_;
  size_t elements_;
  uint64_t added_ = 0;
  std::vector<float> sum_;       // exact: scratch for decoding
  ExactSum exact_;
};

// Factor for the gradient of a whole step so that its global L2 norm is at most clip_norm: 1, or clip_norm / norm.
// 1 where clip_norm is 0 (off). sum_of_squares must be finite and not negative.
double ClipScale(double sum_of_squares, double clip_norm);

}  // namespace sluice::server
