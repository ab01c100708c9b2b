// Topology files from disk: the one part of this folder that does I/O, for shells of daemons and for sluicectl.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/topology/formats/format.h"

namespace sluice::topology {

struct LoadedTopology {
  Graph graph;                    // finished, not completed
  std::vector<Report> reports;    // one a file
};

// `specs`: "[HOSTS=]FILE[#CHOICE]" each; FILE "-" is the standard input. NOT_FOUND and the like: a file cannot be read; else as
// ReadAll.
absl::StatusOr<LoadedTopology> LoadTopology(const std::vector<std::string>& specs, const ReadOptions& options);

}  // namespace sluice::topology
