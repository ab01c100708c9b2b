#include "scheduler/placement/loads.h"

#include <algorithm>

#include "scheduler/topology/graph.h"

namespace sluice::placement {

void Loads::AddArc(double bytes_per_second, bool cut) {
  // An arc that is down would be busy for ever: a byte a second is as good, and numbers stay finite.
  seconds_per_byte_.push_back(1.0 / std::max(1.0, bytes_per_second));
  bytes_.push_back(0);
  cut_.push_back(cut);
  if (bytes_.size() > leaves_) {
    leaves_ = std::max<size_t>(1, 2 * leaves_);
    EndBulk();
  }
}

void Loads::Clear() {
  std::fill(bytes_.begin(), bytes_.end(), 0.0);
  cut_bytes_ = all_bytes_ = 0;
  EndBulk();
}

void Loads::EndBulk() {
  bulk_ = false;
  most_.assign(2 * leaves_, 0.0);
  for (uint32_t arc = 0; arc < bytes_.size(); ++arc) most_[leaves_ + arc] = busy(arc);
  for (size_t i = leaves_; i-- > 1;) most_[i] = std::max(most_[2 * i], most_[2 * i + 1]);
}

uint32_t Loads::Busiest() const {
  if (bytes_.empty()) return topology::kNone;
  size_t i = 1;
  while (i < leaves_) i = most_[2 * i] >= most_[2 * i + 1] ? 2 * i : 2 * i + 1;
  return static_cast<uint32_t>(i - leaves_);
}

}  // namespace sluice::placement
