// How an error-feedback residual follows the learning rate. The residual is kept in gradient units, so the same error
// in the parameters means another residual when the rate changes: scale = old rate / new rate.
//
// Rules (docs/design.md, "Compression"): clamped, so that one jump of a schedule cannot blow the residual up, and never
// through a zero rate, which keeps the last rate that was not zero.
#pragma once

#include <algorithm>

namespace sluice::worker {

// Factor for a residual that was kept at `kept` when this round runs at `rate`. 0 = no optimizer, or a rate of zero.
inline float ResidualScale(float kept, float rate) {
  if (!(kept > 0) || !(rate > 0)) return 1.0f;
  return std::clamp(kept / rate, 0.1f, 10.0f);
}

// The rate that the new residual is kept at.
inline float ResidualRate(float kept, float rate) { return rate > 0 ? rate : kept; }

}  // namespace sluice::worker
