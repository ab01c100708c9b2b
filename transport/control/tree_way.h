// The way of a shard's pushes: straight to its owner, or through servers in forward mode (docs/topology/trees.md). Scheduler, servers and
// workers read the same way out of the same plan; nobody is told it in any other manner.
//
//   t=0  the plan has tree 1 of epoch 7: node 0 = server 3, ranks 0 to 3; node 1 = server 4, ranks 4 to 7; both forward to the owner
//   t=1  a shard of server 5 names tree 1: ranks 0 to 3 push to server 3, ranks 4 to 7 to server 4
//   t=1  a shard of server 3 names it too: ranks 0 to 3 push to server 3, which is the owner: the node falls away there
//   t=2  server 4 is lost: the plan has epoch 9 without node 1; ranks 4 to 7 push to the owner
// A push carries the stamp of its way: tree and epoch. Whoever gets one with another stamp than its plan has refuses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"

namespace sluice::control {

struct TreeWay {
  struct Node {
    uint32_t server = 0, lane = 0;
    int32_t parent = -1;              // position in nodes; -1 = the owner
    std::vector<uint32_t> ranks;      // that push to it, ascending
    std::vector<uint32_t> children;   // positions of the nodes that forward to it
    std::vector<uint32_t> covers;     // every rank below it, ascending; never empty
  };
  uint64_t stamp = 0;                 // never 0
  std::vector<Node> nodes;            // no two of one server
  std::vector<int32_t> of_rank;       // position of the node that a rank pushes to; -1 = the owner

  int32_t NodeOf(uint32_t rank) const { return rank < of_rank.size() ? of_rank[rank] : -1; }
  const Node* Find(uint32_t server) const;   // null: it is no node of this way
};

// Tree.tree and Tree.epoch, as frames carry them.
inline uint64_t TreeStamp(const proto::Tree& tree) { return uint64_t{tree.tree()} << 32 | tree.epoch(); }

// Null where all workers push to the owner: no tree, or a job that cannot have one. Of a tree that does not hold together
// (CheckTree) only the stamp is left. Nodes of the shard's owner, and of servers that do not live, fall away: what is below them
// belongs to their parent. So do ranks that the job has declared out (docs/workers.md): they push to the owner.
std::shared_ptr<const TreeWay> WayOf(const proto::Plan& plan, const proto::ShardInfo& shard);

// "" or what is wrong with a tree: a parent that does not exist, a circle, a server or rank that is named twice or unknown.
std::string CheckTree(const proto::Plan& plan, const proto::Tree& tree);

// "" or why a job of this configuration cannot have aggregation trees, for people.
std::string NoTreesBecause(const proto::JobConfig& config);

}  // namespace sluice::control
