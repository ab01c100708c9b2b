// How long a job's steps take, out of heartbeats: rounds that a worker has finished, and when by its own clock. Numbers that
// make no sense are ignored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace sluice::scheduler {

class StepMeter {
 public:
  void Take(uint32_t rank, uint64_t round, uint64_t at_us) {
    Rank& known = ranks_[rank];
    if (known.at_us != 0 && round > known.round && at_us > known.at_us) {
      const double seconds = 1e-6 * static_cast<double>(at_us - known.at_us) / static_cast<double>(round - known.round);
      known.seconds = known.seconds == 0 ? seconds : 0.5 * known.seconds + 0.5 * seconds;
    }
    if (round != known.round || at_us < known.at_us) known.round = round, known.at_us = at_us;   // another life counts anew
  }
  // Of the slowest rank; 0 = not known.
  double seconds() const {
    double slowest = 0;
    for (const auto& [rank, known] : ranks_) slowest = std::max(slowest, known.seconds);
    return slowest;
  }

 private:
  struct Rank {
    uint64_t round = 0, at_us = 0;
    double seconds = 0;   // smoothed over heartbeats
  };
  std::map<uint32_t, Rank> ranks_;
};

}  // namespace sluice::scheduler
