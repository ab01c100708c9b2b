#include "compression/calibrate.h"

#include <bit>
#include <cmath>

namespace sluice::compression {
namespace {

constexpr int kShift = 23 - 4;

// The largest magnitude in the bucket, and its middle.
double Top(size_t bucket) {
  const uint32_t bits = (static_cast<uint32_t>(bucket + 1) << kShift) - 1;
  return static_cast<double>(std::bit_cast<float>(bits));
}
double Middle(size_t bucket) {
  const uint32_t bits = (static_cast<uint32_t>(bucket) << kShift) + (1u << (kShift - 1));
  return static_cast<double>(std::bit_cast<float>(bits));
}

// Mean square error of values of this magnitude: beyond the range what is held back, else that of rounding.
double SquaredError(double magnitude, double scale, double levels) {
  if (magnitude > levels * scale) return (magnitude - levels * scale) * (magnitude - levels * scale);
  if (magnitude < scale / 2) return magnitude * magnitude;
  return scale * scale / 12;
}

}  // namespace

void MagnitudeHistogram::Add(std::span<const float> values) {
  for (const float value : values) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7FFFFFFF;
    if (magnitude >= 0x7F800000) continue;
    ++buckets_[magnitude >> kShift];
    ++count_;
  }
}

void MagnitudeHistogram::Merge(const MagnitudeHistogram& other) {
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
}

double MagnitudeHistogram::Percentile(double share) const {
  const double wanted = share * static_cast<double>(count_);
  double seen = 0, top = 0;
  for (size_t i = 0; i < buckets_.size() && seen < wanted; ++i) {
    if (buckets_[i] == 0) continue;
    seen += static_cast<double>(buckets_[i]);
    top = i == 0 ? 0 : Top(i);   // the first bucket holds zeros, and denormals that are as good
  }
  return top;
}

double MagnitudeHistogram::LeastError(int levels) const {
  const double largest = Percentile(1);
  if (largest == 0) return 0;
  double best_range = 0, best_error = HUGE_VAL;
  const int top = static_cast<int>(std::ceil(std::log2(largest / levels))) + 1;
  for (int exponent = top; exponent > top - 40 && exponent > -100; --exponent) {
    const double scale = std::ldexp(1.0, exponent);
    double error = 0;
    for (size_t i = 1; i < buckets_.size(); ++i)
      if (buckets_[i] != 0) error += static_cast<double>(buckets_[i]) * SquaredError(Middle(i), scale, levels);
    if (error < best_error) best_error = error, best_range = levels * scale;
  }
  return best_range;
}

}  // namespace sluice::compression
