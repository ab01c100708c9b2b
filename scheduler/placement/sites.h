// From the topology's graph to what placement works on: sites and the tree of domains over them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "scheduler/fabric/routes.h"
#include "scheduler/placement/hierarchy.h"
#include "scheduler/placement/problem.h"
#include "scheduler/topology/domains.h"
#include "scheduler/topology/graph.h"

namespace sluice::placement {

struct SiteRules {
  uint32_t slots_per_worker = 1;
  uint32_t seats = 1;                                      // servers that a host may carry
  absl::flat_hash_set<std::string> only, exclude;          // names of hosts; only: empty = all
  absl::flat_hash_map<std::string, uint32_t> used_slots;   // by other jobs
};

// The hosts that `rules` allow and that have room for anything, in the graph's order.
std::vector<Site> SitesOf(const topology::Graph& graph, const topology::Domains& domains, const SiteRules& rules);

// The tree of domains over the sites: switches of level 1 join hosts to racks, those of level 2 racks to zones, and so on
// (levels as in topology/complete.h); what joins nothing is left out. The capacity of a domain is that of the links which
// leave it: as `routes` estimates them, if given.
Hierarchy HierarchyOf(const topology::Graph& graph, const std::vector<Site>& sites, const fabric::Routes* routes);

}  // namespace sluice::placement
