#include "scheduler/placement/objective.h"

#include <algorithm>
#include <cmath>

namespace sluice::placement {
namespace {

// -1: a is smaller by more than rounding, 1: larger, 0: the same.
int Compare(double a, double b) {
  const double slack = 1e-9 * std::max({std::abs(a), std::abs(b), 1e-12});
  return a < b - slack ? -1 : a > b + slack ? 1 : 0;
}

}  // namespace

bool Better(const Score& a, const Score& b) {
  if (a.broken != b.broken) return a.broken < b.broken;
  if (const int c = Compare(a.time, b.time); c != 0) return c < 0;
  if (const int c = Compare(a.cut, b.cut); c != 0) return c < 0;
  return Compare(a.hops, b.hops) < 0;
}

Objective::Objective(const Problem* problem) : problem_(problem), where_(problem->apart.size()) {
  if (problem->apart.empty()) return;
  sets_of_.resize(problem->tasks.size());
  for (uint32_t set = 0; set < problem->apart.size(); ++set)
    for (const uint32_t task : problem->apart[set]) sets_of_[task].push_back(set);
}

void Objective::Reset(const Placement& placement) {
  placement_ = placement;
  unreachable_ = together_ = 0;
  for (auto& where : where_) where.clear();
  loads_.Clear();
  ClearCounts();
  loads_.BeginBulk();
  const Traffic& traffic = problem_->traffic;
  for (uint32_t t = 0; t < placement_.size(); ++t) {
    for (const Traffic::Peer& peer : traffic.Peers(t))
      if (peer.task > t) AddPair(placement_[t], placement_[peer.task], peer.out, peer.in, 1);
    Count(t, placement_[t], 1);
    CountApart(t, placement_[t], true);
  }
  FinishCounts();
  loads_.EndBulk();
}

void Objective::Move(uint32_t task, uint32_t site) {
  const uint32_t old = placement_[task];
  if (old == site) return;
  for (const Traffic::Peer& peer : problem_->traffic.Peers(task)) {
    const uint32_t other = placement_[peer.task];
    if (other != old) AddPair(old, other, -peer.out, -peer.in, -1);
    if (other != site) AddPair(site, other, peer.out, peer.in, 1);
  }
  Count(task, old, -1);
  Count(task, site, 1);
  CountApart(task, old, false);
  CountApart(task, site, true);
  placement_[task] = site;
}

void Objective::Swap(uint32_t a, uint32_t b) {
  const uint32_t site_a = placement_[a], site_b = placement_[b];
  Move(a, site_b);
  Move(b, site_a);
}

Score Objective::score() const {
  return {.broken = together_ + static_cast<uint64_t>(unreachable_), .time = loads_.MaxBusy(), .cut = loads_.cut_bytes(), .hops = loads_.all_bytes()};
}

void Objective::Count(uint32_t task, uint32_t site, int by) {
  for (const Traffic::Part& part : problem_->traffic.Parts(task)) {
    if (part.from) CountChanged(part.all, site, true, by);
    if (part.to) CountChanged(part.all, site, false, by);
  }
}

void Objective::CountApart(uint32_t task, uint32_t site, bool joins) {
  if (sets_of_.empty()) return;
  const uint32_t domain = problem_->sites[site].failure_domain;
  for (const uint32_t set : sets_of_[task]) {
    auto& where = where_[set];
    if (!joins) {
      const auto it = std::find(where.begin(), where.end(), std::pair(site, domain));
      if (it == where.end()) continue;
      *it = where.back();
      where.pop_back();
    }
    for (const auto& [other, its] : where) {
      const uint64_t pairs = (other == site ? 1 : 0) + (its == domain ? 1 : 0);
      together_ = joins ? together_ + pairs : together_ - pairs;
    }
    if (joins) where.emplace_back(site, domain);
  }
}

TreeObjective::TreeObjective(const Problem* problem) : Objective(problem) {
  const Hierarchy& tree = problem->hierarchy;
  for (const Hierarchy::Node& node : tree.nodes) {
    const bool cut = node.site == kNone;
    loads_.AddArc(node.up, cut);
    loads_.AddArc(node.down, cut);
  }
  counts_.assign(problem->traffic.all_to_alls().size(), std::vector<Counts>(tree.nodes.size()));
}

void TreeObjective::AddPair(uint32_t a, uint32_t b, double there, double back, int pairs) {
  if (a == b) return;
  const Hierarchy& tree = problem_->hierarchy;
  uint32_t from = tree.leaf[a], to = tree.leaf[b];
  while (from != to) {   // the deeper one climbs; roots that nothing joins climb to kNone
    const bool climbs = from != kNone && (to == kNone || tree.nodes[from].depth >= tree.nodes[to].depth);
    if (climbs) {
      if (there != 0) loads_.Add(2 * from, there);
      if (back != 0) loads_.Add(2 * from + 1, back);
      from = tree.nodes[from].parent;
    } else {
      if (there != 0) loads_.Add(2 * to + 1, there);
      if (back != 0) loads_.Add(2 * to, back);
      to = tree.nodes[to].parent;
    }
  }
  if (from == kNone) unreachable_ += pairs;
}

void TreeObjective::CountChanged(uint32_t all, uint32_t site, bool from, int by) {
  auto& counts = counts_[all];
  const Hierarchy& tree = problem_->hierarchy;
  for (uint32_t node = tree.leaf[site]; node != kNone; node = tree.nodes[node].parent) {
    if (!resetting_) AddNode(all, node, -1);
    (from ? counts[node].from : counts[node].to) += static_cast<uint32_t>(by);
    if (!resetting_) AddNode(all, node, 1);
  }
}

// What leaves a domain goes from its senders to receivers outside, and back from its receivers to senders outside.
void TreeObjective::AddNode(uint32_t all, uint32_t node, double sign) {
  const Traffic::AllToAll& a = problem_->traffic.all_to_alls()[all];
  const double from = counts_[all][node].from, to = counts_[all][node].to;
  const double from_out = static_cast<double>(a.from.size()) - from, to_out = static_cast<double>(a.to.size()) - to;
  const double up = from * to_out * a.there + to * from_out * a.back;
  const double down = from_out * to * a.there + to_out * from * a.back;
  if (up != 0) loads_.Add(2 * node, sign * up);
  if (down != 0) loads_.Add(2 * node + 1, sign * down);
  if (problem_->hierarchy.nodes[node].parent == kNone) unreachable_ += static_cast<int64_t>(sign * from * to_out);
}

void TreeObjective::ClearCounts() {
  for (auto& counts : counts_) std::fill(counts.begin(), counts.end(), Counts());
  resetting_ = true;
}

void TreeObjective::FinishCounts() {
  for (uint32_t all = 0; all < counts_.size(); ++all)
    for (uint32_t node = 0; node < counts_[all].size(); ++node) AddNode(all, node, 1);
  resetting_ = false;
}

RoutedObjective::RoutedObjective(const Problem* problem, const topology::Graph* graph, const fabric::Routes* routes)
    : Objective(problem), routes_(routes) {
  const auto is_switch = [&](uint32_t vertex) { return graph->vertex(vertex).host == kNone; };
  for (uint32_t arc = 0; arc < routes->arcs(); ++arc) {
    const topology::Link& link = graph->link(arc / 2);
    loads_.AddArc(routes->BytesPerSecond(arc), is_switch(link.a) && is_switch(link.b));
  }
  ways_.resize(problem->sites.size() * problem->sites.size());
  counts_.assign(problem->traffic.all_to_alls().size(), std::vector<Counts>(problem->sites.size()));
}

const RoutedObjective::WayOf& RoutedObjective::Way(uint32_t a, uint32_t b) {
  WayOf& way = ways_[a * problem_->sites.size() + b];
  if (!way.known) {
    way.known = true;
    way.there_is = routes_->Spread(problem_->sites[a].host, problem_->sites[b].host,
                                   [&](uint32_t arc, double share) { way.arcs.push_back({arc, share}); });
  }
  return way;
}

void RoutedObjective::AddPair(uint32_t a, uint32_t b, double there, double back, int pairs) {
  if (a == b) return;
  if (there != 0)
    for (const ArcShare& arc : Way(a, b).arcs) loads_.Add(arc.arc, arc.share * there);
  if (back != 0)
    for (const ArcShare& arc : Way(b, a).arcs) loads_.Add(arc.arc, arc.share * back);
  if (!Way(a, b).there_is || !Way(b, a).there_is) unreachable_ += pairs;
}

void RoutedObjective::CountChanged(uint32_t all, uint32_t site, bool from, int by) {
  const Traffic::AllToAll& a = problem_->traffic.all_to_alls()[all];
  auto& counts = counts_[all];
  for (uint32_t other = 0; other < counts.size(); ++other) {
    const int peers = by * static_cast<int>(from ? counts[other].to : counts[other].from);
    if (peers == 0 || other == site) continue;
    if (from) AddPair(site, other, peers * a.there, peers * a.back, peers);
    else AddPair(site, other, peers * a.back, peers * a.there, peers);
  }
  (from ? counts[site].from : counts[site].to) += static_cast<uint32_t>(by);
}

void RoutedObjective::ClearCounts() {
  for (auto& counts : counts_) std::fill(counts.begin(), counts.end(), Counts());
}

}  // namespace sluice::placement
