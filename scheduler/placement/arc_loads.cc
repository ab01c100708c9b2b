#include "scheduler/placement/arc_loads.h"

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "scheduler/fabric/step_parts.h"

namespace sluice::placement {
namespace {

struct Flow {
  uint64_t pair;    // from site << 32 | to site
  double bytes;
};

// Hosts that hang on the same switches.
struct HostClass {
  std::vector<uint32_t> switches;
  std::vector<uint32_t> sites;           // that take part in the all-to-all at hand
  double from = 0, to = 0;               // senders and receivers in it
  std::vector<double> out, in;           // bytes of its representative on the arc to and from each of `switches`
};

class AllToAllLoads {
 public:
  AllToAllLoads(const Problem& problem, const Placement& placement, const topology::Graph& graph, const fabric::Routes& routes,
                ArcLoads* loads)
      : problem_(problem), placement_(placement), graph_(graph), routes_(routes), loads_(*loads) {}

  void Add(const Traffic::AllToAll& all) {
    std::vector<double> from(problem_.sites.size()), to(problem_.sites.size());
    for (const uint32_t task : all.from) ++from[placement_[task]];
    for (const uint32_t task : all.to) ++to[placement_[task]];
    std::map<std::vector<uint32_t>, HostClass> by_switches;
    for (uint32_t site = 0; site < from.size(); ++site) {
      if (from[site] + to[site] == 0) continue;
      std::vector<uint32_t> switches;
      for (const auto& [at, arc] : UpArcs(site)) switches.push_back(at);
      HostClass& its = by_switches[switches];
      its.switches = switches;
      its.sites.push_back(site);
      its.from += from[site];
      its.to += to[site];
    }
    std::vector<HostClass*> classes;
    for (auto& [switches, its] : by_switches) {
      its.out.assign(switches.size(), 0);
      its.in.assign(switches.size(), 0);
      classes.push_back(&its);
    }
    for (HostClass* a : classes) {
      for (HostClass* b : classes) {
        double bytes = a->from * b->to * all.there + a->to * b->from * all.back;
        if (a == b)   // what stays on a host
          for (const uint32_t site : a->sites) bytes -= from[site] * to[site] * (all.there + all.back);
        if (bytes <= 0) continue;
        const uint32_t first = a->sites[0], second = a != b ? b->sites[0] : a->sites.size() > 1 ? a->sites[1] : kNone;
        if (second != kNone) Between(a, b, first, second, bytes);
      }
    }
    for (const HostClass* a : classes) {
      for (const uint32_t site : a->sites) {
        const double here = from[site] * to[site] * (all.there + all.back);   // and so not sent
        const double senders = static_cast<double>(all.from.size()), receivers = static_cast<double>(all.to.size());
        const double out = from[site] * receivers * all.there + to[site] * senders * all.back - here;
        const double in = to[site] * senders * all.there + from[site] * receivers * all.back - here;
        loads_.sent += out;
        Share(a->out, UpArcs(site), out, /*up=*/true);
        Share(a->in, UpArcs(site), in, /*up=*/false);
      }
    }
  }

 private:
  // Links of a site's host with switches: (switch, arc upwards), in the order of switches.
  const std::vector<std::pair<uint32_t, uint32_t>>& UpArcs(uint32_t site) {
    if (up_arcs_.empty()) {
      up_arcs_.resize(problem_.sites.size());
      std::unordered_map<uint32_t, uint32_t> site_of;
      for (uint32_t s = 0; s < problem_.sites.size(); ++s) site_of[problem_.sites[s].host] = s;
      for (uint32_t l = 0; l < graph_.links().size(); ++l) {
        const topology::Link& link = graph_.link(l);
        const uint32_t a = graph_.vertex(link.a).host, b = graph_.vertex(link.b).host;
        if ((a == kNone) == (b == kNone)) continue;
        const auto it = site_of.find(a == kNone ? b : a);
        if (it != site_of.end()) up_arcs_[it->second].emplace_back(a == kNone ? link.a : link.b, fabric::Routes::ArcOf(l, b == kNone));
      }
      for (auto& arcs : up_arcs_) std::sort(arcs.begin(), arcs.end());
    }
    return up_arcs_[site];
  }

  void Between(HostClass* a, HostClass* b, uint32_t from, uint32_t to, double bytes) {
    const bool there_is = routes_.Spread(problem_.sites[from].host, problem_.sites[to].host, [&](uint32_t arc, double share) {
      const topology::Link& link = graph_.link(arc / 2);
      const uint32_t tail = arc % 2 == 0 ? link.a : link.b, head = arc % 2 == 0 ? link.b : link.a;
      const bool from_host = graph_.vertex(tail).host != kNone, to_host = graph_.vertex(head).host != kNone;
      if (!from_host && !to_host) loads_.bytes[arc] += bytes * share;
      else if (from_host && !to_host) Note(a->switches, head, bytes * share, &a->out);
      else if (!from_host) Note(b->switches, tail, bytes * share, &b->in);
    });
    if (!there_is) loads_.unreachable += bytes;
  }

  static void Note(const std::vector<uint32_t>& switches, uint32_t at, double bytes, std::vector<double>* into) {
    const auto it = std::lower_bound(switches.begin(), switches.end(), at);
    if (it != switches.end() && *it == at) (*into)[static_cast<size_t>(it - switches.begin())] += bytes;
  }

  void Share(const std::vector<double>& parts, const std::vector<std::pair<uint32_t, uint32_t>>& arcs, double bytes, bool up) {
    double sum = 0;
    for (const double part : parts) sum += part;
    if (sum <= 0) return;
    for (size_t i = 0; i < arcs.size() && i < parts.size(); ++i) loads_.bytes[up ? arcs[i].second : arcs[i].second ^ 1] += bytes * parts[i] / sum;
  }

  const Problem& problem_;
  const Placement& placement_;
  const topology::Graph& graph_;
  const fabric::Routes& routes_;
  ArcLoads& loads_;
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> up_arcs_;
};

}  // namespace

ArcLoads LoadsOf(const Problem& problem, const Placement& placement, const topology::Graph& graph, const fabric::Routes& routes) {
  ArcLoads loads;
  loads.bytes.assign(routes.arcs(), 0);
  std::vector<Flow> flows;
  for (uint32_t t = 0; t < placement.size(); ++t)
    for (const Traffic::Peer& peer : problem.traffic.Peers(t))
      if (peer.out > 0 && placement[t] != placement[peer.task])
        flows.push_back({uint64_t{placement[t]} << 32 | placement[peer.task], peer.out});
  std::stable_sort(flows.begin(), flows.end(), [](const Flow& a, const Flow& b) { return a.pair < b.pair; });
  for (size_t i = 0; i < flows.size();) {
    double bytes = 0;
    const uint64_t pair = flows[i].pair;
    for (; i < flows.size() && flows[i].pair == pair; ++i) bytes += flows[i].bytes;
    loads.sent += bytes;
    if (!routes.Spread(problem.sites[pair >> 32].host, problem.sites[pair & 0xffffffff].host,
                       [&](uint32_t arc, double share) { loads.bytes[arc] += bytes * share; }))
      loads.unreachable += bytes;
  }
  AllToAllLoads all_to_alls(problem, placement, graph, routes, &loads);
  for (const Traffic::AllToAll& all : problem.traffic.all_to_alls()) all_to_alls.Add(all);
  return loads;
}

double BusySeconds(const std::vector<double>& bytes, const fabric::Routes& routes) {
  const std::vector<fabric::ArcLoad> busiest = fabric::Busiest(bytes, routes, 1, 1);
  return busiest.empty() ? 0 : busiest[0].busy_s;
}

double BoundOf(const Problem& problem) {
  double fastest = 0;
  size_t room = 0;   // tasks that one host could hold
  for (uint32_t site = 0; site < problem.sites.size(); ++site) {
    const Hierarchy::Node& node = problem.hierarchy.nodes[problem.hierarchy.leaf[site]];
    fastest = std::max({fastest, node.up, node.down});
    room = std::max<size_t>(room, problem.sites[site].places + problem.sites[site].seats);
  }
  if (fastest <= 0 || room == 0) return 0;
  double most = 0;
  std::vector<double> out, in;
  const auto less_the_largest = [&](std::vector<double>* bytes, double others) {
    std::sort(bytes->begin(), bytes->end(), std::greater<double>());
    for (size_t i = room - 1; i < bytes->size(); ++i) others += (*bytes)[i];
    most = std::max(most, others);
  };
  for (uint32_t t = 0; t < problem.tasks.size(); ++t) {
    out.clear();
    in.clear();
    for (const Traffic::Peer& peer : problem.traffic.Peers(t)) {
      out.push_back(peer.out);
      in.push_back(peer.in);
    }
    double others_out = 0, others_in = 0;
    for (const Traffic::Part& part : problem.traffic.Parts(t)) {
      const Traffic::AllToAll& all = problem.traffic.all_to_alls()[part.all];
      const auto beyond = [&](size_t members) { return static_cast<double>(members - std::min(members, room)); };
      if (part.from) {
        others_out += beyond(all.to.size()) * all.there;
        others_in += beyond(all.to.size()) * all.back;
      }
      if (part.to) {
        others_out += beyond(all.from.size()) * all.back;
        others_in += beyond(all.from.size()) * all.there;
      }
    }
    less_the_largest(&out, others_out);
    less_the_largest(&in, others_in);
  }
  return most / fastest;
}

}  // namespace sluice::placement
