// Placements to compare with: what schedulers without a view of the traffic do. Fixed tasks stay. Each fails as CheckFits does.
#pragma once

#include "absl/status/statusor.h"
#include "scheduler/placement/problem.h"

namespace sluice::placement {

// As Slurm's topology/tree plugin with block distribution: the lowest switch below which the job fits, there the fewest leaf
// switches (of those that hold the rest the fullest, else the emptiest), ranks in order over the hosts, all places of a host
// before the next; servers in order over the same hosts.
absl::StatusOr<Placement> BestFit(const Problem& problem);
// One worker to each host in turn, over all hosts; servers likewise.
absl::StatusOr<Placement> RoundRobin(const Problem& problem);
absl::StatusOr<Placement> Random(const Problem& problem, uint64_t seed);

// Parts of them that the solver starts from, too.
enum class Seating {
  kBeside,   // on hosts that carry workers, as many to each domain as it has of the workers
  kApart,    // on hosts without workers first, those in domains with the most workers
  kWide,     // over all hosts
};
// Gives the servers and aggregators of `placement` that have none a site. There are seats (CheckFits).
void Seat(const Problem& problem, Seating seating, Placement* placement);

// The sites from left to right in the tree.
std::vector<uint32_t> SitesInOrder(const Hierarchy& tree);

}  // namespace sluice::placement
