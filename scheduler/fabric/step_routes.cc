#include "scheduler/fabric/step_routes.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "scheduler/fabric/step_parts.h"
#include "scheduler/topology/complete.h"
#include "scheduler/topology/places.h"

namespace sluice::fabric {
namespace {

using topology::Graph;
using topology::kNone;
using topology::VertexKind;
using Set = std::vector<uint32_t>;   // of vertices, ascending

void MakeSet(Set* list) {
  std::sort(list->begin(), list->end());
  list->erase(std::unique(list->begin(), list->end()), list->end());
}

// The switches above these; those that have none above stay.
Set Above(const Graph& graph, const std::vector<uint32_t>& levels, const Set& switches) {
  Set above;
  for (const uint32_t at : switches) {
    const size_t before = above.size();
    for (const Graph::Half& half : graph.Incident(at))
      if (graph.vertex(half.to).kind == VertexKind::kSwitch && levels[half.to] != kNone && levels[half.to] > levels[at]) above.push_back(half.to);
    if (above.size() == before) above.push_back(at);
  }
  MakeSet(&above);
  return above;
}

}  // namespace

StepRoutes::StepRoutes(const Graph* graph, const Routes* routes, std::vector<uint32_t> hosts)
    : graph_(*graph), routes_(*routes), group_of_(graph->vertices().size(), kNone), own_(graph->vertices().size()) {
  MakeSet(&hosts);
  Join(hosts);
  pairs_.resize(groups_.size() * groups_.size());
  out_.resize(groups_.size());
  in_.resize(groups_.size());
}

void StepRoutes::Join(const std::vector<uint32_t>& hosts) {
  std::vector<uint32_t> number(hosts.size());   // of each host's group
  for (uint32_t i = 0; i < hosts.size(); ++i) number[i] = i;
  size_t count = hosts.size();
  if (count * count > kMaxHostPairs) {
    const std::vector<uint32_t> levels = topology::Levels(graph_, hosts);
    std::vector<Set> keys(hosts.size());
    for (size_t i = 0; i < hosts.size(); ++i) keys[i] = topology::SwitchesOf(graph_, hosts[i]);
    while (true) {
      std::map<Set, uint32_t> known;
      for (size_t i = 0; i < hosts.size(); ++i) number[i] = known.emplace(keys[i], static_cast<uint32_t>(known.size())).first->second;
      count = known.size();
      if (count * count <= kMaxHostPairs) break;
      std::map<Set, Set> above;   // once for each key
      bool higher = false;
      for (const auto& [key, unused] : known) higher |= (above[key] = Above(graph_, levels, key)) != key;
      if (!higher) {
        number.assign(hosts.size(), 0);
        count = 1;
        break;
      }
      for (Set& key : keys) key = above[key];
    }
  }
  groups_.resize(count);
  for (size_t i = 0; i < hosts.size(); ++i) {
    group_of_[hosts[i]] = number[i];
    Group& group = groups_[number[i]];
    if (group.hosts == 0) group.first = hosts[i];
    if (group.hosts == 1) group.second = hosts[i];
    ++group.hosts;
  }
}

void StepRoutes::Add(uint32_t from, uint32_t to, double bytes, RouteUse use) {
  if (from == to || !(bytes > 0) || group_of_[from] == kNone || group_of_[to] == kNone) return;
  Pair& pair = At(group_of_[from], group_of_[to]);
  pair.bytes += bytes;
  pair.uses |= use;
}

void StepRoutes::AddAll(std::span<const Routes::Part> senders, std::span<const Routes::Part> receivers, RouteUse use) {
  std::vector<uint32_t> from, to;          // groups that take part
  std::map<uint32_t, double> on_one_host;  // of a group: what its hosts would send themselves
  for (const Routes::Part& part : receivers) {
    const uint32_t group = group_of_[part.host];
    if (group == kNone || !(part.weight > 0)) continue;
    if (in_[group] == 0) to.push_back(group);
    in_[group] += part.weight;
    own_[part.host] += part.weight;
  }
  for (const Routes::Part& part : senders) {
    const uint32_t group = group_of_[part.host];
    if (group == kNone || !(part.weight > 0)) continue;
    if (out_[group] == 0) from.push_back(group);
    out_[group] += part.weight;
    if (own_[part.host] > 0) on_one_host[group] += part.weight * own_[part.host];
  }
  for (const uint32_t a : from)
    for (const uint32_t b : to) {
      if (a == b && groups_[a].hosts < 2) continue;
      const double all = out_[a] * in_[b], own = a == b ? on_one_host[a] : 0;
      if (all - own <= 1e-9 * all) continue;   // what is left is of rounding
      Pair& pair = At(a, b);
      pair.bytes += all - own;
      pair.uses |= use;
    }
  for (const Routes::Part& part : receivers) own_[part.host] = 0;
  for (const uint32_t group : from) out_[group] = 0;
  for (const uint32_t group : to) in_[group] = 0;
}

void StepRoutes::AddStep(const StepSpec& spec) {
  for (const Stream& stream : StreamsOf(spec)) {
    const auto stages = StagesOf(spec, stream);
    for (size_t s = 0; s < stages.size(); ++s) {
      const RouteUse use = s == 0 ? kPushesAndReplies : kForwards;
      for (const StageExchange& exchange : stages[s]) {
        std::vector<Routes::Part> up = exchange.to, down = exchange.to;
        for (Routes::Part& part : up) part.weight *= s == 0 ? spec.push_ratio : spec.forward_ratio;
        for (Routes::Part& part : down) part.weight *= spec.reply_ratio;
        AddAll(exchange.from, up, use);
        AddAll(down, exchange.from, use);
      }
    }
  }
  for (const std::vector<Ring>& level : RingsOf(spec)) {
    for (const Ring& ring : level) {
      const double m = static_cast<double>(ring.ranks.size());
      const double bytes = (m - 1) / m * ring.part * (spec.reduce_ratio + spec.gather_ratio) * spec.collective_bytes;
      for (size_t i = 0; i < ring.ranks.size(); ++i)
        Add(spec.workers[ring.ranks[i]], spec.workers[ring.ranks[(i + 1) % ring.ranks.size()]], bytes, kCollectives);
    }
  }
}

StepRoutes::Found StepRoutes::Busiest(size_t most) const {
  struct Row {
    uint32_t a = 0, b = 0, from = 0, to = 0;
    uint64_t rows = 0;
    double busy_s = 0;
  };
  Found found;
  std::vector<Row> rows;
  for (uint32_t a = 0; a < groups_.size(); ++a) {
    for (uint32_t b = 0; b < groups_.size(); ++b) {
      const Pair& pair = pairs_[size_t{a} * groups_.size() + b];
      if (!(pair.bytes > 0)) continue;
      Row row{.a = a, .b = b, .from = groups_[a].first, .to = a == b ? groups_[a].second : groups_[b].first};
      uint32_t narrowest = kNone;
      const uint64_t ways = CountWays(graph_, routes_, row.from, row.to, &narrowest);
      if (ways == 0) {
        ++found.unreachable;
        continue;
      }
      row.rows = ways > kMaxWays ? 1 : ways;   // about: of rails there are more
      row.busy_s = pair.bytes / std::max(1.0, routes_.BytesPerSecond(narrowest));
      found.parallel |= ways > 1;
      rows.push_back(row);
    }
    found.joined |= groups_[a].hosts > 1;
  }
  std::ranges::stable_sort(rows, std::greater<>(), &Row::busy_s);
  for (const Row& row : rows) {
    if (found.routes.size() >= most) {
      found.left_out += row.rows;
      continue;
    }
    const Pair& pair = pairs_[size_t{row.a} * groups_.size() + row.b];
    for (HostWay& way : WaysBetween(graph_, routes_, row.from, row.to)) {
      if (found.routes.size() >= most) {
        ++found.left_out;
        continue;
      }
      StepRoute& route = found.routes.emplace_back();
      route.from = row.from;
      route.to = row.to;
      route.from_hosts = groups_[row.a].hosts;
      route.to_hosts = groups_[row.b].hosts;
      route.bytes = pair.bytes * way.share;
      route.uses = pair.uses;
      route.way = std::move(way);
    }
  }
  return found;
}

}  // namespace sluice::fabric
