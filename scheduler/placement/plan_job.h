// A job planned on a topology without a cluster: where ranks and servers go, what that costs, what else was weighed.
//
//   1. The hosts that the job may use (only_hosts, exclude_hosts), with room for so many workers each.
//   2. Exchange of gradients by servers, all-reduce, or (auto) whichever is predicted to be faster.
//   3. Placement by the solver, or the baseline that job.placement names; the others are options with their times.
//   4. Owners of shards by what their links carry, and aggregation trees where they lower the predicted time.
#pragma once

#include "absl/status/statusor.h"
#include "proto/topology.pb.h"
#include "scheduler/fabric/routes.h"
#include "scheduler/topology/graph.h"

namespace sluice::placement {

struct PlanJobOptions {
  uint64_t seed = 1;
  std::string trees = "auto";          // TopologyConfig.trees
  uint64_t evaluations = 200'000;
};

// `graph` is complete. INVALID_ARGUMENT names the field of the job; RESOURCE_EXHAUSTED says how much room is missing and which
// rule takes it away.
absl::StatusOr<proto::Explanation> PlanJob(const proto::JobFile& job, const topology::Graph& graph, const fabric::Routes& routes,
                                           const PlanJobOptions& options);

}  // namespace sluice::placement
