// What a plan makes of the network, in numbers: proto::Explanation (sluicectl plan --explain).
#pragma once

#include "proto/topology.pb.h"
#include "scheduler/network/network.h"

namespace sluice::planning {

// Of a plan with tensors: predicted step, the busiest links, what was weighed for trees, a bound that no plan could beat, and
// what all this rests on. The plan's members are known to the network.
proto::Explanation ExplainPlan(const proto::Plan& plan, const network::Network& network);

}  // namespace sluice::planning
