#include "scheduler/placement/baselines.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/philox.h"
#include "base/status_macros.h"

namespace sluice::placement {
namespace {

Placement OnlyFixed(const Problem& problem) {
  return problem.fixed.empty() ? Placement(problem.tasks.size(), kNone) : problem.fixed;
}

// Workers to be placed, by rank; the others likewise.
std::vector<uint32_t> Free(const Problem& problem, bool workers) {
  std::vector<uint32_t> tasks;
  for (uint32_t t = 0; t < problem.tasks.size(); ++t)
    if (TakesPlace(problem.tasks[t]) == workers && problem.Movable(t)) tasks.push_back(t);
  std::stable_sort(tasks.begin(), tasks.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(problem.tasks[a].role, problem.tasks[a].number) < std::pair(problem.tasks[b].role, problem.tasks[b].number);
  });
  return tasks;
}

// To each of `sites` its next task in turn, until all have one: `at_once` as many as it has room for, or one.
void Deal(const std::vector<uint32_t>& tasks, const std::vector<uint32_t>& sites, bool at_once, std::vector<uint32_t>* room,
          Placement* placement) {
  size_t next = 0;
  for (bool any = true; any && next < tasks.size();) {
    any = false;
    for (const uint32_t site : sites) {
      while (next < tasks.size() && (*room)[site] > 0) {
        (*placement)[tasks[next++]] = site;
        --(*room)[site];
        any = true;
        if (!at_once) break;
      }
    }
  }
}

std::vector<uint32_t> AllSites(const Problem& problem) {
  std::vector<uint32_t> sites(problem.sites.size());
  std::iota(sites.begin(), sites.end(), 0u);
  return sites;
}

}  // namespace

std::vector<uint32_t> SitesInOrder(const Hierarchy& tree) {
  std::vector<uint32_t> sites, stack;
  for (uint32_t n = static_cast<uint32_t>(tree.nodes.size()); n-- > 0;)
    if (tree.nodes[n].parent == kNone) stack.push_back(n);
  while (!stack.empty()) {
    const Hierarchy::Node& node = tree.nodes[stack.back()];
    stack.pop_back();
    if (node.site != kNone) sites.push_back(node.site);
    stack.insert(stack.end(), node.children.rbegin(), node.children.rend());
  }
  return sites;
}

absl::StatusOr<Placement> BestFit(const Problem& problem) {
  SLUICE_RETURN_IF_ERROR(CheckFits(problem));
  const Hierarchy& tree = problem.hierarchy;
  Placement placement = OnlyFixed(problem);
  Room room = FreeRoom(problem, placement);
  const std::vector<uint32_t> workers = Free(problem, true);

  std::vector<uint64_t> below(tree.nodes.size());
  for (uint32_t n = static_cast<uint32_t>(tree.nodes.size()); n-- > 0;) {
    if (tree.nodes[n].site != kNone) below[n] = room.places[tree.nodes[n].site];
    if (tree.nodes[n].parent != kNone) below[tree.nodes[n].parent] += below[n];
  }
  uint32_t lowest = kNone;   // switch below which all fit: the deepest, of these the fullest
  for (uint32_t n = 0; n < tree.nodes.size(); ++n) {
    if (tree.nodes[n].site != kNone || below[n] < workers.size()) continue;
    if (lowest == kNone || std::pair(tree.nodes[n].depth, below[lowest]) > std::pair(tree.nodes[lowest].depth, below[n])) lowest = n;
  }
  std::vector<std::vector<uint32_t>> racks;   // sites of each leaf switch below it
  std::vector<uint64_t> free;
  std::vector<uint32_t> stack;
  if (lowest != kNone) stack.push_back(lowest);
  else
    for (uint32_t n = 0; n < tree.nodes.size(); ++n)
      if (tree.nodes[n].parent == kNone) stack.push_back(n);
  while (!stack.empty()) {
    const uint32_t n = stack.back();
    stack.pop_back();
    std::vector<uint32_t> sites;
    for (const uint32_t child : tree.nodes[n].children) {
      if (tree.nodes[child].site != kNone) sites.push_back(tree.nodes[child].site);
      else stack.push_back(child);
    }
    if (tree.nodes[n].site != kNone) sites.push_back(tree.nodes[n].site);   // a host that is a root
    if (sites.empty()) continue;
    uint64_t sum = 0;
    for (const uint32_t site : sites) sum += room.places[site];
    racks.push_back(std::move(sites));
    free.push_back(sum);
  }
  std::vector<uint32_t> by_size(racks.size());
  std::iota(by_size.begin(), by_size.end(), 0u);
  std::stable_sort(by_size.begin(), by_size.end(), [&](uint32_t a, uint32_t b) { return free[a] > free[b]; });
  std::vector<uint32_t> chosen;
  uint64_t rest = workers.size();
  for (size_t i = 0; i < by_size.size() && rest > 0; ++i) {
    size_t best = i;   // the emptiest, or of those that hold the rest the fullest
    while (best + 1 < by_size.size() && free[by_size[best + 1]] >= rest) ++best;
    const std::vector<uint32_t>& rack = racks[by_size[best]];
    chosen.insert(chosen.end(), rack.begin(), rack.end());
    rest -= std::min(rest, free[by_size[best]]);
  }
  std::sort(chosen.begin(), chosen.end());
  Deal(workers, chosen, /*at_once=*/true, &room.places, &placement);

  const std::vector<uint32_t> others = Free(problem, false);
  std::vector<uint32_t> used;
  for (const uint32_t site : chosen)
    if (room.places[site] < problem.sites[site].places) used.push_back(site);
  Deal(others, used.empty() ? chosen : used, /*at_once=*/false, &room.seats, &placement);
  Seat(problem, Seating::kWide, &placement);   // those that found none
  return placement;
}

absl::StatusOr<Placement> RoundRobin(const Problem& problem) {
  SLUICE_RETURN_IF_ERROR(CheckFits(problem));
  Placement placement = OnlyFixed(problem);
  Room room = FreeRoom(problem, placement);
  Deal(Free(problem, true), AllSites(problem), /*at_once=*/false, &room.places, &placement);
  Deal(Free(problem, false), AllSites(problem), /*at_once=*/false, &room.seats, &placement);
  return placement;
}

absl::StatusOr<Placement> Random(const Problem& problem, uint64_t seed) {
  SLUICE_RETURN_IF_ERROR(CheckFits(problem));
  Placement placement = OnlyFixed(problem);
  const Room room = FreeRoom(problem, placement);
  PhiloxRandom random(seed, 0x72616e64);
  for (const bool workers : {true, false}) {
    const std::vector<uint32_t> tasks = Free(problem, workers);
    std::vector<uint32_t> slots;
    for (uint32_t site = 0; site < problem.sites.size(); ++site)
      slots.insert(slots.end(), std::min<size_t>((workers ? room.places : room.seats)[site], tasks.size()), site);
    for (size_t i = 0; i < tasks.size(); ++i) {
      std::swap(slots[i], slots[i + random.Below(static_cast<uint32_t>(slots.size() - i))]);
      placement[tasks[i]] = slots[i];
    }
  }
  return placement;
}

void Seat(const Problem& problem, Seating seating, Placement* placement) {
  Room room = FreeRoom(problem, *placement);
  std::vector<uint32_t> tasks;
  for (const uint32_t t : Free(problem, false))
    if ((*placement)[t] == kNone) tasks.push_back(t);
  if (tasks.empty()) return;
  // The first ones of all sets that belong apart, then the second ones, …: along the way they come far from each other.
  std::vector<size_t> place_in_set(problem.tasks.size());
  for (const auto& set : problem.apart)
    for (size_t i = 0; i < set.size(); ++i) place_in_set[set[i]] = i;
  std::stable_sort(tasks.begin(), tasks.end(), [&](uint32_t a, uint32_t b) { return place_in_set[a] < place_in_set[b]; });
  std::vector<uint32_t> workers(problem.sites.size());
  for (uint32_t t = 0; t < placement->size(); ++t)
    if (TakesPlace(problem.tasks[t]) && (*placement)[t] != kNone) ++workers[(*placement)[t]];

  std::vector<uint32_t> order = SitesInOrder(problem.hierarchy);
  std::vector<uint32_t> stops;   // where the tasks would like to be, evenly along it
  switch (seating) {
    case Seating::kBeside:
      for (const uint32_t site : order) stops.insert(stops.end(), workers[site], site);
      break;
    case Seating::kWide:
      break;
    case Seating::kApart: {
      std::vector<uint64_t> near(problem.hierarchy.nodes.size());
      const auto parent = [&](uint32_t site) {
        const uint32_t up = problem.hierarchy.nodes[problem.hierarchy.leaf[site]].parent;
        return up == kNone ? problem.hierarchy.leaf[site] : up;
      };
      for (const uint32_t site : order) near[parent(site)] += workers[site];
      std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        return std::pair(workers[a] > 0, near[parent(b)]) < std::pair(workers[b] > 0, near[parent(a)]);
      });
      Deal(tasks, order, /*at_once=*/false, &room.seats, placement);
      return;
    }
  }
  if (stops.empty()) stops = order;
  std::vector<size_t> position(problem.sites.size());
  for (size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const uint32_t wish = stops[(2 * i + 1) * stops.size() / (2 * tasks.size())];
    size_t at = position[wish];   // or the next one on the way that has a seat
    for (size_t tried = 0; tried < order.size() && room.seats[order[at]] == 0; ++tried) at = at + 1 == order.size() ? 0 : at + 1;
    if (room.seats[order[at]] == 0) return;   // CheckFits says so before
    --room.seats[order[at]];
    (*placement)[tasks[i]] = order[at];
  }
}

}  // namespace sluice::placement
