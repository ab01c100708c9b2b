// Explanation.routes of what a step moves between hosts (scheduler/fabric/step_routes.h).
#pragma once

#include "proto/topology.pb.h"
#include "scheduler/fabric/step_routes.h"
#include "scheduler/topology/graph.h"

namespace sluice::planning {

inline constexpr size_t kMostRoutes = 256;   // rows; how many more there are is said

void FillRoutes(const topology::Graph& graph, const fabric::Routes& routes, const fabric::StepRoutes& step, proto::Explanation* out);

}  // namespace sluice::planning
