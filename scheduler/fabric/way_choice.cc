#include "scheduler/fabric/way_choice.h"

#include <algorithm>
#include <limits>

namespace sluice::fabric {

bool WayChoice::Choose(uint32_t from, uint32_t to, uint64_t first_hash, Chosen* chosen) {
  *chosen = {};
  bool found = false;
  for (uint64_t i = 0; i < std::max(1u, candidates_); ++i) {
    if (!routes_->Way(from, to, first_hash + i, &way_)) return false;
    double least = std::numeric_limits<double>::infinity();
    for (const uint32_t arc : way_) least = std::min(least, routes_->BytesPerSecond(arc) / (used_[arc] + 1));
    if (found && least <= chosen->bytes_per_second) continue;
    found = true;
    chosen->hash = first_hash + i;
    chosen->bytes_per_second = least;
    chosen->arcs.swap(way_);
  }
  for (const uint32_t arc : chosen->arcs) ++used_[arc];
  return true;
}

void WayChoice::Done(const Chosen& chosen) {
  for (const uint32_t arc : chosen.arcs) used_[arc] -= used_[arc] > 0 ? 1 : 0;
}

}  // namespace sluice::fabric
