// Writes a graph in our own format (plain.cc): what is read from it is the same graph, with vertices and links in their
// order.
#pragma once

#include <string>

#include "scheduler/topology/graph.h"

namespace sluice::topology {

std::string WritePlain(const Graph& graph);

}  // namespace sluice::topology
