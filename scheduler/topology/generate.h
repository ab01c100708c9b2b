// Graphs of common fabrics, for tests, dry runs and benchmarks. Deterministic; complete (topology/complete.h).
//
// Hosts are "n0", "n1", …, neighbours in the fabric next to each other. A switch's name says what it is and where.
// RESOURCE_EXHAUSTED: larger than a graph may be; INVALID_ARGUMENT: parameters that make no fabric.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/topology/graph.h"

namespace sluice::topology {

struct HostSpec {
  uint32_t slots = 1;                      // ranks that a host takes: its GPUs
  double link_bytes_per_second = 12.5e9;   // of each of its network links
  double link_latency_s = 1e-6;            // of every link of the fabric
};

// k^3/4 hosts, k even: k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 cores; all links are as fast as a host's.
struct FatTreeSpec {
  uint32_t k = 4;
  HostSpec host;
};
absl::StatusOr<Graph> FatTree(const FatTreeSpec& spec);

// Each leaf is linked with each spine. ratio: bandwidth below a leaf over that above it.
struct SpineLeafSpec {
  uint32_t leaves = 2, spines = 1, hosts_per_leaf = 2;
  double ratio = 1;
  HostSpec host;
};
absl::StatusOr<Graph> SpineLeaf(const SpineLeafSpec& spec);

// Each host has a card for each rail ("n0/nic3"), and the cards of one rail of `hosts_per_group` hosts share a leaf
// ("g0r3"). Leaves are linked with each spine; no spines: there is one group.
struct RailsSpec {
  uint32_t groups = 2, hosts_per_group = 2, rails = 8, spines = 8;
  double ratio = 1;
  HostSpec host;
};
absl::StatusOr<Graph> Rails(const RailsSpec& spec);

// Three tiers: hosts under leaves ("z0l0"), these under the zone's spines ("z0s0"), these under cores ("c0"). A ratio is
// bandwidth below over above: leaf_ratio at the leaves, zone_ratio at the spines of a zone (7: "1:7 between zones").
struct ZonesSpec {
  uint32_t zones = 2, spines_per_zone = 4, cores = 4, leaves_per_zone = 2, hosts_per_leaf = 2;
  double leaf_ratio = 1, zone_ratio = 7;
  HostSpec host;
};
absl::StatusOr<Graph> Zones(const ZonesSpec& spec);

// A switch at each point, linked with its neighbours in each dimension; hosts hang on switches.
struct TorusSpec {
  std::vector<uint32_t> dims = {4, 4};   // each at least 1; 2: one link, not two
  uint32_t hosts_per_switch = 1;
  double ring_bytes_per_second = 0;      // of the links between switches; 0 = as a host's
  HostSpec host;
};
absl::StatusOr<Graph> Torus(const TorusSpec& spec);

// 2^dims switches.
absl::StatusOr<Graph> Hypercube(uint32_t dims, uint32_t hosts_per_switch, const HostSpec& host);

// Groups of `routers` routers that are all linked with each other; each router has `global` links to other groups. There
// are routers * global + 1 groups, any two linked once (Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable
// Dragonfly Topology", ISCA 2008).
struct DragonflySpec {
  uint32_t routers = 4, global = 2, hosts_per_router = 2;
  double group_bytes_per_second = 0, global_bytes_per_second = 0;   // 0 = as a host's
  HostSpec host;
};
absl::StatusOr<Graph> Dragonfly(const DragonflySpec& spec);

}  // namespace sluice::topology
