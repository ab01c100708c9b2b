#include "scheduler/placement/problem.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::placement {
namespace {

constexpr size_t kPairsAreKept = 256;   // an all-to-all of no more pairs is kept as pairs

}  // namespace

void Traffic::Add(uint32_t from, uint32_t to, double bytes) {
  if (from == to || !(bytes > 0)) return;
  flows_.push_back({from, to, bytes});
}

void Traffic::AddAllToAll(AllToAll all) {
  if (all.from.size() * all.to.size() > kPairsAreKept) {
    all_.push_back(std::move(all));
    return;
  }
  for (const uint32_t from : all.from) {
    for (const uint32_t to : all.to) {
      Add(from, to, all.there);
      Add(to, from, all.back);
    }
  }
}

void Traffic::Finish() {
  // Both ends know a pair. Sorted by (task, peer), its two directions and repeated ones meet.
  first_.assign(tasks_ + 1, 0);
  total_ = 0;
  for (const Flow& flow : flows_) {
    ++first_[flow.from + 1];
    ++first_[flow.to + 1];
    total_ += flow.bytes;
  }
  for (uint32_t t = 0; t < tasks_; ++t) first_[t + 1] += first_[t];
  peers_.resize(2 * flows_.size());
  std::vector<size_t> next(first_.begin(), first_.end() - 1);
  for (const Flow& flow : flows_) {
    peers_[next[flow.from]++] = {flow.to, flow.bytes, 0};
    peers_[next[flow.to]++] = {flow.from, 0, flow.bytes};
  }
  size_t kept = 0;
  for (uint32_t t = 0; t < tasks_; ++t) {
    const size_t begin = first_[t], end = first_[t + 1];
    std::stable_sort(peers_.begin() + static_cast<std::ptrdiff_t>(begin), peers_.begin() + static_cast<std::ptrdiff_t>(end),
                     [](const Peer& a, const Peer& b) { return a.task < b.task; });
    first_[t] = kept;
    for (size_t i = begin; i < end; ++i) {
      if (kept > first_[t] && peers_[kept - 1].task == peers_[i].task) {
        peers_[kept - 1].out += peers_[i].out;
        peers_[kept - 1].in += peers_[i].in;
      } else {
        peers_[kept++] = peers_[i];
      }
    }
  }
  first_[tasks_] = kept;
  peers_.resize(kept);
  peers_.shrink_to_fit();

  std::vector<std::pair<uint32_t, Part>> parts;   // by task
  for (uint32_t a = 0; a < all_.size(); ++a) {
    for (const uint32_t task : all_[a].from) parts.push_back({task, {a, true, false}});
    for (const uint32_t task : all_[a].to) parts.push_back({task, {a, false, true}});
    total_ += static_cast<double>(all_[a].from.size()) * static_cast<double>(all_[a].to.size()) * (all_[a].there + all_[a].back);
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& x, const auto& y) {
    return std::pair(x.first, x.second.all) < std::pair(y.first, y.second.all);
  });
  parts_.clear();
  first_part_.assign(tasks_ + 1, 0);
  uint32_t last = kNone;
  for (const auto& [task, part] : parts) {
    if (last == task && parts_.back().all == part.all) {
      parts_.back().from |= part.from;
      parts_.back().to |= part.to;
      continue;
    }
    parts_.push_back(part);
    ++first_part_[task + 1];
    last = task;
  }
  for (uint32_t t = 0; t < tasks_; ++t) first_part_[t + 1] += first_part_[t];
}

absl::Status Check(const Problem& problem) {
  const size_t tasks = problem.tasks.size(), sites = problem.sites.size();
  if (tasks == 0) return absl::InvalidArgumentError("there is nothing to place: the job has no workers");
  if (tasks > kMaxTasks) return absl::InvalidArgumentError(absl::StrCat(tasks, " workers and servers; at most ", kMaxTasks, " can be placed"));
  if (sites == 0) return absl::InvalidArgumentError("there is no host to place anything on");
  if (problem.traffic.tasks() != tasks) return absl::InternalError("traffic of other tasks");
  if (problem.hierarchy.leaf.size() != sites) return absl::InternalError("a hierarchy of other sites");
  if (!problem.fixed.empty() && problem.fixed.size() != tasks) return absl::InternalError("fixed places of other tasks");
  for (const uint32_t site : problem.fixed)
    if (site != kNone && site >= sites) return absl::InternalError("a fixed place that is no site");
  for (const auto& set : problem.apart)
    for (const uint32_t task : set)
      if (task >= tasks) return absl::InternalError("a set of no tasks");
  return problem.hierarchy.Check();
}

absl::Status CheckFits(const Problem& problem) {
  uint64_t workers = 0, others = 0, places = 0, seats = 0;
  for (const Task& task : problem.tasks) (TakesPlace(task) ? workers : others) += 1;
  for (const Site& site : problem.sites) {
    places += site.places;
    seats += site.seats;
  }
  if (workers > places)
    return absl::ResourceExhaustedError(absl::StrCat("the job does not fit: ", workers, " workers, and room for ", places, " on ",
                                                     problem.sites.size(), " hosts; ", workers - places, " are too many"));
  if (others > seats)
    return absl::ResourceExhaustedError(absl::StrCat("the job does not fit: ", others, " servers, and ", seats, " on ",
                                                     problem.sites.size(), " hosts at most; ", others - seats, " are too many"));
  std::vector<uint32_t> used_places(problem.sites.size()), used_seats(problem.sites.size());
  for (uint32_t t = 0; t < problem.tasks.size(); ++t) {
    if (problem.Movable(t)) continue;
    const uint32_t site = problem.fixed[t];
    const bool place = TakesPlace(problem.tasks[t]);
    if (++(place ? used_places : used_seats)[site] > (place ? problem.sites[site].places : problem.sites[site].seats))
      return absl::ResourceExhaustedError(absl::StrCat("more are fixed on the host of site ", site, " than it has room for"));
  }
  return absl::OkStatus();
}

absl::Status Check(const Problem& problem, const Placement& placement) {
  if (placement.size() != problem.tasks.size()) return absl::InternalError("a placement of other tasks");
  std::vector<uint32_t> places(problem.sites.size()), seats(problem.sites.size());
  for (uint32_t t = 0; t < placement.size(); ++t) {
    if (placement[t] >= problem.sites.size()) return absl::InternalError(absl::StrCat("task ", t, " has no site"));
    if (!problem.Movable(t) && placement[t] != problem.fixed[t])
      return absl::InternalError(absl::StrCat("task ", t, " was moved although it is fixed"));
    const bool place = TakesPlace(problem.tasks[t]);
    const uint32_t used = ++(place ? places : seats)[placement[t]];
    if (used > (place ? problem.sites[placement[t]].places : problem.sites[placement[t]].seats))
      return absl::InternalError(absl::StrCat("site ", placement[t], " carries more than it has room for"));
  }
  return absl::OkStatus();
}

Room FreeRoom(const Problem& problem, const Placement& placement) {
  Room room;
  for (const Site& site : problem.sites) {
    room.places.push_back(site.places);
    room.seats.push_back(site.seats);
  }
  for (uint32_t t = 0; t < placement.size(); ++t) {
    if (placement[t] == kNone) continue;
    uint32_t& left = room.Of(problem.tasks[t], placement[t]);
    if (left > 0) --left;
  }
  return room;
}

}  // namespace sluice::placement
