// Jobs and clusters that bench/topology:placement tries.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/topology.pb.h"
#include "scheduler/fabric/routes.h"
#include "scheduler/placement/problem.h"
#include "scheduler/placement/traffic.h"
#include "scheduler/topology/graph.h"

namespace sluice::bench {

struct Cluster {
  std::string name;
  topology::Graph graph;
  std::unique_ptr<fabric::Routes> routes;
  std::vector<uint32_t> used;        // slots of each host that other jobs hold, in the graph's order
};

enum class Use {
  kEmpty,
  kWholeHosts,    // a third of the hosts is taken, here and there
  kFragments,     // hosts have 0 to 8 slots free, racks are unequally full
};
const char* UseName(Use use);

// Hosts of 8 GPUs under leaves (1:2), leaves in zones, 1:7 between zones.
Cluster ThreeTiers(uint32_t zones, uint32_t leaves_per_zone, uint32_t hosts_per_leaf, Use use, uint64_t seed);

struct Job {
  std::string name;
  proto::JobFile file;
  placement::Exchange exchange = placement::Exchange::kAllReduce;
  uint32_t servers = 0;
};
// Communication-bound: no computing time.
std::vector<Job> Jobs();
Job LargeModel(uint32_t workers);

placement::Problem ProblemOf(const Cluster& cluster, const Job& job);

}  // namespace sluice::bench
