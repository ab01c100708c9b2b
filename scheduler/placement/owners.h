// Which servers own how much, and where copies go: servers behind narrow links get fewer bytes.
//
// Every worker exchanges every shard, so a server that owns the share x of the model puts x times the same on each arc of its
// workers' ways. The shares that make the most loaded arc least loaded solve a small linear program, here by multiplicative
// weights: arcs that are loaded gain weight, and bytes go to the servers whose ways cost least by these weights (Arora,
// Hazan, Kale, "The Multiplicative Weights Update Method", 2012).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "proto/topology.pb.h"
#include "scheduler/fabric/routes.h"
#include "scheduler/topology/domains.h"
#include "scheduler/topology/graph.h"

namespace sluice::placement {

struct OwnerRules {
  double push = 1, pull = 1;       // bytes on the wire for one of a shard, each way
  double gain = 0.05;              // unequal shares must be faster by so much
  double model_bytes = 0;          // for the times in `choice`. 0: a byte
  double compute_s = 0;
};

struct Owners {
  // By ServerInfo.server: the part of the model that it should own; they add up to 1. Equal ones unless it pays. 0: not alive.
  std::vector<double> weight;
  // By server: the others, best first, for copies of its shards: in other failure domains (the wider the better, as long as it
  // is a choice), of these on other hosts, then by weight.
  std::vector<std::vector<uint32_t>> backups;
  proto::Choice choice;            // "owners of shards"
  std::vector<std::string> notes;  // hosts that the topology lacks
};

// Of plan.servers and plan.workers with their hosts. Pure; deterministic.
Owners PlaceOwners(const proto::Plan& plan, const topology::Graph& graph, const topology::Domains& domains, const fabric::Routes& routes,
                   const OwnerRules& rules);

}  // namespace sluice::placement
