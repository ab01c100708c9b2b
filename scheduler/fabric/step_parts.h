// What both halves of steps.h make of a StepSpec.
#pragma once

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/fabric/steps.h"

namespace sluice::fabric {

absl::Status CheckStep(const StepSpec& spec);

// Shards that take the same way to their owner are one.
struct Stream {
  int32_t tree = -1;
  std::map<uint32_t, double> bytes;     // by owner
  double Total() const;
  std::vector<uint32_t> direct;         // ranks that push to owners
};
std::vector<Stream> StreamsOf(const StepSpec& spec);

// A node's distance from the owners: 1 if it has no parent. Parents come to fewer, so cycles are refused by CheckStep.
std::vector<uint32_t> DepthsOf(const StepTree& tree);

// Members in turn; each sends the next (m-1)/m of the ring's bytes in each half of an all-reduce.
struct Ring {
  std::vector<uint32_t> ranks;
  double part = 1;                      // of collective_bytes
};
// By level, the innermost first. A level is a list of rings that run side by side.
std::vector<std::vector<Ring>> RingsOf(const StepSpec& spec);

// The arcs that are busy for longest.
std::vector<ArcLoad> Busiest(const std::vector<double>& load, const Routes& routes, double efficiency, size_t count);

}  // namespace sluice::fabric
