#include "scheduler/placement/trees.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/placement/arc_loads.h"

namespace sluice::placement {
namespace {

using topology::kNone;

constexpr size_t kMaxPairs = 4 << 20;   // hosts of workers times servers

class Trees {
 public:
  Trees(const proto::Plan& plan, const topology::Graph& graph, const topology::Domains& domains, const fabric::Routes& routes,
        const TreeRules& rules)
      : graph_(graph), domains_(domains), routes_(routes), rules_(rules) {
    for (const proto::ServerInfo& server : plan.servers()) {
      const uint32_t host = HostOf(server.host());
      if (!server.alive() || host == kNone) continue;
      host_of_server_[server.server()] = host;
      servers_on_[host].push_back(server.server());
      servers_in_[RackOf(host)].push_back(server.server());
    }
    for (const proto::WorkerInfo& worker : plan.workers()) {
      const uint32_t host = HostOf(worker.host());
      if (host == kNone || (worker.out_from_round_size() > 0 && worker.joining() == 0)) continue;
      ranks_on_[host].push_back(worker.rank());
      ++ranks_;
    }
    for (auto& [host, ranks] : ranks_on_) std::sort(ranks.begin(), ranks.end());
    for (const proto::ShardInfo& shard : plan.shards())
      if (host_of_server_.count(shard.server()) > 0) bytes_[shard.server()] += static_cast<double>(shard.bytes());
    std::erase_if(bytes_, [](const auto& owner) { return owner.second <= 0; });
  }

  bool Usable() const { return !bytes_.empty() && ranks_ > 0; }
  bool TooLarge() const { return ranks_on_.size() * bytes_.size() > kMaxPairs; }

  TreeOption Option(bool hosts, bool racks) {
    TreeOption option;
    option.name = hosts && racks ? "host and rack aggregators" : hosts ? "host aggregators" : racks ? "rack aggregators" : "none";
    std::map<std::string, uint32_t> known;   // nodes: tree
    flows_.clear();
    uint32_t turn = 0;
    for (const auto& [owner, bytes] : bytes_) {
      proto::Tree tree = TreeFor(owner, turn++, hosts, racks);
      AddFlows(owner, bytes, tree);
      if (tree.nodes().empty()) continue;
      std::string key;
      for (const proto::TreeNode& node : tree.nodes()) absl::StrAppend(&key, node.ShortDebugString(), ";");
      const auto [it, is_new] = known.emplace(std::move(key), static_cast<uint32_t>(option.trees.size()) + 1);
      if (is_new) {
        tree.set_tree(it->second);
        tree.set_why(option.name);
        option.trees.push_back(std::move(tree));
      }
      option.tree_of[owner] = it->second;
    }
    Predict(&option);
    return option;
  }

 private:
  uint32_t HostOf(const std::string& name) const {
    const uint32_t vertex = name.empty() ? kNone : graph_.Find(name);
    return vertex != kNone && graph_.vertex(vertex).kind == topology::VertexKind::kHost ? vertex : kNone;
  }
  uint32_t RackOf(uint32_t host) const {
    const auto of = domains_.Of(host);
    return of.size() > 1 ? domains_.all()[of[1]].vertex : host;
  }

  // A server that may add up for `owner`: not the owner itself.
  std::optional<uint32_t> Pick(const std::vector<uint32_t>& servers, uint32_t owner, uint32_t turn) const {
    for (size_t i = 0; i < servers.size(); ++i) {
      const uint32_t server = servers[(turn + i) % servers.size()];
      if (server != owner) return server;
    }
    return std::nullopt;
  }

  proto::Tree TreeFor(uint32_t owner, uint32_t turn, bool hosts, bool racks) const {
    proto::Tree tree;
    const uint32_t owner_host = host_of_server_.at(owner), owner_rack = RackOf(owner_host);
    std::map<uint32_t, int> node_of_rack, node_of_server;
    const auto node = [&](uint32_t server, int parent) {
      const auto [it, is_new] = node_of_server.emplace(server, tree.nodes_size());
      if (is_new) {
        proto::TreeNode* added = tree.add_nodes();
        added->set_server(server);
        added->set_parent(parent);
      }
      return it->second;
    };
    if (racks) {   // parents before children
      std::map<uint32_t, uint32_t> ranks_in;
      for (const auto& [host, ranks] : ranks_on_) ranks_in[RackOf(host)] += static_cast<uint32_t>(ranks.size());
      for (const auto& [rack, ranks] : ranks_in) {
        const auto servers = servers_in_.find(rack);
        if (rack == owner_rack || ranks < 2 || servers == servers_in_.end()) continue;
        if (const auto server = Pick(servers->second, owner, turn)) node_of_rack[rack] = node(*server, -1);
      }
    }
    for (const auto& [host, ranks] : ranks_on_) {
      const auto rack = node_of_rack.find(RackOf(host));
      int at = rack == node_of_rack.end() ? -1 : rack->second;
      const auto servers = servers_on_.find(host);
      if (hosts && host != owner_host && ranks.size() > 1 && servers != servers_on_.end())
        if (const auto server = Pick(servers->second, owner, turn)) at = node(*server, at);
      if (at < 0) continue;
      for (const uint32_t rank : ranks) tree.mutable_nodes(at)->add_ranks(rank);
    }
    for (proto::TreeNode& n : *tree.mutable_nodes()) std::sort(n.mutable_ranks()->begin(), n.mutable_ranks()->end());
    return tree;
  }

  void AddFlows(uint32_t owner, double bytes, const proto::Tree& tree) {
    const uint32_t owner_host = host_of_server_.at(owner);
    std::map<uint32_t, int> node_of_rank;
    for (int i = 0; i < tree.nodes_size(); ++i) {
      const proto::TreeNode& node = tree.nodes(i);
      for (const uint32_t rank : node.ranks()) node_of_rank[rank] = i;
      const uint32_t to = node.parent() < 0 ? owner_host : host_of_server_.at(tree.nodes(node.parent()).server());
      flows_[{host_of_server_.at(node.server()), to}] += bytes;
    }
    for (const auto& [host, ranks] : ranks_on_) {
      for (const uint32_t rank : ranks) {
        const auto it = node_of_rank.find(rank);
        flows_[{host, it == node_of_rank.end() ? owner_host : host_of_server_.at(tree.nodes(it->second).server())}] += bytes;
      }
    }
  }

  void Predict(TreeOption* option) const {
    option->arc_bytes.assign(routes_.arcs(), 0);
    bool reachable = true;
    for (const auto& [ends, bytes] : flows_) {
      if (ends.first == ends.second) continue;
      reachable &= routes_.Spread(ends.first, ends.second, [&](uint32_t arc, double share) { option->arc_bytes[arc] += rules_.push * bytes * share; });
      reachable &= routes_.Spread(ends.second, ends.first, [&](uint32_t arc, double share) { option->arc_bytes[arc] += rules_.pull * bytes * share; });
    }
    const auto busiest = BusiestOf(option->arc_bytes, routes_, 1);
    option->seconds = !reachable ? std::numeric_limits<double>::infinity() : busiest.empty() ? 0 : busiest[0].seconds;
  }

  const topology::Graph& graph_;
  const topology::Domains& domains_;
  const fabric::Routes& routes_;
  const TreeRules& rules_;
  std::map<uint32_t, uint32_t> host_of_server_;
  std::map<uint32_t, std::vector<uint32_t>> servers_on_, servers_in_, ranks_on_;
  std::map<uint32_t, double> bytes_;                        // of each owner
  std::map<std::pair<uint32_t, uint32_t>, double> flows_;   // pushes from host to host
  size_t ranks_ = 0;
};

}  // namespace

TreeChoice ChooseTrees(const proto::Plan& plan, const topology::Graph& graph, const topology::Domains& domains,
                       const fabric::Routes& routes, const TreeRules& rules) {
  TreeChoice out;
  Trees trees(plan, graph, domains, routes, rules);
  if (!trees.Usable()) {
    out.options.push_back({.name = "none", .trees = {}, .tree_of = {}, .seconds = 0, .arc_bytes = {}});
  } else if (trees.TooLarge()) {
    out.options.push_back({.name = "none", .trees = {}, .tree_of = {}, .seconds = 0, .arc_bytes = {}});
    out.notes.push_back("aggregation trees were not weighed: there are too many pairs of hosts and servers");
  } else {
    for (const auto& [hosts, racks] : {std::pair(false, false), std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
      if (rules.trees == "off" && (hosts || racks)) continue;
      TreeOption option = trees.Option(hosts, racks);
      const bool is_new = std::none_of(out.options.begin(), out.options.end(), [&](const TreeOption& other) {
        return other.trees.size() == option.trees.size() &&
               std::equal(other.trees.begin(), other.trees.end(), option.trees.begin(), [](const proto::Tree& a, const proto::Tree& b) {
                 return a.nodes_size() == b.nodes_size() &&
                        std::equal(a.nodes().begin(), a.nodes().end(), b.nodes().begin(), [](const auto& x, const auto& y) {
                          return x.SerializeAsString() == y.SerializeAsString();
                        });
               });
      });
      if (is_new) out.options.push_back(std::move(option));
    }
  }
  // Fewer aggregators are better where times are alike.
  std::stable_sort(out.options.begin(), out.options.end(),
                   [](const TreeOption& a, const TreeOption& b) { return a.seconds < b.seconds * (1 - 1e-9); });
  const auto none = std::find_if(out.options.begin(), out.options.end(), [](const TreeOption& o) { return o.trees.empty(); });
  if (rules.trees == "on") {
    const auto any = std::find_if(out.options.begin(), out.options.end(), [](const TreeOption& o) { return !o.trees.empty(); });
    if (any != out.options.end()) out.chosen = static_cast<size_t>(any - out.options.begin());
  } else if (none != out.options.end() && out.options[0].seconds >= none->seconds * (1 - rules.gain)) {
    out.chosen = static_cast<size_t>(none - out.options.begin());
  }
  out.choice.set_what("aggregation trees");
  out.choice.set_chosen(out.options[out.chosen].name);
  out.choice.set_why(rules.trees == "off"  ? "topology.trees is off"
                     : rules.trees == "on" ? "topology.trees is on"
                     : out.options.size() < 2
                         ? "there are no other: an aggregator needs a server on a host, or in a rack, with two workers or more"
                         : absl::StrFormat("the least time of the most loaded link; a tree must be faster by %.0f %%", 100 * rules.gain));
  for (const TreeOption& option : out.options) {
    proto::Option* added = out.choice.add_options();
    added->set_name(option.name);
    added->set_step_ms(1e3 * (rules.compute_s + option.seconds));
    if (!option.trees.empty()) {
      int nodes = 0;
      for (const proto::Tree& tree : option.trees) nodes += tree.nodes_size();
      added->set_note(absl::StrCat(option.trees.size(), " trees, ", nodes, " aggregators"));
    }
  }
  return out;
}

}  // namespace sluice::placement
