#include "scheduler/placement/sites.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "scheduler/topology/complete.h"

namespace sluice::placement {
namespace {

class Joined {   // union-find
 public:
  explicit Joined(size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), 0u); }
  uint32_t Of(uint32_t v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }
  void Join(uint32_t a, uint32_t b) {
    a = Of(a);
    b = Of(b);
    if (a != b) parent_[std::max(a, b)] = std::min(a, b);   // the smallest vertex names the whole
  }

 private:
  std::vector<uint32_t> parent_;
};

// A domain while the tree is made from the leaves up.
struct Part {
  double up = 0, down = 0;
  uint32_t site = kNone;
  std::vector<uint32_t> children;
};

}  // namespace

std::vector<Site> SitesOf(const topology::Graph& graph, const topology::Domains& domains, const SiteRules& rules) {
  std::vector<Site> sites;
  for (const uint32_t host : graph.Hosts()) {
    const topology::Vertex& vertex = graph.vertex(host);
    if (rules.exclude.contains(vertex.name) || (!rules.only.empty() && !rules.only.contains(vertex.name))) continue;
    const auto used = rules.used_slots.find(vertex.name);
    const uint32_t slots = vertex.slots - std::min(vertex.slots, used == rules.used_slots.end() ? 0 : used->second);
    const uint32_t places = slots / std::max(1u, rules.slots_per_worker);
    if (places == 0 && rules.seats == 0) continue;
    const auto of = domains.Of(host);   // the first is the host itself
    sites.push_back({.host = host, .places = places, .seats = rules.seats, .failure_domain = of.size() > 1 ? of[1] : of.empty() ? host : of[0]});
  }
  return sites;
}

Hierarchy HierarchyOf(const topology::Graph& graph, const std::vector<Site>& sites, const fabric::Routes* routes) {
  const std::vector<uint32_t> level = topology::Levels(graph, graph.Hosts());
  uint32_t highest = 0;
  for (const uint32_t l : level)
    if (l != kNone) highest = std::max(highest, l);
  std::vector<uint32_t> links;   // of the network, with the ends as whole hosts
  for (uint32_t l = 0; l < graph.links().size(); ++l)
    if (topology::IsNetworkLink(graph, graph.link(l))) links.push_back(l);
  const auto end = [&](uint32_t vertex) { return graph.vertex(vertex).host == kNone ? vertex : graph.vertex(vertex).host; };

  std::vector<Part> parts;
  std::vector<uint32_t> top;                                        // parts that nothing holds yet
  std::vector<uint32_t> part_of(graph.vertices().size(), kNone);    // of the vertex that names a domain
  for (uint32_t s = 0; s < sites.size(); ++s) {
    part_of[sites[s].host] = static_cast<uint32_t>(parts.size());
    parts.push_back({.site = s, .children = {}});
    top.push_back(part_of[sites[s].host]);
  }
  std::vector<uint32_t> name(parts.size());                         // the vertex that each of `top` is known by
  for (uint32_t s = 0; s < sites.size(); ++s) name[s] = sites[s].host;

  Joined joined(graph.vertices().size());
  for (uint32_t tier = 0;; ++tier) {
    // What leaves each domain of this tier.
    std::vector<double> up(graph.vertices().size()), down(graph.vertices().size());
    for (const uint32_t l : links) {
      const topology::Link& link = graph.link(l);
      const uint32_t a = joined.Of(end(link.a)), b = joined.Of(end(link.b));
      if (a == b) continue;
      const double there = routes == nullptr ? link.bytes_per_second : routes->BytesPerSecond(fabric::Routes::ArcOf(l, true));
      const double back = routes == nullptr ? link.bytes_per_second : routes->BytesPerSecond(fabric::Routes::ArcOf(l, false));
      up[a] += there;
      down[b] += there;
      up[b] += back;
      down[a] += back;
    }
    for (const uint32_t p : top) {
      const uint32_t at = joined.Of(end(name[p]));
      // A domain that is alone in the one above: the narrower of both edges counts.
      const bool first = parts[p].up == 0 && parts[p].down == 0;
      const bool leaves = up[at] > 0 || down[at] > 0;
      if (first) {
        parts[p].up = leaves || tier < highest ? up[at] : Hierarchy::kNoLimit;
        parts[p].down = leaves || tier < highest ? down[at] : Hierarchy::kNoLimit;
      } else if (leaves) {
        parts[p].up = std::min(parts[p].up, up[at]);
        parts[p].down = std::min(parts[p].down, down[at]);
      }
    }
    if (tier >= highest) break;
    // Switches of the next level join.
    for (const uint32_t l : links) {
      const uint32_t a = end(graph.link(l).a), b = end(graph.link(l).b);
      if (level[a] <= tier + 1 && level[b] <= tier + 1) joined.Join(a, b);
    }
    std::vector<std::pair<uint32_t, uint32_t>> groups;   // name of the new domain, part
    for (const uint32_t p : top) groups.emplace_back(joined.Of(end(name[p])), p);
    std::stable_sort(groups.begin(), groups.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    std::vector<uint32_t> next;
    for (size_t i = 0; i < groups.size();) {
      size_t until = i;
      while (until < groups.size() && groups[until].first == groups[i].first) ++until;
      if (until - i == 1) {
        next.push_back(groups[i].second);
      } else {
        const uint32_t index = static_cast<uint32_t>(parts.size());
        Part part;
        for (size_t k = i; k < until; ++k) part.children.push_back(groups[k].second);
        parts.push_back(std::move(part));
        name.push_back(name[groups[i].second]);
        next.push_back(index);
      }
      i = until;
    }
    std::sort(next.begin(), next.end(), [&](uint32_t a, uint32_t b) { return name[a] < name[b]; });
    top = std::move(next);
  }

  Hierarchy tree;
  tree.leaf.assign(sites.size(), kNone);
  std::vector<std::pair<uint32_t, uint32_t>> stack;   // part, parent node
  for (size_t i = top.size(); i-- > 0;) stack.emplace_back(top[i], kNone);
  while (!stack.empty()) {
    const auto [p, parent] = stack.back();
    stack.pop_back();
    const Part& part = parts[p];
    const uint32_t node = tree.AddNode(parent, part.up, part.down);
    if (part.site != kNone) {
      tree.nodes[node].site = part.site;
      tree.leaf[part.site] = node;
    }
    for (size_t i = part.children.size(); i-- > 0;) stack.emplace_back(part.children[i], node);
  }
  return tree;
}

}  // namespace sluice::placement
