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

// Who sends to whom in a stage of a stream, on the way to the owners; the way back is the same, turned round. The bytes are the
// products of weights, before ratios.
struct StageExchange {
  std::vector<Routes::Part> from, to;
};
// Stage 0 is the pushes, stage i the sums of the nodes of the i-th level from the leaves.
std::vector<std::vector<StageExchange>> StagesOf(const StepSpec& spec, const Stream& stream);

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
