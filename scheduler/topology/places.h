// Where hosts hang.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/topology/graph.h"

namespace sluice::topology {

// The switches that a host is linked to, itself or by its cards, ascending. Hosts with the same ones make a rack.
std::vector<uint32_t> SwitchesOf(const Graph& graph, uint32_t host);

}  // namespace sluice::topology
