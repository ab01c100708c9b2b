#include "scheduler/topology/formats/tier_speeds.h"

#include <algorithm>

#include "scheduler/topology/complete.h"

namespace sluice::topology {

std::vector<uint32_t> LinkTiers(const Graph& graph) {
  const std::vector<uint32_t> level = Levels(graph, graph.Hosts());
  std::vector<uint32_t> tiers;
  tiers.reserve(graph.links().size());
  for (const Link& link : graph.links()) {
    const uint32_t a = level[link.a], b = level[link.b];
    const bool inside = graph.vertex(link.a).host != kNone && graph.vertex(link.a).host == graph.vertex(link.b).host;
    if (inside || a == kNone || b == kNone)
      tiers.push_back(0);
    else
      tiers.push_back(a == b ? a + 1 : std::max(a, b));
  }
  return tiers;
}

void FillTiers(const std::vector<TierSpeed>& tiers, Graph* graph) {
  if (tiers.empty()) return;
  const std::vector<uint32_t> of_link = LinkTiers(*graph);
  for (uint32_t l = 0; l < of_link.size(); ++l) {
    Link& link = graph->link(l);
    for (auto speed = tiers.rbegin(); speed != tiers.rend(); ++speed) {
      if (speed->tier != of_link[l]) continue;
      if (link.bytes_per_second == 0 && speed->bytes_per_second > 0) {
        link.bytes_per_second = speed->bytes_per_second * link.cables;
        link.source = Source::kFile;
      }
      if (link.latency_s == 0) link.latency_s = speed->latency_s;
      break;
    }
  }
}

}  // namespace sluice::topology
