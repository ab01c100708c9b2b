// The network as a tree over the sites: hosts in racks in zones, and what may leave and enter each of them a second. For
// networks that are none it is a view of them: the capacity of a domain's edge is right, the ways inside are not looked at.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/topology/graph.h"

namespace sluice::placement {

struct Hierarchy {
  static constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  struct Node {
    uint32_t parent = topology::kNone;      // a smaller index; kNone: a root. Several roots: fabrics that nothing joins
    uint32_t depth = 0;                     // of a root: 0
    uint32_t site = topology::kNone;        // of a leaf
    double up = kNoLimit, down = kNoLimit;  // bytes a second that may leave it, and enter
    std::vector<uint32_t> children;
  };
  std::vector<Node> nodes;
  std::vector<uint32_t> leaf;               // node of each site

  uint32_t AddNode(uint32_t parent, double up, double down);   // kNone: a root
  uint32_t AddSite(uint32_t parent, double up, double down);   // the next site
  absl::Status Check() const;
};

// {zones, racks a zone, hosts a rack} with what leaves a zone, a rack, a host (the same enters), and one root above.
Hierarchy RegularHierarchy(const std::vector<uint32_t>& counts, const std::vector<double>& bytes_per_second);

}  // namespace sluice::placement
