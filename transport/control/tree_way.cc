#include "transport/control/tree_way.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace sluice::control {
namespace {

constexpr int kMaxNodes = 1 << 16;

const proto::ServerInfo* FindServer(const proto::Plan& plan, uint32_t server) {
  if (server >= static_cast<uint32_t>(plan.servers_size())) return nullptr;
  const proto::ServerInfo& info = plan.servers(static_cast<int>(server));
  return info.server() == server ? &info : nullptr;
}

bool IsOut(const proto::Plan& plan, uint32_t rank) {
  return rank < static_cast<uint32_t>(plan.workers_size()) && plan.workers(static_cast<int>(rank)).out_from_round_size() > 0;
}

// Fills in covers and drops nodes that have nobody below them.
void Finish(TreeWay* way) {
  std::vector<std::set<uint32_t>> covers(way->nodes.size());
  for (size_t i = 0; i < way->nodes.size(); ++i) {
    for (int32_t at = static_cast<int32_t>(i); at != -1; at = way->nodes[static_cast<size_t>(at)].parent) {
      covers[static_cast<size_t>(at)].insert(way->nodes[i].ranks.begin(), way->nodes[i].ranks.end());
    }
  }
  std::vector<int32_t> moved(way->nodes.size(), -1);
  std::vector<TreeWay::Node> kept;
  for (size_t i = 0; i < way->nodes.size(); ++i) {
    if (covers[i].empty()) continue;
    moved[i] = static_cast<int32_t>(kept.size());
    kept.push_back(std::move(way->nodes[i]));
    kept.back().covers.assign(covers[i].begin(), covers[i].end());
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    TreeWay::Node& node = kept[i];
    if (node.parent != -1) node.parent = moved[static_cast<size_t>(node.parent)];   // it covers what its child covers
    if (node.parent != -1) kept[static_cast<size_t>(node.parent)].children.push_back(static_cast<uint32_t>(i));
    for (const uint32_t rank : node.ranks) {
      if (rank >= way->of_rank.size()) way->of_rank.resize(rank + size_t{1}, -1);
      way->of_rank[rank] = static_cast<int32_t>(i);
    }
  }
  way->nodes = std::move(kept);
}

}  // namespace

const TreeWay::Node* TreeWay::Find(uint32_t server) const {
  const auto it = std::ranges::find(nodes, server, &Node::server);
  return it == nodes.end() ? nullptr : &*it;
}

std::string NoTreesBecause(const proto::JobConfig& config) {
  if (config.mode() != proto::MODE_BSP) return "job.mode is ssp or asp: a push is applied by itself, so there is nothing to add up";
  if (config.backup_workers() > 0) return "job.backup_workers is set: an aggregator would wait for the ranks that a round may close without";
  if (config.round_deadline_ms() > 0) return "job.round_deadline_ms is set: an aggregator would wait for the ranks that a round may close without";
  return "";
}

std::string CheckTree(const proto::Plan& plan, const proto::Tree& tree) {
  const int n = tree.nodes_size();
  if (tree.tree() == 0) return "trees are numbered from 1";
  if (n > kMaxNodes) return absl::StrCat(n, " nodes; at most ", kMaxNodes, " are possible");
  const uint32_t workers = std::max(1u, plan.config().workers());
  std::set<uint32_t> servers, ranks;
  for (int i = 0; i < n; ++i) {
    const proto::TreeNode& node = tree.nodes(i);
    if (FindServer(plan, node.server()) == nullptr) return absl::StrCat("node ", i, " is server ", node.server(), ", which the plan does not have");
    if (!servers.insert(node.server()).second) return absl::StrCat("server ", node.server(), " is two nodes");
    if (node.parent() < -1 || node.parent() >= n) return absl::StrCat("node ", i, " forwards to node ", node.parent(), ", which there is not");
    int32_t at = i;
    for (int steps = 0; at != -1; ++steps) {
      if (steps > n) return absl::StrCat("node ", i, " forwards in a circle");
      at = tree.nodes(at).parent();
      if (at < -1 || at >= n) break;   // said of that node
    }
    for (const uint32_t rank : node.ranks()) {
      if (rank >= workers) return absl::StrCat("node ", i, " has rank ", rank, " of ", workers);
      if (!ranks.insert(rank).second) return absl::StrCat("rank ", rank, " is named twice");
    }
  }
  return "";
}

std::shared_ptr<const TreeWay> WayOf(const proto::Plan& plan, const proto::ShardInfo& shard) {
  if (shard.tree() == 0 || !NoTreesBecause(plan.config()).empty()) return nullptr;
  const auto tree = std::ranges::find(plan.trees(), shard.tree(), &proto::Tree::tree);
  if (tree == plan.trees().end()) return nullptr;
  auto way = std::make_shared<TreeWay>();
  way->stamp = TreeStamp(*tree);
  if (!CheckTree(plan, *tree).empty()) return way;
  const auto serves = [&](const proto::TreeNode& node) {
    const proto::ServerInfo* info = FindServer(plan, node.server());
    return info->alive() && info->lanes_size() > 0 && node.server() != shard.server();
  };
  std::vector<int32_t> place(static_cast<size_t>(tree->nodes_size()), -1);   // in way->nodes
  for (int i = 0; i < tree->nodes_size(); ++i) {
    if (!serves(tree->nodes(i))) continue;
    place[static_cast<size_t>(i)] = static_cast<int32_t>(way->nodes.size());
    TreeWay::Node& node = way->nodes.emplace_back();
    node.server = tree->nodes(i).server();
    node.lane = shard.shard() % static_cast<uint32_t>(FindServer(plan, node.server)->lanes_size());
  }
  // The nearest node at or above it that serves, as a position in way->nodes.
  const auto above = [&](int32_t at) {
    while (at != -1 && place[static_cast<size_t>(at)] == -1) at = tree->nodes(at).parent();
    return at == -1 ? -1 : place[static_cast<size_t>(at)];
  };
  for (int i = 0; i < tree->nodes_size(); ++i) {
    const int32_t own = place[static_cast<size_t>(i)];
    if (own != -1) way->nodes[static_cast<size_t>(own)].parent = above(tree->nodes(i).parent());
    const int32_t takes = above(i);
    if (takes == -1) continue;
    for (const uint32_t rank : tree->nodes(i).ranks()) {
      if (!IsOut(plan, rank)) way->nodes[static_cast<size_t>(takes)].ranks.push_back(rank);
    }
  }
  for (TreeWay::Node& node : way->nodes) std::ranges::sort(node.ranks);
  Finish(way.get());
  return way;
}

}  // namespace sluice::control
