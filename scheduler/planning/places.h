// Where hosts hang.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/topology/graph.h"

namespace sluice::planning {

// The switches that a host is linked to, itself or by its cards, ascending. Hosts with the same ones make a rack.
std::vector<uint32_t> SwitchesOf(const topology::Graph& graph, uint32_t host);

}  // namespace sluice::planning
