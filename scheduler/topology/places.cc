#include "scheduler/topology/places.h"

#include <set>

namespace sluice::topology {

std::vector<uint32_t> SwitchesOf(const Graph& graph, uint32_t host) {
  std::set<uint32_t> switches, seen = {host};
  std::vector<uint32_t> stack = {host};   // the host, its cards and bridges
  while (!stack.empty()) {
    const uint32_t at = stack.back();
    stack.pop_back();
    for (const Graph::Half& half : graph.Incident(at)) {
      const Vertex& next = graph.vertex(half.to);
      if (next.kind == VertexKind::kSwitch) switches.insert(half.to);
      else if (next.host == host && seen.insert(half.to).second) stack.push_back(half.to);
    }
  }
  return {switches.begin(), switches.end()};
}

}  // namespace sluice::topology
