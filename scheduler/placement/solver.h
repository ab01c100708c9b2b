// Who runs where: finds a placement whose most loaded link is busy for a short time.
//
//   1. First placements: the layouts over the tree of domains (layouts.h), each with servers seated in several ways, and the
//      baselines (so that none of them is ever better); small jobs also begin at random ones, until there are
//      options.starts.
//   2. Tasks that belong apart (Problem::apart) are taken apart.
//   3. The best of them, or all of a small job, are improved by swaps of two tasks and moves of one to a free place, as long as
//      that helps and the budget lasts. Small jobs: all pairs, and again from the best after a few swaps at random. Large
//      ones: a task and one beside a peer of it, by random numbers.
//
// The budget is counted in evaluations, so that the same input and seed give the same placement on any machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/fabric/routes.h"
#include "scheduler/placement/objective.h"
#include "scheduler/placement/problem.h"

namespace sluice::placement {

struct SolveOptions {
  uint64_t seed = 1;
  uint32_t starts = 20;
  uint64_t evaluations = 200'000;           // of swaps and moves, all starts together
  // Both or none. With them small clusters are looked at arc by arc, without by domains alone.
  const topology::Graph* graph = nullptr;
  const fabric::Routes* routes = nullptr;
};

struct Attempt {
  std::string name;                         // "best-fit", "even, blocks of 8, METIS"
  Score score;                              // before it was improved
};

struct Solution {
  Placement placement;
  Score score;
  std::string start;                        // the name of the attempt that became it
  std::vector<Attempt> attempts;            // the best first
  uint64_t evaluations = 0;
};

inline constexpr size_t kRoutedSites = 128;   // clusters of no more are looked at arc by arc

std::unique_ptr<Objective> MakeObjective(const Problem& problem, const SolveOptions& options);

// Fails as Check and CheckFits do.
absl::StatusOr<Solution> Solve(const Problem& problem, const SolveOptions& options);

// Improves a placement that is there: after a link has changed, say. It moves what lowers the time of the most loaded link and
// nothing else.
absl::StatusOr<Solution> Improve(const Problem& problem, const Placement& placement, const SolveOptions& options);

}  // namespace sluice::placement
