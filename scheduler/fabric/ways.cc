#include "scheduler/fabric/ways.h"

#include <algorithm>
#include <functional>
#include <map>

namespace sluice::fabric {
namespace {

using topology::Graph;
using topology::kNone;
using topology::VertexKind;

struct Arc {
  uint32_t arc = 0, head = 0;
  double share = 0;
};

uint32_t Tail(const Graph& graph, uint32_t arc) { return arc % 2 == 0 ? graph.link(arc / 2).a : graph.link(arc / 2).b; }
uint32_t Head(const Graph& graph, uint32_t arc) { return arc % 2 == 0 ? graph.link(arc / 2).b : graph.link(arc / 2).a; }

bool IsShown(const Graph& graph, uint32_t vertex) {
  const VertexKind kind = graph.vertex(vertex).kind;
  return kind == VertexKind::kSwitch || kind == VertexKind::kNic;
}

void Narrower(const Routes& routes, uint32_t arc, uint32_t* narrowest) {
  if (*narrowest == kNone || routes.BytesPerSecond(arc) < routes.BytesPerSecond(*narrowest)) *narrowest = arc;
}

using Arcs = std::map<uint32_t, std::vector<Arc>>;   // out of each vertex

// All ways from `at` on as one: what could be at each distance.
void AddRest(const Graph& graph, const Routes& routes, uint32_t at, uint32_t to, const Arcs& out, HostWay* way) {
  for (std::vector<uint32_t> level = {at}; !level.empty() && level[0] != to;) {
    std::vector<uint32_t> next;
    for (const uint32_t v : level)
      for (const Arc& arc : out.at(v)) {
        Narrower(routes, arc.arc, &way->narrowest);
        next.push_back(arc.head);
      }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    if (IsShown(graph, next[0])) way->via.push_back({next[0], static_cast<uint32_t>(next.size())});
    level = std::move(next);
  }
}

// One for each card or switch that comes first, with all that it leads to as one.
std::vector<HostWay> ByFirstStops(const Graph& graph, const Routes& routes, uint32_t from, uint32_t to, const Arcs& out) {
  std::map<uint32_t, HostWay> ways;
  const std::function<void(uint32_t, uint32_t)> walk = [&](uint32_t at, uint32_t narrowest) {
    for (const Arc& arc : out.at(at)) {
      uint32_t here = narrowest;
      Narrower(routes, arc.arc, &here);
      if (!IsShown(graph, arc.head) && arc.head != to) {
        walk(arc.head, here);
        continue;
      }
      HostWay& way = ways[arc.head];
      if (way.via.empty() && arc.head != to) way.via.push_back({.vertex = arc.head});
      way.share += arc.share;
      if (way.narrowest == kNone || routes.BytesPerSecond(here) < routes.BytesPerSecond(way.narrowest)) way.narrowest = here;
    }
  };
  walk(from, kNone);
  std::vector<HostWay> list;
  if (ways.size() > kMaxWays) {
    AddRest(graph, routes, from, to, out, &list.emplace_back());
    list[0].share = 1;
    return list;
  }
  for (auto& [first, way] : ways) {
    AddRest(graph, routes, first, to, out, &way);
    list.push_back(std::move(way));
  }
  return list;
}

}  // namespace

uint64_t CountWays(const Graph& graph, const Routes& routes, uint32_t from, uint32_t to, uint32_t* narrowest) {
  *narrowest = kNone;
  if (from == to) return 0;
  constexpr uint64_t kMost = uint64_t{1} << 32;
  // Arcs come in order of their distance from the sender: a vertex is done when its turn comes. Ways are short, so a list will do.
  std::vector<std::pair<uint32_t, uint64_t>> ways = {{from, 1}, {to, 0}};
  const auto of = [&](uint32_t vertex) -> uint64_t& {
    for (auto it = ways.rbegin(); it != ways.rend(); ++it)
      if (it->first == vertex) return it->second;
    return ways.emplace_back(vertex, 0).second;
  };
  const bool found = routes.Spread(from, to, [&](uint32_t arc, double) {
    const uint64_t here = of(Tail(graph, arc));
    uint64_t& there = of(Head(graph, arc));
    there = std::min(kMost, there + here);
    Narrower(routes, arc, narrowest);
  });
  return found ? of(to) : 0;
}

std::vector<HostWay> WaysBetween(const Graph& graph, const Routes& routes, uint32_t from, uint32_t to) {
  uint32_t narrowest = kNone;
  const uint64_t count = CountWays(graph, routes, from, to, &narrowest);
  if (count == 0) return {};
  Arcs out;
  routes.Spread(from, to, [&](uint32_t arc, double share) { out[Tail(graph, arc)].push_back({arc, Head(graph, arc), share}); });
  if (count > kMaxWays) return ByFirstStops(graph, routes, from, to, out);
  std::vector<HostWay> ways;
  std::vector<uint32_t> arcs;
  const std::function<void(uint32_t, double)> walk = [&](uint32_t at, double share) {
    if (at == to) {
      HostWay& way = ways.emplace_back();
      way.share = share;
      for (const uint32_t arc : arcs) {
        Narrower(routes, arc, &way.narrowest);
        if (const uint32_t head = Head(graph, arc); IsShown(graph, head)) way.via.push_back({.vertex = head});
      }
      return;
    }
    double sum = 0;
    for (const Arc& arc : out.at(at)) sum += arc.share;
    for (const Arc& arc : out.at(at)) {
      arcs.push_back(arc.arc);
      walk(arc.head, sum > 0 ? share * arc.share / sum : 0);
      arcs.pop_back();
    }
  };
  walk(from, 1);
  std::ranges::stable_sort(ways, std::greater<>(), &HostWay::share);
  return ways;
}

}  // namespace sluice::fabric
