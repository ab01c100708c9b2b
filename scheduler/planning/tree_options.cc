#include "scheduler/planning/tree_options.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/planning/plan_step.h"
#include "scheduler/topology/places.h"
#include "transport/control/tree_way.h"

namespace sluice::planning {
namespace {

using scheduler::TreeChoice;

// Who is where: racks are what the second tier of the plan says of workers; a server is in the rack of the workers that it is
// nearest to, if it is under one switch with them.
struct Places {
  std::map<std::string, std::vector<uint32_t>> ranks_of_host;
  std::map<std::string, std::vector<uint32_t>> servers_of_host;
  std::vector<std::vector<uint32_t>> ranks_of_rack, servers_of_rack;
  std::vector<uint32_t> rack_of_rank, rack_of_server;      // kNone: of none
};

constexpr uint32_t kNone = topology::kNone;
constexpr double kSame = 1e-3;      // predictions so near each other are equal

bool Counts(const proto::WorkerInfo& worker) { return !worker.finished() && worker.out_from_round_size() == 0; }

Places FindPlaces(const proto::Plan& plan, const network::View& network) {
  Places places;
  places.rack_of_rank.assign(static_cast<size_t>(plan.workers_size()), kNone);
  places.rack_of_server.assign(static_cast<size_t>(plan.servers_size()), kNone);
  // Hosts that hang on the same switches make a rack: what a narrow link leads out of is found by comparing, not here.
  std::map<std::vector<uint32_t>, uint32_t> racks;         // by the switches of a host
  std::unordered_map<uint32_t, uint32_t> known;            // of each host
  const auto rack_of = [&](const std::string& name) -> uint32_t {
    const uint32_t host = network.Host(name);
    if (host == kNone) return kNone;
    const auto [it, is_new] = known.emplace(host, kNone);
    if (is_new) it->second = racks.emplace(topology::SwitchesOf(network.graph(), host), static_cast<uint32_t>(racks.size())).first->second;
    return it->second;
  };
  for (const proto::WorkerInfo& worker : plan.workers()) {
    if (!Counts(worker) || network.Host(worker.host()) == kNone) continue;
    places.ranks_of_host[worker.host()].push_back(worker.rank());
    places.rack_of_rank[worker.rank()] = rack_of(worker.host());
  }
  for (const proto::ServerInfo& server : plan.servers()) {
    if (!server.alive() || network.Host(server.host()) == kNone) continue;
    places.servers_of_host[server.host()].push_back(server.server());
    places.rack_of_server[server.server()] = rack_of(server.host());
  }
  places.ranks_of_rack.resize(racks.size());
  places.servers_of_rack.resize(racks.size());
  for (uint32_t rank = 0; rank < places.rack_of_rank.size(); ++rank)
    if (places.rack_of_rank[rank] != kNone) places.ranks_of_rack[places.rack_of_rank[rank]].push_back(rank);
  for (uint32_t server = 0; server < places.rack_of_server.size(); ++server)
    if (places.rack_of_server[server] != kNone) places.servers_of_rack[places.rack_of_server[server]].push_back(server);
  return places;
}

// One tree for each rack of owners and each slot: slot k uses the k-th server of every other rack.
TreeChoice Build(const proto::Plan& plan, const Places& places, bool hosts, bool racks) {
  TreeChoice choice;
  size_t slots = 1;
  if (racks)
    for (const auto& servers : places.servers_of_rack) slots = std::max(slots, servers.size());
  const size_t most = std::clamp<size_t>(kMaxTreeRanks / std::max(1, plan.workers_size()), 1, kMaxTrees);
  while (slots > 1 && slots * places.servers_of_rack.size() > most) --slots;
  std::map<std::pair<uint32_t, size_t>, uint32_t> numbers;   // owner's rack (kNone without racks), slot -> Tree.tree
  for (const proto::ShardInfo& shard : plan.shards()) {
    const uint32_t home = racks && shard.server() < places.rack_of_server.size() ? places.rack_of_server[shard.server()] : kNone;
    const size_t slot = racks ? shard.shard() % slots : 0;
    const auto [known, is_new] = numbers.emplace(std::pair(home, slot), static_cast<uint32_t>(numbers.size() + 1));
    if (is_new && choice.trees.size() >= most) {
      numbers.erase(known);
      continue;
    }
    choice.tree_of_shard[shard.shard()] = known->second;
    if (!is_new) continue;
    proto::Tree& tree = choice.trees.emplace_back();
    tree.set_tree(known->second);
    std::map<uint32_t, int32_t> node_of_rack;
    std::set<uint32_t> used;                                 // servers that are a node already
    if (racks) {
      for (uint32_t rack = 0; rack < places.servers_of_rack.size(); ++rack) {
        const auto& servers = places.servers_of_rack[rack];
        if (rack == home || servers.empty() || places.ranks_of_rack[rack].size() < 2) continue;
        proto::TreeNode* node = tree.add_nodes();
        node->set_server(servers[slot % servers.size()]);
        node->set_parent(-1);
        used.insert(node->server());
        node_of_rack[rack] = tree.nodes_size() - 1;
      }
    }
    std::set<uint32_t> taken;
    if (hosts) {
      for (const auto& [host, ranks] : places.ranks_of_host) {
        const auto servers = places.servers_of_host.find(host);
        if (ranks.size() < 2 || servers == places.servers_of_host.end()) continue;
        const auto rack = node_of_rack.find(places.rack_of_rank[ranks[0]]);
        const auto free = std::ranges::find_if(servers->second, [&](uint32_t s) { return used.count(s) == 0; });
        if (free == servers->second.end()) continue;         // its server adds up the rack: ranks push to it anyway
        used.insert(*free);
        proto::TreeNode* node = tree.add_nodes();
        node->set_server(*free);
        node->set_parent(rack == node_of_rack.end() ? -1 : rack->second);
        node->mutable_ranks()->Assign(ranks.begin(), ranks.end());
        taken.insert(ranks.begin(), ranks.end());
      }
    }
    for (const auto& [rack, node] : node_of_rack)
      for (const uint32_t rank : places.ranks_of_rack[rack])
        if (taken.count(rank) == 0) tree.mutable_nodes(node)->add_ranks(rank);
  }
  return choice;
}

size_t Aggregators(const TreeChoice& choice) {
  std::set<uint32_t> servers;
  for (const proto::Tree& tree : choice.trees)
    for (const proto::TreeNode& node : tree.nodes()) servers.insert(node.server());
  return servers.size();
}

}  // namespace

bool TreeOption::HasNodes() const {
  return std::ranges::any_of(choice.trees, [](const proto::Tree& tree) { return tree.nodes_size() > 0; });
}

scheduler::TreeChoice WithReason(const TreeOption& option, double instead_s) {
  const auto ms = [](double seconds) { return std::isfinite(seconds) ? absl::StrFormat("%.1f ms", 1e3 * seconds) : "unknown"; };
  scheduler::TreeChoice choice = option.choice;
  for (proto::Tree& tree : choice.trees)
    tree.set_why(absl::StrCat(option.name, ": predicted step ", ms(option.step_s), " instead of ", ms(instead_s)));
  return choice;
}

proto::Plan WithTrees(const proto::Plan& plan, const TreeChoice& choice) {
  proto::Plan with = plan;
  with.clear_trees();
  for (const proto::Tree& tree : choice.trees) *with.add_trees() = tree;
  for (proto::ShardInfo& shard : *with.mutable_shards()) {
    const auto it = choice.tree_of_shard.find(shard.shard());
    shard.set_tree(it == choice.tree_of_shard.end() ? 0 : it->second);
  }
  return with;
}

std::vector<TreeOption> TreeOptions(const proto::Plan& plan, const network::View& network, std::string* why_not, const StepRules& rules) {
  *why_not = control::NoTreesBecause(plan.config());
  std::vector<TreeOption> options;
  options.push_back({.name = "none", .choice = {}, .step_s = 0, .note = "every rank pushes to the owner"});
  if (why_not->empty()) {
    const Places places = FindPlaces(plan, network);
    for (const auto& [name, hosts, racks] : {std::tuple{"hosts", true, false}, {"racks", false, true}, {"hosts and racks", true, true}}) {
      TreeChoice choice = Build(plan, places, hosts, racks);
      const bool both = std::ranges::any_of(choice.trees, [](const proto::Tree& tree) {
        return std::ranges::any_of(tree.nodes(), [](const proto::TreeNode& node) { return node.parent() >= 0; });
      });
      if (hosts && racks && !both) continue;
      TreeOption option{.name = name, .choice = std::move(choice), .step_s = 0, .note = ""};
      if (!option.HasNodes()) continue;
      const size_t aggregators = Aggregators(option.choice);
      option.note = absl::StrCat(aggregators, aggregators == 1 ? " server adds up" : " servers add up", " on the way");
      options.push_back(std::move(option));
    }
  }
  for (TreeOption& option : options) option.step_s = PredictStep(WithTrees(plan, option.choice), network, rules);
  // They stand in order of levels: of those that are as good as the best the first one goes to the front.
  const double best = std::ranges::min(options, {}, &TreeOption::step_s).step_s;
  const auto first = std::ranges::find_if(options, [&](const TreeOption& o) { return o.step_s <= best * (1 + kSame) || !std::isfinite(best); });
  std::rotate(options.begin(), first, first + 1);
  std::ranges::stable_sort(options.begin() + 1, options.end(), {}, &TreeOption::step_s);
  return options;
}

size_t PickTrees(const std::vector<TreeOption>& options, const std::string& mode) {
  const auto none = std::ranges::find(options, "none", &TreeOption::name);
  if (mode == "on") {
    const auto any = std::ranges::find_if(options, [](const TreeOption& option) { return option.HasNodes(); });
    return static_cast<size_t>((any == options.end() ? none : any) - options.begin());
  }
  if (mode == "auto" && options[0].step_s < (1 - kTreesGain) * none->step_s) return 0;
  return static_cast<size_t>(none - options.begin());
}

}  // namespace sluice::planning
