// Which aggregation trees a job could have, and what each would make of a step (docs/topology/trees.md).
//
// An aggregator can only be a server where one runs already. The options:
//   none    every rank pushes to the owner
//   hosts   where two ranks or more share a host with a server, that server adds them up
//   racks   where two ranks or more of another rack than the owner's have a server in their rack, it adds them up; each of a
//           rack's servers for other shards, so that they share the work
//   both    hosts, and these and the others under racks
// An option without a node is left out. What is best is what the predictor (scheduler/fabric/steps.h) says.
#pragma once

#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "scheduler/network/view.h"
#include "scheduler/planning/plan_step.h"
#include "scheduler/trees.h"

namespace sluice::planning {

struct TreeOption {
  std::string name;                  // "none", "hosts", "racks", "hosts and racks"
  scheduler::TreeChoice choice;
  double step_s = 0;                 // predicted; infinite: it cannot be predicted
  std::string note;                  // for people: how many aggregators

  bool HasNodes() const;             // some server adds up
};

inline constexpr size_t kMaxTrees = 256;
inline constexpr size_t kMaxTreeRanks = 1 << 21;   // in all trees: of very large jobs there are fewer trees
inline constexpr double kTreesGain = 0.05;         // of a step: less is not worth a way through more processes

// The best first; of equals (within a thousandth) the one with fewer levels. "none" is always there. why_not: not empty if the
// job cannot have trees; then "none" is all. The plan's servers and workers are known to the network.
std::vector<TreeOption> TreeOptions(const proto::Plan& plan, const network::View& network, std::string* why_not,
                                    const StepRules& rules = {});

// Which of these a job begins with. mode: topology.trees: off; on (the best that has nodes), auto (what takes off kTreesGain).
size_t PickTrees(const std::vector<TreeOption>& options, const std::string& mode);

// The trees of `option`, each with the reason why it is there. instead_s: a step without them.
scheduler::TreeChoice WithReason(const TreeOption& option, double instead_s);

// The plan with the trees of `option`, for predictions: epochs mean nothing in it.
proto::Plan WithTrees(const proto::Plan& plan, const scheduler::TreeChoice& choice);

}  // namespace sluice::planning
