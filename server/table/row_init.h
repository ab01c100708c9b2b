// The values a row has before anybody has pushed to it: a function of (seed, id, position) and nothing else, so that
// any server, backup or oracle makes the same row.
//
// Word w of a row is word w % 4 of Philox4x32-10 with the counter (w / 4, 0x726F7773, id's low half, id's high half)
// and the seed as key (base/philox.h). With scale = fp32(init_scale), for position p:
//
//   zero      +0
//   uniform   u = word p, its upper 24 bits; value = fp32((u 2^-23 - 1) scale), the bracket exact: in [-scale, scale)
//   normal    the twelve 16-bit halves of words 6p to 6p+5, each uniform on 0 to 65535; s = their sum - 393210 (its
//   mean);
//             value = fp32((s 2^-16) scale), the bracket exact. By Irwin and Hall the sum of twelve is close to normal:
//             the deviation is scale (1 - 2^-33), the kurtosis 2.9, and nothing lies beyond 6 deviations
//
// No libm, one rounding: the same bits everywhere.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "proto/plan.pb.h"

namespace sluice::server {

class RowInit {
 public:
  // INVALID_ARGUMENT names the field of the spec, its value and what is allowed.
  static absl::StatusOr<RowInit> Create(const proto::TableSpec& spec);

  void Fill(uint64_t id, std::span<float> values) const;

 private:
  enum class Kind : uint8_t { kZero, kUniform, kNormal };
  RowInit() = default;

  Kind kind_ = Kind::kZero;
  uint64_t seed_ = 0;
  float scale_ = 0;
};

}  // namespace sluice::server
