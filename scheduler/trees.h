// Aggregation trees in the plan (docs/topology/trees.md). Pure functions of it; which trees serve a network is for others to choose.
//
// An epoch is the version of the plan that brings it (or one more than the epoch before): it rises with each change of a tree and
// never beyond the plan's version, so no two trees of a job ever have the same number and epoch.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "proto/plan.pb.h"

namespace sluice::scheduler {

struct TreeChoice {
  std::vector<proto::Tree> trees;               // numbers, nodes, why; epochs are set by ApplyTrees
  std::map<uint32_t, uint32_t> tree_of_shard;   // shards that are not named here have none
};

// Puts these trees in the place of those that the plan has. A tree that is the same as before keeps its epoch. INVALID_ARGUMENT
// (what does not hold together), FAILED_PRECONDITION (why this job cannot have trees): nothing has changed then.
absl::Status ApplyTrees(const TreeChoice& choice, uint64_t version, proto::Plan* plan);

// Takes out of the trees what the plan does not have any more: nodes of servers that do not live, whose ranks and children go to
// the node's parent or the owner, and ranks that are out (docs/workers.md), which push to the owner. A tree that has changed gets
// the next epoch, and says why. True if one has. With every commit of a plan.
bool PruneTrees(proto::Plan* plan);

// One level: each host on which two workers or more run beside a server has that server (its first, if there are several) as their
// aggregator, for all shards. The tree has no nodes, and says why, where there is no such host.
TreeChoice RackTrees(const proto::Plan& plan);

}  // namespace sluice::scheduler
