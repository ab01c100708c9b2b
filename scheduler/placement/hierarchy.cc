#include "scheduler/placement/hierarchy.h"

namespace sluice::placement {

uint32_t Hierarchy::AddNode(uint32_t parent, double up, double down) {
  const uint32_t index = static_cast<uint32_t>(nodes.size());
  Node node;
  node.parent = parent;
  node.up = up;
  node.down = down;
  if (parent != topology::kNone) {
    node.depth = nodes[parent].depth + 1;
    nodes[parent].children.push_back(index);
  }
  nodes.push_back(std::move(node));
  return index;
}

uint32_t Hierarchy::AddSite(uint32_t parent, double up, double down) {
  const uint32_t index = AddNode(parent, up, down);
  nodes[index].site = static_cast<uint32_t>(leaf.size());
  leaf.push_back(index);
  return index;
}

absl::Status Hierarchy::Check() const {
  for (uint32_t n = 0; n < nodes.size(); ++n) {
    const Node& node = nodes[n];
    if (node.parent != topology::kNone && (node.parent >= n || nodes[node.parent].depth + 1 != node.depth))
      return absl::InternalError("a hierarchy that is no tree");
    if (node.site != topology::kNone && (!node.children.empty() || node.site >= leaf.size() || leaf[node.site] != n))
      return absl::InternalError("a hierarchy whose sites are not its leaves");
    if (!(node.up >= 0) || !(node.down >= 0)) return absl::InternalError("a domain with an impossible bandwidth");
  }
  for (const uint32_t n : leaf)
    if (n >= nodes.size()) return absl::InternalError("a site of no domain");
  return absl::OkStatus();
}

Hierarchy RegularHierarchy(const std::vector<uint32_t>& counts, const std::vector<double>& bytes_per_second) {
  Hierarchy tree;
  std::vector<uint32_t> level{tree.AddNode(topology::kNone, Hierarchy::kNoLimit, Hierarchy::kNoLimit)};
  for (size_t l = 0; l < counts.size(); ++l) {
    const double bps = l < bytes_per_second.size() ? bytes_per_second[l] : Hierarchy::kNoLimit;
    std::vector<uint32_t> next;
    for (const uint32_t parent : level)
      for (uint32_t i = 0; i < counts[l]; ++i)
        next.push_back(l + 1 == counts.size() ? tree.AddSite(parent, bps, bps) : tree.AddNode(parent, bps, bps));
    level = std::move(next);
  }
  return tree;
}

}  // namespace sluice::placement
