// Parts of proto::Explanation (proto/topology.proto) that a dry run and the scheduler fill alike.
#pragma once

#include <string>
#include <vector>

#include "proto/topology.pb.h"
#include "scheduler/fabric/routes.h"
#include "scheduler/topology/graph.h"

namespace sluice::placement {

inline constexpr size_t kBusiestShown = 10;

// "24 hosts (192 slots), 6 switches, 72 links; 2 fabrics that nothing joins".
std::string TopologyLine(const topology::Graph& graph);

// The most loaded arcs with what is on them.
void FillBusiest(const topology::Graph& graph, const fabric::Routes& routes, const std::vector<double>& arc_bytes, size_t count,
                 proto::Explanation* explanation);

// Sets communication_ms and step_ms: computing and exchanging one after the other.
void FillTimes(double compute_ms, double communication_s, double bound_s, proto::Explanation* explanation);

// Devices of a host for its ranks, in the order of its GPUs: "gpu0 mlx5_2", the NIC with the fewest links in between and of
// these the one that fewest other GPUs got. Empty: the topology does not know the inside of the host.
std::vector<std::string> DevicesOf(const topology::Graph& graph, uint32_t host);

// Bandwidths that are assumed, and fabrics that nothing joins.
std::vector<std::string> NotesOn(const topology::Graph& graph);

}  // namespace sluice::placement
