// The optimum, for tests and benchmarks: branch and bound over all placements of a small job.
//
// Tasks are placed one after another, those with the most traffic first. Bytes between placed tasks are never taken away, so a
// partial placement whose most loaded arc is no better than the best found is given up. Sites and domains that nothing
// tells apart (same room, same capacity, nothing placed in them) are tried once, and so are tasks with the same traffic.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/placement/objective.h"
#include "scheduler/placement/problem.h"

namespace sluice::placement {

struct Exact {
  Placement placement;
  double time = 0;            // Score::time
  uint64_t visited = 0;       // partial placements
};

// By the tree of domains (TreeObjective). `known`: a placement to beat. RESOURCE_EXHAUSTED: more than `most` partial ones.
absl::StatusOr<Exact> SolveExactly(const Problem& problem, const Placement& known, uint64_t most);

}  // namespace sluice::placement
