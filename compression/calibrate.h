// The range of a tensor's gradients, for int8:static and int4:static (compression/quantizer.h).
//
// Magnitudes are counted in 16 buckets an octave, from the smallest float to the largest, so a range is known to 3 %.
// Adding is a pass over the values; two histograms of one tensor may be merged. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace sluice::compression {

class MagnitudeHistogram {
 public:
  // Values that are not finite are left out.
  void Add(std::span<const float> values);
  void Merge(const MagnitudeHistogram& other);
  uint64_t count() const { return count_; }   // zeros included

  // The magnitude that this share of all values does not exceed, 0 < share <= 1. 0 if there are only zeros.
  double Percentile(double share) const;

  // The range that gives codes of -levels to levels the least mean square error: small ones hold large values, large ones
  // round coarsely (Sung, Shin, Hwang 2015: L2 error minimisation). Of ranges levels * 2^i, which are those that there are.
  double LeastError(int levels) const;

 private:
  static constexpr int kMantissaBits = 4;
  std::array<uint64_t, 256 << kMantissaBits> buckets_{};
  uint64_t count_ = 0;
};

}  // namespace sluice::compression
