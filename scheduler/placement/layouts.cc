#include "scheduler/placement/layouts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/placement/partition.h"

namespace sluice::placement {
namespace {

class Divider {
 public:
  Divider(const Problem& problem, const Layout& layout, uint64_t seed)
      : problem_(problem), tree_(problem.hierarchy), layout_(layout), seed_(seed),
        placement_(problem.fixed.empty() ? Placement(problem.tasks.size(), kNone) : problem.fixed),
        room_(FreeRoom(problem, placement_)) {}

  Placement Run() {
    MakeUnits();
    cap_.assign(tree_.nodes.size(), 0);
    std::vector<uint32_t> roots;
    for (uint32_t n = static_cast<uint32_t>(tree_.nodes.size()); n-- > 0;) {
      const Hierarchy::Node& node = tree_.nodes[n];
      if (node.site != kNone) cap_[n] = room_.places[node.site] / block_;
      if (node.parent != kNone) cap_[node.parent] += cap_[n];
      else roots.push_back(n);
    }
    std::reverse(roots.begin(), roots.end());
    uint64_t fit = 0;
    for (const uint32_t root : roots) fit += cap_[root];
    std::vector<uint32_t> units = order_;
    units.resize(std::min<uint64_t>(units.size(), fit));
    if (layout_.metis && units.size() > 1) MakeGraph();
    Divide(roots, units);
    TakeWhatIsLeft();
    return std::move(placement_);
  }

 private:
  // Units of ranks in the layout's order. Fixed workers break blocks up.
  void MakeUnits() {
    std::vector<uint32_t> workers;
    for (uint32_t t = 0; t < problem_.tasks.size(); ++t)
      if (TakesPlace(problem_.tasks[t]) && problem_.Movable(t)) workers.push_back(t);
    std::stable_sort(workers.begin(), workers.end(),
                     [&](uint32_t a, uint32_t b) { return problem_.tasks[a].number < problem_.tasks[b].number; });
    block_ = std::max(1u, layout_.block);
    if (!problem_.fixed.empty() || workers.size() % block_ != 0) block_ = 1;
    unit_of_.assign(problem_.tasks.size(), kNone);
    units_.resize(workers.size() / block_);
    for (size_t i = 0; i < workers.size(); ++i) {
      units_[i / block_].push_back(workers[i]);
      unit_of_[workers[i]] = static_cast<uint32_t>(i / block_);
    }
    order_.resize(units_.size());
    std::iota(order_.begin(), order_.end(), 0u);
    // Units that belong together: products of the groups around the block, in the layout's order.
    std::vector<uint64_t> sizes, strides;
    uint64_t inner = block_;
    for (const uint32_t block : problem_.blocks) {
      if (block <= inner || block % inner != 0) continue;
      sizes.push_back(block / inner);
      strides.push_back(inner / block_);
      inner = block;
    }
    if (inner > 0 && units_.size() * block_ > inner && units_.size() * block_ % inner == 0) {   // the rest is one more group
      sizes.push_back(units_.size() * block_ / inner);
      strides.push_back(inner / block_);
    }
    std::vector<uint32_t> order = layout_.order;
    if (order.size() != sizes.size()) {
      order.resize(sizes.size());
      std::iota(order.begin(), order.end(), 0u);
    } else {
      std::vector<uint64_t> key(units_.size());
      for (uint64_t u = 0; u < units_.size(); ++u) {
        uint64_t value = 0;
        for (size_t i = order.size(); i-- > 0;) value = value * sizes[order[i]] + u / strides[order[i]] % sizes[order[i]];
        key[u] = value;
      }
      std::stable_sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) { return key[a] < key[b]; });
    }
    uint64_t together = 1;
    for (const uint32_t dimension : order) together_.push_back(static_cast<uint32_t>(together *= sizes[dimension]));
    std::reverse(together_.begin(), together_.end());   // largest first
  }

  void MakeGraph() {
    graph_.first.assign(1, 0);
    std::vector<double> weight(units_.size());
    std::vector<uint32_t> touched;
    for (const auto& unit : units_) {
      touched.clear();
      for (const uint32_t task : unit) {
        for (const Traffic::Peer& peer : problem_.traffic.Peers(task)) {
          const uint32_t other = unit_of_[peer.task];
          if (other == kNone || other == unit_of_[task]) continue;
          if (weight[other] == 0) touched.push_back(other);
          weight[other] += peer.out + peer.in;
        }
      }
      std::sort(touched.begin(), touched.end());
      for (const uint32_t other : touched) {
        graph_.to.push_back(other);
        graph_.weight.push_back(weight[other]);
        weight[other] = 0;
      }
      graph_.first.push_back(static_cast<uint32_t>(graph_.to.size()));
    }
    local_.assign(units_.size(), kNone);
  }

  // How many of n units go to each of the domains.
  std::vector<uint32_t> SizesFor(const std::vector<uint32_t>& domains, uint32_t n) const {
    uint32_t whole = 1;
    std::vector<uint64_t> cap(domains.size());
    for (const uint32_t candidate : together_) {
      if (candidate >= n || domains.size() == 1) continue;
      uint64_t fit = 0;
      for (const uint32_t d : domains) fit += cap_[d] / candidate;
      if (fit < (n + candidate - 1) / candidate) continue;
      whole = candidate;
      break;
    }
    for (size_t i = 0; i < domains.size(); ++i) cap[i] = cap_[domains[i]] / whole * whole;
    std::vector<size_t> by_room(domains.size());
    std::iota(by_room.begin(), by_room.end(), size_t{0});
    std::stable_sort(by_room.begin(), by_room.end(), [&](size_t a, size_t b) { return cap[a] > cap[b]; });

    std::vector<size_t> chosen;
    std::vector<uint32_t> sizes(domains.size());
    const bool one_holds_all = !by_room.empty() && cap[by_room[0]] >= n;
    const bool by_room_of_all = layout_.sizes == Sizes::kSpread || (layout_.sizes == Sizes::kNear && !one_holds_all);
    if (by_room_of_all) {
      chosen = by_room;
    } else {
      std::vector<bool> taken(domains.size());
      for (uint64_t rest = n; rest > 0;) {
        size_t best = domains.size();   // the emptiest, or the fullest that holds the rest
        for (const size_t i : by_room) {
          if (taken[i] || cap[i] == 0) continue;
          if (best == domains.size() || cap[i] >= rest) best = i;
        }
        if (best == domains.size()) break;
        taken[best] = true;
        chosen.push_back(best);
        sizes[best] = static_cast<uint32_t>(std::min<uint64_t>(rest, cap[best]));
        rest -= sizes[best];
      }
      if (layout_.sizes == Sizes::kPack || chosen.size() <= 1) return sizes;
    }
    // Shared out in steps of `whole` to that which has least: as it is, or of its room.
    std::fill(sizes.begin(), sizes.end(), 0u);
    uint64_t room = 0;
    for (const size_t i : chosen) room += cap[i];
    uint64_t left = n;
    for (const size_t i : chosen) {   // nearly all at once
      const uint64_t fair = by_room_of_all ? n * cap[i] / std::max<uint64_t>(1, room) : n / chosen.size();
      sizes[i] = static_cast<uint32_t>(std::min({cap[i], fair, left}) / whole * whole);
      left -= sizes[i];
    }
    while (left > 0) {
      size_t best = domains.size();
      const auto filled = [&](size_t i) {
        return by_room_of_all ? static_cast<double>(sizes[i]) / static_cast<double>(cap[i]) : sizes[i];
      };
      for (const size_t i : chosen)
        if (sizes[i] < cap[i] && (best == domains.size() || filled(i) < filled(best))) best = i;
      if (best == domains.size()) break;
      const uint32_t step = static_cast<uint32_t>(std::min<uint64_t>({whole, left, cap[best] - sizes[best]}));
      sizes[best] += step;
      left -= step;
    }
    return sizes;
  }

  void Divide(const std::vector<uint32_t>& domains, const std::vector<uint32_t>& units) {
    if (units.empty() || domains.empty()) return;
    const std::vector<uint32_t> sizes = SizesFor(domains, static_cast<uint32_t>(units.size()));
    std::vector<std::vector<uint32_t>> parts(domains.size());
    if (const uint64_t sum = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
        layout_.metis && sum == units.size() && units.size() > 1) {
      const std::vector<uint32_t> part = CutIntoParts(GraphOf(units), sizes, seed_);
      for (size_t i = 0; i < units.size(); ++i) parts[part[i]].push_back(units[i]);
    } else {
      size_t next = 0;
      for (size_t i = 0; i < domains.size(); ++i)
        for (uint32_t k = 0; k < sizes[i] && next < units.size(); ++k) parts[i].push_back(units[next++]);
    }
    for (size_t i = 0; i < domains.size(); ++i) {
      const Hierarchy::Node& node = tree_.nodes[domains[i]];
      if (node.site == kNone) {
        Divide(node.children, parts[i]);
        continue;
      }
      for (const uint32_t unit : parts[i]) {
        for (const uint32_t task : units_[unit]) {
          placement_[task] = node.site;
          --room_.places[node.site];
        }
      }
    }
  }

  WeightedGraph GraphOf(const std::vector<uint32_t>& units) {
    WeightedGraph graph;
    for (uint32_t i = 0; i < units.size(); ++i) local_[units[i]] = i;
    graph.first.push_back(0);
    for (const uint32_t unit : units) {
      for (uint32_t e = graph_.first[unit]; e < graph_.first[unit + 1]; ++e) {
        if (local_[graph_.to[e]] == kNone) continue;
        graph.to.push_back(local_[graph_.to[e]]);
        graph.weight.push_back(graph_.weight[e]);
      }
      graph.first.push_back(static_cast<uint32_t>(graph.to.size()));
    }
    for (const uint32_t unit : units) local_[unit] = kNone;
    return graph;
  }

  // Rank by rank, in domains of the job's own first.
  void TakeWhatIsLeft() {
    std::vector<char> used(tree_.nodes.size());
    for (uint32_t t = 0; t < placement_.size(); ++t)
      if (placement_[t] != kNone)
        for (uint32_t n = tree_.leaf[placement_[t]]; n != kNone && !used[n]; n = tree_.nodes[n].parent) used[n] = 1;
    std::vector<std::pair<uint32_t, uint32_t>> sites;   // domains above that are not the job's, site
    uint32_t position = 0;
    std::vector<uint32_t> stack;
    for (uint32_t site = 0; site < tree_.leaf.size(); ++site) {
      uint32_t strange = 0;
      for (uint32_t n = tree_.leaf[site]; n != kNone && !used[n]; n = tree_.nodes[n].parent) ++strange;
      if (room_.places[site] > 0) sites.emplace_back(strange, site);
    }
    std::stable_sort(sites.begin(), sites.end());
    for (const uint32_t unit : order_) {
      for (const uint32_t task : units_[unit]) {
        if (placement_[task] != kNone) continue;
        while (position < sites.size() && room_.places[sites[position].second] == 0) ++position;
        if (position == sites.size()) return;   // CheckFits says so before
        placement_[task] = sites[position].second;
        --room_.places[sites[position].second];
      }
    }
  }

  const Problem& problem_;
  const Hierarchy& tree_;
  const Layout& layout_;
  const uint64_t seed_;
  Placement placement_;
  Room room_;
  uint32_t block_ = 1;
  std::vector<std::vector<uint32_t>> units_;   // tasks
  std::vector<uint32_t> unit_of_;              // of a task
  std::vector<uint32_t> order_;                // of units
  std::vector<uint32_t> together_;             // units that belong together, largest first
  std::vector<uint64_t> cap_;                  // of each node, in units
  WeightedGraph graph_;                        // of the units
  std::vector<uint32_t> local_;
};

}  // namespace

std::string Layout::Name() const {
  const char* how = sizes == Sizes::kPack ? "packed" : sizes == Sizes::kEven ? "even" : sizes == Sizes::kNear ? "near" : "spread";
  return absl::StrCat(how, block > 1 ? absl::StrCat(", blocks of ", block) : "",
                      metis ? ", METIS" : order.empty() ? ", ranks in order" : absl::StrCat(", groups in order ", absl::StrJoin(order, "-")));
}

std::vector<Layout> LayoutsFor(const Problem& problem, bool few) {
  uint32_t largest = 0, workers = 0;
  for (const Site& site : problem.sites) largest = std::max(largest, site.places);
  for (const Task& task : problem.tasks) workers += TakesPlace(task);
  std::vector<uint32_t> blocks{1};
  for (const uint32_t block : problem.blocks)
    if (block > 1 && block <= largest && workers % block == 0) blocks.push_back(block);
  std::reverse(blocks.begin(), blocks.end());   // the largest that a host holds first
  if (few) blocks.resize(1);
  std::vector<Layout> layouts;
  for (const uint32_t block : blocks) {
    size_t dimensions = 0;
    uint32_t inner = block;
    for (const uint32_t product : problem.blocks)
      if (product > inner && product % inner == 0) ++dimensions, inner = product;
    if (workers > inner && workers % inner == 0) ++dimensions;
    for (const Sizes sizes : {Sizes::kPack, Sizes::kEven, Sizes::kNear, Sizes::kSpread}) {
      if (few && (sizes == Sizes::kSpread || sizes == Sizes::kEven)) continue;
      layouts.push_back({.block = block, .sizes = sizes, .order = {}, .metis = false});
      if (!few || sizes == Sizes::kPack) layouts.push_back({.block = block, .sizes = sizes, .order = {}, .metis = true});
      if (dimensions < 2 || dimensions > 3) continue;
      std::vector<uint32_t> order(dimensions);
      std::iota(order.begin(), order.end(), 0u);
      while (std::next_permutation(order.begin(), order.end()))
        layouts.push_back({.block = block, .sizes = sizes, .order = order, .metis = false});
    }
  }
  return layouts;
}

Placement LayOut(const Problem& problem, const Layout& layout, uint64_t seed) { return Divider(problem, layout, seed).Run(); }

}  // namespace sluice::placement
