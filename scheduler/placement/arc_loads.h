// What a placement puts on every arc of the network, by the ways that traffic really takes: for predictions and explanations.
#pragma once

#include <vector>

#include "scheduler/fabric/routes.h"
#include "scheduler/placement/problem.h"

namespace sluice::placement {

struct ArcLoads {
  std::vector<double> bytes;        // of each arc, a step
  double sent = 0;                  // bytes that leave their host
  double unreachable = 0;           // bytes between hosts that no way joins
};

// Pairs of tasks one by one. All-to-alls by classes of hosts on the same switches, which send the same ways: of the links
// of one host exactly where it hangs on one switch, with several in the shares that its class has on average.
ArcLoads LoadsOf(const Problem& problem, const Placement& placement, const topology::Graph& graph, const fabric::Routes& routes);

// For how long the busiest arc is.
double BusySeconds(const std::vector<double>& bytes, const fabric::Routes& routes);

// A time in which no placement could exchange these bytes: each worker's bytes, less those of the peers that one host could
// hold beside it, through the fastest host's links.
double BoundOf(const Problem& problem);

}  // namespace sluice::placement
