// Speeds by tier, for links of which no file says it.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/topology/formats/reading.h"
#include "scheduler/topology/graph.h"

namespace sluice::topology {

// The tier of each link: 1 between hosts (or their NICs) and switches, 2 between those switches and the next, and so
// on: by its end that is farther from hosts; between switches that are equally far, one more than that. 0: inside a
// host, or no host can be reached. `graph` is finished.
std::vector<uint32_t> LinkTiers(const Graph& graph);

// The last of `tiers` that names a tier counts.
void FillTiers(const std::vector<TierSpeed>& tiers, Graph* graph);

}  // namespace sluice::topology
