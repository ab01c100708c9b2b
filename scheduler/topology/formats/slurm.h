// What Slurm's topology.conf and topology.yaml both say, and the graph that it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/topology/formats/reading.h"

namespace sluice::topology::slurm {

// A line of a tree: a switch with nodes below it, or with switches. Lists are hostlists; "" = not given.
struct Switch {
  size_t line = 0;
  std::string name, nodes, children;
};

// A block (nodes with the best links among each other) or a ring.
struct Group {
  size_t line = 0;
  std::string name, nodes;
};

struct Torus {
  struct Dims {
    uint32_t x = 0, y = 0, z = 0;
  };
  struct Region {
    size_t line = 0;
    Dims anchor, dims;
    std::string nodes;
  };
  size_t line = 0;
  std::string name, nodes;  // either nodes or regions
  Dims dims;
  std::vector<Region> regions;
};

// Slurm's rules: a name once; nodes or switches, not both; children that are there, each with one parent; no cycle.
// Several roots are allowed and stay apart. A node below two switches is kept, with a warning.
absl::Status AddTree(const std::vector<Switch>& switches, Reading* reading);

// A block is a switch. `sizes` (BlockSizes) beyond the first join blocks that follow each other: "b1..b4" above b1 to
// b4.
absl::Status AddBlocks(const std::vector<Group>& blocks, const std::vector<uint32_t>& sizes, size_t sizes_line,
                       Reading* reading);

// Each node hangs on a switch of its own, "RING.3", and these are linked round.
absl::Status AddRings(const std::vector<Group>& rings, Reading* reading);

// The same in three dimensions: "TORUS.x.y.z". Nodes are counted along x first, as Slurm does.
absl::Status AddToruses(const std::vector<Torus>& toruses, Reading* reading);

}  // namespace sluice::topology::slurm
