// `sluicectl topology import|show|check FILE…`: what a topology's files say, without a scheduler.
// docs/topology/formats.md
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "scheduler/topology/formats/format.h"

namespace sluice::ctl {

struct LoadedTopology {
  topology::Graph graph;                  // finished, not completed
  std::vector<topology::Report> reports;  // one a file
};

// The files of the command line, or those of topology.files, with topology.node_labels.
absl::StatusOr<LoadedTopology> LoadTopologyFiles(const std::vector<std::string>& files,
                                                 const proto::TopologyConfig& config);

// check: a line a file with its format and counts, and its warnings; then all together.
std::string RenderCheck(const LoadedTopology& loaded, double milliseconds);

// show: the graph as a tree from its highest switches down, hosts that are alike in one line. Speeds that no file says
// are filled in as the scheduler would, and marked as assumed.
std::string RenderTopology(LoadedTopology loaded, const proto::TopologyConfig& config);

// show --json and check --json: files with their warnings; vertices and links, as they were read.
std::string TopologyJson(const LoadedTopology& loaded, bool with_graph);

}  // namespace sluice::ctl
