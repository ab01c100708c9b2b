#include "scheduler/trees.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "transport/control/tree_way.h"

namespace sluice::scheduler {
namespace {

bool SameNodes(const proto::Tree& a, const proto::Tree& b) {
  return std::ranges::equal(a.nodes(), b.nodes(), [](const proto::TreeNode& x, const proto::TreeNode& y) {
    return x.server() == y.server() && x.parent() == y.parent() && std::ranges::equal(x.ranks(), y.ranks());
  });
}

bool Lives(const proto::Plan& plan, uint32_t server) {
  return server < static_cast<uint32_t>(plan.servers_size()) && plan.servers(static_cast<int>(server)).alive();
}

bool IsOut(const proto::Plan& plan, uint32_t rank) {
  return rank < static_cast<uint32_t>(plan.workers_size()) && plan.workers(static_cast<int>(rank)).out_from_round_size() > 0;
}

void SortRanks(proto::TreeNode* node) { std::sort(node->mutable_ranks()->begin(), node->mutable_ranks()->end()); }

// "" if there was nothing to take out.
std::string Prune(const proto::Plan& plan, proto::Tree* tree) {
  std::vector<std::string> lost, out;
  const int n = tree->nodes_size();
  std::vector<int32_t> place(static_cast<size_t>(n), -1);   // of those that stay
  int32_t kept = 0;
  for (int i = 0; i < n; ++i) {
    if (Lives(plan, tree->nodes(i).server())) place[static_cast<size_t>(i)] = kept++;
  }
  const auto above = [&](int32_t at) {   // the nearest that stays, at or above it
    for (int steps = 0; at >= 0 && at < n && steps <= n && place[static_cast<size_t>(at)] == -1; ++steps) at = tree->nodes(at).parent();
    return at < 0 || at >= n ? -1 : place[static_cast<size_t>(at)];
  };
  proto::Tree pruned = *tree;
  pruned.clear_nodes();
  for (int i = 0; i < n; ++i) {
    if (place[static_cast<size_t>(i)] == -1) {
      lost.push_back(Lives(plan, tree->nodes(i).server()) || tree->nodes(i).server() >= static_cast<uint32_t>(plan.servers_size())
                         ? absl::StrCat(tree->nodes(i).server())
                         : plan.servers(static_cast<int>(tree->nodes(i).server())).id());
      continue;
    }
    proto::TreeNode* node = pruned.add_nodes();
    node->set_server(tree->nodes(i).server());
    node->set_parent(above(tree->nodes(i).parent()));
  }
  for (int i = 0; i < n; ++i) {
    const int32_t takes = above(i);
    for (const uint32_t rank : tree->nodes(i).ranks()) {
      if (IsOut(plan, rank)) {
        out.push_back(absl::StrCat(rank));
      } else if (takes != -1) {
        pruned.mutable_nodes(takes)->add_ranks(rank);
      }
    }
  }
  if (lost.empty() && out.empty()) return "";
  for (proto::TreeNode& node : *pruned.mutable_nodes()) SortRanks(&node);
  *tree = std::move(pruned);
  std::string why;
  if (!lost.empty()) absl::StrAppend(&why, "without server ", absl::StrJoin(lost, ", "), ", which was lost");
  if (!out.empty()) absl::StrAppend(&why, why.empty() ? "" : "; ", "without rank ", absl::StrJoin(out, ", "), ", which is out");
  return why;
}

}  // namespace

absl::Status ApplyTrees(const TreeChoice& choice, uint64_t version, proto::Plan* plan) {
  const std::string refused = control::NoTreesBecause(plan->config());
  const bool wanted = std::ranges::any_of(choice.trees, [](const proto::Tree& tree) { return tree.nodes_size() > 0; });
  if (!refused.empty() && wanted) return absl::FailedPreconditionError(absl::StrCat("no aggregation trees: ", refused));
  std::set<uint32_t> numbers;
  for (const proto::Tree& tree : choice.trees) {
    if (const std::string wrong = control::CheckTree(*plan, tree); !wrong.empty())
      return absl::InvalidArgumentError(absl::StrCat("aggregation tree ", tree.tree(), ": ", wrong));
    if (!numbers.insert(tree.tree()).second) return absl::InvalidArgumentError(absl::StrCat("there are two aggregation trees ", tree.tree()));
  }
  for (const auto& [shard, tree] : choice.tree_of_shard) {
    if (shard >= static_cast<uint32_t>(plan->shards_size()) || (tree != 0 && !numbers.contains(tree)))
      return absl::InvalidArgumentError(absl::StrCat("shard ", shard, " is to use aggregation tree ", tree, ": there is no such shard or tree"));
  }
  std::vector<proto::Tree> next = choice.trees;
  for (proto::Tree& tree : next) {
    for (proto::TreeNode& node : *tree.mutable_nodes()) SortRanks(&node);
    const auto before = std::ranges::find(plan->trees(), tree.tree(), &proto::Tree::tree);
    const bool same = before != plan->trees().end() && SameNodes(*before, tree);
    tree.set_epoch(same ? before->epoch() : static_cast<uint32_t>(version));
  }
  plan->clear_trees();
  for (proto::Tree& tree : next) *plan->add_trees() = std::move(tree);
  for (proto::ShardInfo& shard : *plan->mutable_shards()) {
    const auto it = choice.tree_of_shard.find(shard.shard());
    shard.set_tree(it == choice.tree_of_shard.end() ? 0 : it->second);
  }
  return absl::OkStatus();
}

bool PruneTrees(proto::Plan* plan) {
  bool changed = false;
  for (proto::Tree& tree : *plan->mutable_trees()) {
    const std::string why = Prune(*plan, &tree);
    if (why.empty()) continue;
    tree.set_epoch(tree.epoch() + 1);
    tree.set_why(why);
    changed = true;
  }
  return changed;
}

TreeChoice RackTrees(const proto::Plan& plan) {
  TreeChoice choice;
  proto::Tree& tree = choice.trees.emplace_back();
  tree.set_tree(1);
  tree.set_why(control::NoTreesBecause(plan.config()));
  if (!tree.why().empty()) return choice;
  std::map<std::string, std::vector<uint32_t>> ranks;   // by host
  for (const proto::WorkerInfo& worker : plan.workers()) {
    if (!worker.host().empty() && worker.out_from_round_size() == 0) ranks[worker.host()].push_back(worker.rank());
  }
  std::set<std::string> taken;
  for (const proto::ServerInfo& server : plan.servers()) {
    const auto host = ranks.find(server.host());
    if (!server.alive() || host == ranks.end() || host->second.size() < 2 || !taken.insert(server.host()).second) continue;
    proto::TreeNode* node = tree.add_nodes();
    node->set_server(server.server());
    node->set_parent(-1);
    node->mutable_ranks()->Assign(host->second.begin(), host->second.end());
    SortRanks(node);
  }
  if (tree.nodes_size() == 0) {
    tree.set_why("no host has a server beside two workers or more");
    return choice;
  }
  tree.set_why("the workers of a host push to the server that runs there (topology.trees=on)");
  for (const proto::ShardInfo& shard : plan.shards()) choice.tree_of_shard[shard.shard()] = 1;
  return choice;
}

}  // namespace sluice::scheduler
