// What a dry run says of the topology itself: parts of proto::Explanation (proto/topology.proto).
#pragma once

#include <string>
#include <vector>

#include "scheduler/topology/graph.h"

namespace sluice::placement {

// "24 hosts (192 slots), 6 switches, 72 links; 2 fabrics that nothing joins".
std::string TopologyLine(const topology::Graph& graph);

// Devices of a host for its ranks, in their order (scheduler/topology/formats/affinity.h): "gpu0 mlx5_2". Empty: the topology does not
// know the inside of the host.
std::vector<std::string> DeviceNames(const topology::Graph& graph, uint32_t host);

// Bandwidths that are assumed, and fabrics that nothing joins.
std::vector<std::string> NotesOn(const topology::Graph& graph);

}  // namespace sluice::placement
