// A round's sum as its elements that are not zero, for copies (docs/replication.md): with top-k almost all of it is
// zero. Lossless: an element is zero if all its bits are, so -0.0 and every NaN travel as they are.
//
//   values    count x fp32, in rising order of their index
//   indices   compression/index_pack.h: gaps or a bitmap, the smaller
// Count and form are in the message's head (proto/replica.proto, RoundHead). server/sent_sum.h reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace sluice::server {

// RoundHead.form.
inline constexpr uint32_t kSumDense = 0, kSumGaps = 1, kSumBitmap = 2;

// What Of has found out about a sum, which must not change before Write.
class SparseSum {
 public:
  // Nothing if the form would take more than half of the sum's bytes. A dense sum costs a look at a few places.
  static std::optional<SparseSum> Of(std::span<const float> sum);

  uint32_t form() const { return form_; }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(float) + index_bytes_; }
  void Write(MutableBytes out) const;   // bytes()

 private:
  SparseSum() = default;

  std::span<const float> sum_;
  std::vector<uint64_t> bitmap_;     // bit i % 64 of word i / 64
  std::vector<uint32_t> indices_;    // form gaps
  uint32_t form_ = kSumBitmap;
  size_t count_ = 0, index_bytes_ = 0;
};

}  // namespace sluice::server
