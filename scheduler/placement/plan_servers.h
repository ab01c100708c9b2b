// The exchange with servers in a dry run: owners, trees and the step by the code that plans running jobs (scheduler/planning), on a plan
// that has the job's members where they were placed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "proto/topology.pb.h"
#include "scheduler/fabric/step_routes.h"
#include "scheduler/network/view.h"

namespace sluice::placement {

inline constexpr double kMaxParameterBytes = 1e15;   // of a job

struct ServersToPlan {
  const proto::JobFile& job;
  std::vector<uint32_t> workers;   // host of each rank (vertices)
  std::vector<uint32_t> servers;   // host of each server
  std::vector<double> beside;      // bytes of other traffic on each arc
  std::string trees;               // TopologyConfig.trees
};

// Adds the choices of owners and trees, and the step with its links and routes, add_routes' among them. False: the job has no
// parameters, so there is no step.
bool PlanServers(const ServersToPlan& what, const network::View& network, absl::FunctionRef<void(fabric::StepRoutes*)> add_routes,
                 proto::Explanation* out);

}  // namespace sluice::placement
