#include "server/math/reduce.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/status_macros.h"
#include "server/math/exact_wire.h"

namespace sluice::server {

ExactSum& RoundSum::StartExact() {
  if (added_ == 0) exact_.Assign(elements_);
  return exact_;
}

absl::Status RoundSum::Add(const compression::Codec& codec, ConstBytes payload) {
  sum_.resize(elements_);
  if (exact()) {
    SLUICE_RETURN_IF_ERROR(codec.Decode(payload, sum_));
    StartExact().Add(sum_);
  } else if (added_ == 0) {
    SLUICE_RETURN_IF_ERROR(codec.Decode(payload, sum_));
  } else {
    SLUICE_RETURN_IF_ERROR(codec.DecodeAdd(payload, sum_));
  }
  ++added_;
  return absl::OkStatus();
}

void RoundSum::AddValues(std::span<const float> values) {
  assert(values.size() == elements_);
  if (exact()) {
    StartExact().Add(values);
  } else if (added_ == 0) {
    sum_.assign(values.begin(), values.end());
  } else {
    float* __restrict sum = sum_.data();
    const float* __restrict in = values.data();
    for (size_t i = 0; i < elements_; ++i) sum[i] += in[i];
  }
  ++added_;
}

void RoundSum::Merge(const RoundSum& other) {
  assert(other.elements_ == elements_ && other.order_ == order_);
  if (other.added_ == 0) return;
  if (exact()) {
    StartExact().Merge(other.exact_);
    added_ += other.added_;
  } else {
    AddValues(other.sum_);
    added_ += other.added_ - 1;
  }
}

absl::Status RoundSum::MergeBins(ConstBytes wire, uint64_t contributions) {
  SLUICE_RETURN_IF_ERROR(MergeExact(wire, contributions, &StartExact()));
  added_ += contributions;
  return absl::OkStatus();
}

void RoundSum::Finish(proto::Reduction reduction, uint32_t contributors, std::span<float> out) const {
  assert(out.size() == elements_ && contributors > 0);
  if (added_ == 0) {
    std::fill(out.begin(), out.end(), 0.0f);
    return;
  }
  if (exact())
    exact_.Round(out);
  else
    std::copy(sum_.begin(), sum_.end(), out.begin());
  if (reduction == proto::REDUCTION_MEAN && contributors > 1) {
    const float divisor = static_cast<float>(contributors);
    for (float& value : out) value /= divisor;
  }
}

void RoundSum::Release() {
  added_ = 0;
  std::vector<float>().swap(sum_);
  exact_.Release();
}

size_t RoundSum::MemoryBytes() const { return sum_.capacity() * sizeof(float) + exact_.MemoryBytes(); }

double ClipScale(double sum_of_squares, double clip_norm) {
  const double norm = std::sqrt(sum_of_squares);
  return clip_norm > 0 && norm > clip_norm ? clip_norm / norm : 1.0;
}

}  // namespace sluice::server
