// What is said of a plan's step, be it of a running job or of a dry run: parts of proto::Explanation.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "proto/topology.pb.h"
#include "scheduler/fabric/step_routes.h"
#include "scheduler/network/view.h"
#include "scheduler/planning/plan_step.h"
#include "scheduler/planning/tree_options.h"

namespace sluice::planning {

inline constexpr size_t kBusiestLinks = 10;

// Trees, times, busiest links, routes, and notes on what these leave out. more_routes: adds what is exchanged beside the step. False:
// nothing can be predicted; a note says why.
bool ExplainStep(const proto::Plan& plan, const network::View& network, const PlanStep& step, proto::Explanation* out,
                 absl::FunctionRef<void(fabric::StepRoutes*)> more_routes = [](fabric::StepRoutes*) {});

// "aggregation trees": those that the plan has, among `options` (TreeOptions of this plan, with why_not). mode: topology.trees;
// present_s: a step as planned.
proto::Choice ExplainTrees(const proto::Plan& plan, const std::vector<TreeOption>& options, const std::string& why_not, const std::string& mode,
                           double present_s);

}  // namespace sluice::planning
