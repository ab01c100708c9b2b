// What is to be placed where: tasks with the bytes that they exchange in a step, and sites with room for them.
//
// Traffic is kept as a sparse list of pairs, and what goes from all of some tasks to all of others as one entry (workers and
// servers): 100,000 ranks need no dense matrix.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/placement/hierarchy.h"
#include "scheduler/topology/graph.h"

namespace sluice::placement {

using topology::kNone;

inline constexpr uint32_t kMaxTasks = 1 << 20;

enum class Role : uint8_t { kWorker, kServer, kAggregator };

struct Task {
  Role role = Role::kWorker;
  uint32_t number = 0;      // rank of a worker; of a server or aggregator its index
};

// A host that may be used.
struct Site {
  uint32_t host = kNone;    // vertex of the topology
  uint32_t places = 0;      // workers that it has room for: its free slots / those that a worker takes
  uint32_t seats = 0;       // servers and aggregators that it may carry
  uint32_t failure_domain = 0;
};

class Traffic {
 public:
  // Every task of `from` sends `there` bytes to every one of `to`, and gets `back`. A task may be in both.
  struct AllToAll {
    std::vector<uint32_t> from, to;
    double there = 0, back = 0;
  };
  struct Peer {
    uint32_t task = 0;
    double out = 0, in = 0;   // bytes to the peer, from it
  };
  struct Part {               // of a task in an all-to-all
    uint32_t all = 0;
    bool from = false, to = false;
  };

  explicit Traffic(uint32_t tasks = 0) : tasks_(tasks) {}
  void Add(uint32_t from, uint32_t to, double bytes);   // repeated ones add up; from == to is nothing
  void AddAllToAll(AllToAll all);                       // small ones become pairs
  void Finish();                                        // before the calls below

  uint32_t tasks() const { return tasks_; }
  std::span<const Peer> Peers(uint32_t task) const {
    return std::span(peers_).subspan(first_[task], first_[task + 1] - first_[task]);
  }
  std::span<const Part> Parts(uint32_t task) const {
    return std::span(parts_).subspan(first_part_[task], first_part_[task + 1] - first_part_[task]);
  }
  const std::vector<AllToAll>& all_to_alls() const { return all_; }
  double total() const { return total_; }               // bytes of a step, all pairs

 private:
  struct Flow {
    uint32_t from, to;
    double bytes;
  };
  uint32_t tasks_;
  std::vector<Flow> flows_;
  std::vector<AllToAll> all_;
  std::vector<Peer> peers_;
  std::vector<size_t> first_;
  std::vector<Part> parts_;
  std::vector<size_t> first_part_;
  double total_ = 0;
};

// Site of each task; kNone: not placed.
using Placement = std::vector<uint32_t>;

struct Problem {
  std::vector<Task> tasks;
  std::vector<Site> sites;
  Traffic traffic;
  Hierarchy hierarchy;                      // over the sites
  std::vector<uint32_t> fixed;              // site of a task that stays where it is, kNone: it may move; or empty
  std::vector<std::vector<uint32_t>> apart; // tasks of one set belong into different failure domains, if there is a choice
  std::vector<uint32_t> blocks;             // products of the parallel groups' sizes, innermost first: {8, 32, 512}

  bool Movable(uint32_t task) const { return fixed.empty() || fixed[task] == kNone; }
};

inline bool TakesPlace(const Task& task) { return task.role == Role::kWorker; }

// Whether `problem` makes sense: sizes and indices. INVALID_ARGUMENT names what does not.
absl::Status Check(const Problem& problem);
// RESOURCE_EXHAUSTED says how many places or seats are missing.
absl::Status CheckFits(const Problem& problem);
// Whether all tasks are placed, none beyond a site's room, and the fixed ones where they belong.
absl::Status Check(const Problem& problem, const Placement& placement);

// Room that is left at each site.
struct Room {
  std::vector<uint32_t> places, seats;
  uint32_t& Of(const Task& task, uint32_t site) { return TakesPlace(task) ? places[site] : seats[site]; }
};
Room FreeRoom(const Problem& problem, const Placement& placement);

}  // namespace sluice::placement
