// Topology files from the disk (format.h reads texts).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/topology/formats/format.h"

namespace sluice::topology {

// Each of `specs` is "[HOSTS=]FILE[#CHOICE]"; FILE "-" is the standard input. NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED (more than kMaxTextBytes in all) name
// the file; else as ReadAll. `reports` may be null.
absl::StatusOr<Graph> ReadFiles(const std::vector<std::string>& specs, const ReadOptions& options, std::vector<Report>* reports);

}  // namespace sluice::topology
