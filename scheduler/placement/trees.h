// Which aggregation trees are worth building: candidates, what each puts on links, the one with the shortest time.
//
//   none        every worker pushes to every owner
//   host        the server on a host with several workers adds their pushes up
//   rack        a server in each rack (failure domain) adds up what comes from the workers in it; in the owner's rack none does
//   host, rack  both: hosts forward to racks, racks to owners
//
// A tree belongs to the shards of one owner: owners take turns in which server of a rack they use, so that all of them
// share the work. Owners with the same nodes share a tree.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "proto/topology.pb.h"
#include "scheduler/fabric/routes.h"
#include "scheduler/topology/domains.h"
#include "scheduler/topology/graph.h"

namespace sluice::placement {

struct TreeRules {
  std::string trees = "auto";        // TopologyConfig.trees: auto, off, on
  double gain = 0.05;                // auto: a tree must be faster by so much
  double push = 1, pull = 1;         // bytes on the wire for one of a shard, each way
  double compute_s = 0;              // of a step, for Option.step_ms
};

struct TreeOption {
  std::string name;
  std::vector<proto::Tree> trees;                  // numbered from 1, epoch 0
  std::map<uint32_t, uint32_t> tree_of;            // of an owner (server) its tree; none: 0
  double seconds = 0;                              // the most loaded arc is busy; infinite: somebody is out of reach
  std::vector<double> arc_bytes;                   // of the exchange with servers
};

struct TreeChoice {
  std::vector<TreeOption> options;                 // the fastest first
  size_t chosen = 0;
  proto::Choice choice;                            // for Explanation
  std::vector<std::string> notes;
};

// Of plan.servers (alive ones) and plan.workers (not out) whose hosts the graph knows; plan.shards say how many bytes each
// server owns. With no bytes anywhere, or nobody's host known, there is one option: none.
TreeChoice ChooseTrees(const proto::Plan& plan, const topology::Graph& graph, const topology::Domains& domains,
                       const fabric::Routes& routes, const TreeRules& rules);

}  // namespace sluice::placement
