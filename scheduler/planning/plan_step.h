// A plan as the predictor sees it (scheduler/fabric/steps.h): who runs where, what a step moves.
#pragma once

#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "proto/topology.pb.h"
#include "scheduler/fabric/steps.h"
#include "scheduler/network/view.h"

namespace sluice::planning {

// What Ethernet, IP and TCP leave of a link's bandwidth for payload, with an MTU of 1500: 1448 of 1514 bytes.
inline constexpr double kTcpEfficiency = 0.956;
// Of a narrow link, what plain TCP connections with bytes in both directions keep busy: `bench/racks --only tcp` (docs/topology.md).
inline constexpr double kTcpUtilization = 0.9;

// What a prediction assumes that neither the plan nor the network says.
struct StepRules {
  double efficiency = kTcpEfficiency;
  double utilization = kTcpUtilization;
  double compute_s = 0;
  const std::vector<double>* beside = nullptr;   // bytes of other traffic on each arc, as StepSpec::beside
};

// False in `complete`: some member runs where the network knows no host (it is left out, and so are its shards).
struct PlanStep {
  // What an owner sends to a server that has a copy of one of its shards: the round's aggregate. It is not in `spec`.
  struct Copy {
    uint32_t from = 0, to = 0;   // of spec.servers
    double bytes = 0;
  };
  fabric::StepSpec spec;
  std::vector<Copy> copies;
  bool complete = true;
  double compute_s = 0;
};

// Ratios are those of the codecs that most bytes travel in, by their bounds; tables are left out, as nobody knows what a step
// pushes of them. Ranks that are out or have finished push nothing.
PlanStep StepOfPlan(const proto::Plan& plan, const network::View& network, const StepRules& rules = {});

// Seconds of a step as it is planned; infinite: it cannot be predicted.
double PredictStep(const proto::Plan& plan, const network::View& network, const StepRules& rules = {});

// "rack1 -> core", with bytes and time: of Explanation.busiest.
std::vector<proto::LinkLoad> BusiestLinks(const network::View& network, const std::vector<fabric::ArcLoad>& loads);

}  // namespace sluice::planning
