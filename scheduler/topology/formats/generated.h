// The words of a `generate` line, for the generators of scheduler/topology/generate.h:
//
//   fat-tree     k=8
//   spine-leaf   leaves=16 spines=4 hosts=16 ratio=2           hosts: of a leaf; ratio: bandwidth below over above
//   rails        groups=4 hosts=32 rails=8 spines=8 ratio=1    hosts: of a group
//   zones        zones=2 spines=4 cores=4 leaves=8 hosts=16 leaf_ratio=1 ratio=7
//   torus        dims=8x8x4 hosts=1 ring=50Gb/s                hosts: of a switch
//   hypercube    dims=6 hosts=1
//   dragonfly    routers=4 global=2 hosts=2 group=50Gb/s far=25Gb/s
//
// For each: slots=8 (ranks a host), link=100Gb/s (of a host), latency=1us (of a link). What is not given is as in
// generate.h.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/topology/graph.h"

namespace sluice::topology {

absl::StatusOr<Graph> GenerateByWords(const std::vector<std::string>& words);

}  // namespace sluice::topology
