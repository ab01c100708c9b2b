// Fills in what no file said: bandwidth and latency of links, and slots of hosts.
//
// What is there stays. What is filled in keeps Source::kAssumed, so that a measurement replaces it and `explain` says so.
//
//   link                    bytes/s of a cable, each way             latency    where from
//   host - switch           Assumptions.host_link_bytes_per_second   by medium  configuration
//   switch - higher switch  (bandwidth below) / oversubscription /   by medium  configuration
//                           (cables up); or as its other cables up
//   switch - equal switch   as a host's cable                        by medium  rings, tori, meshes of routers
//   NVLink                  20e9                                     0.6 us     NCCL, src/graph/topo.h: SM80, SM90 (of 25 nominal)
//   xGMI                    36e9                                     0.6 us     RCCL, src/graph/topo.h: MI200 (of 50 nominal)
//   PCIe                    24e9                                     0.5 us     16 lanes of 16 GT/s, as NCCL counts them
//   between sockets         10e9                                     0.2 us     NCCL, src/graph/topo.h: SKL_QPI_BW
//   any of Ethernet, or not known                                    1.0 us     a switch's 0.3 to 0.8 us, cable and queue
//   any of InfiniBand                                                0.3 us     a switch's 0.13 us, cable and queue
//
// Latencies of PCIe and NVLink: NCCL, src/graph/tuning.cc (1.0 us for a way over two PCIe links). They are rough: bandwidth
// decides for messages of megabytes. The PCIe link of a network card is at least as fast as the card's network link.
//
// A switch's level is its distance from the nearest host; "higher" is farther from hosts.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/topology/graph.h"

namespace sluice::topology {

struct Assumptions {
  double host_link_bytes_per_second = 12.5e9;   // 100 Gb/s
  double oversubscription = 1;                  // bandwidth below a switch over that above it
};

// Also calls graph->Finish(). Afterwards every link has a bandwidth and a latency above 0, every host a slot or more.
void Complete(Graph* graph, const Assumptions& assumptions);

// Of each vertex: 0 for a host and what is inside it, else the distance from the nearest of `hosts` over links between
// switches and hosts; kNone: none is in reach. `graph` is finished.
std::vector<uint32_t> Levels(const Graph& graph, const std::vector<uint32_t>& hosts);

// Whether traffic between hosts may take it: not NVLink and the like, and not between a host's own parts.
bool IsNetworkLink(const Graph& graph, const Link& link);

}  // namespace sluice::topology
