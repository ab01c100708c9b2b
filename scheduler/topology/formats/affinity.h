// The GPUs and NICs of a host: in which order ranks take the GPUs, and which NIC each of them uses.
//
// NIC. Only PCIe counts, NVLink does not: of all NICs those that the fewest socket crossings, then the fewest PCIe
// links, then the widest way lead to. Where several are equal, GPUs are spread over them: the one that fewest GPUs
// have, then the first by name. Order. A ring over all GPUs (ranks next to each other, and the last with the first)
// with the most NVLink or xGMI bandwidth, then with the shortest ways over PCIe, then in the order of their numbers. It
// begins with the first GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/topology/graph.h"

namespace sluice::topology {

struct HostDevices {
  std::vector<uint32_t> gpus;  // vertices, in the order of ranks
  std::vector<uint32_t> nics;  // of each GPU; kNone: there is none
};

// `graph` is finished. Without GPUs both lists are empty.
HostDevices OrderDevices(const Graph& graph, uint32_t host);

// Of a host and kind, in the order of their numbers: gpu2 before gpu10.
std::vector<uint32_t> DevicesOf(const Graph& graph, uint32_t host, VertexKind kind);

}  // namespace sluice::topology
