// Cuts a graph into parts of given sizes with little weight between them: METIS's recursive bisection, made exact.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::placement {

struct WeightedGraph {
  std::vector<uint32_t> first;      // of each vertex in `to`; one more at the end
  std::vector<uint32_t> to;         // both directions of each edge
  std::vector<double> weight;
};

// The part of each vertex; part i gets sizes[i] vertices. The sizes add up to the number of vertices. Deterministic.
std::vector<uint32_t> CutIntoParts(const WeightedGraph& graph, const std::vector<uint32_t>& sizes, uint64_t seed);

}  // namespace sluice::placement
