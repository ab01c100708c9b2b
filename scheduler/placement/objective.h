// How good a placement is, kept up to date while tasks move.
//
// Two views of the network serve: TreeObjective sees domains and what may leave each (any size), RoutedObjective every arc
// of every way (small clusters, networks that are no trees). On a tree both say the same.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "scheduler/fabric/routes.h"
#include "scheduler/placement/loads.h"
#include "scheduler/placement/problem.h"

namespace sluice::placement {

// Compared in this order. Bytes and seconds of one step.
struct Score {
  uint64_t broken = 0;    // pairs of a set of Problem::apart in one failure domain, twice if on one host; and pairs of tasks without a way
  double time = 0;        // the most loaded arc is busy for so many seconds
  double cut = 0;         // bytes that leave racks and zones
  double hops = 0;        // bytes times arcs that they cross
};
// Differences of less than 1e-9 of the whole are none: sums are rounded.
bool Better(const Score& a, const Score& b);

class Objective {
 public:
  explicit Objective(const Problem* problem);      // outlives this
  virtual ~Objective() = default;

  void Reset(const Placement& placement);          // all tasks placed
  void Move(uint32_t task, uint32_t site);
  void Swap(uint32_t a, uint32_t b);
  Score score() const;
  const Placement& placement() const { return placement_; }
  const Loads& loads() const { return loads_; }
  const Problem& problem() const { return *problem_; }

 protected:
  // Bytes of `pairs` pairs of tasks on two sites; all negative: they go again. there or back may be 0.
  virtual void AddPair(uint32_t a, uint32_t b, double there, double back, int pairs) = 0;
  // A member joins (+1) or leaves (-1) an all-to-all at a site, as sender or as receiver.
  virtual void CountChanged(uint32_t all, uint32_t site, bool from, int by) = 0;
  virtual void ClearCounts() = 0;
  virtual void FinishCounts() {}                   // of a Reset

  const Problem* const problem_;
  Loads loads_;
  int64_t unreachable_ = 0;

 private:
  void Count(uint32_t task, uint32_t site, int by);
  void CountApart(uint32_t task, uint32_t site, bool joins);

  Placement placement_;
  std::vector<std::vector<uint32_t>> sets_of_;     // of a task; empty if there are no sets
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> where_;  // of each set: sites of its members with their domains
  uint64_t together_ = 0;
};

// Arc 2n: out of hierarchy node n; 2n+1: into it.
class TreeObjective final : public Objective {
 public:
  explicit TreeObjective(const Problem* problem);

 private:
  void AddPair(uint32_t a, uint32_t b, double there, double back, int pairs) override;
  void CountChanged(uint32_t all, uint32_t site, bool from, int by) override;
  void ClearCounts() override;
  void FinishCounts() override;
  void AddNode(uint32_t all, uint32_t node, double sign);

  struct Counts {
    uint32_t from = 0, to = 0;
  };
  std::vector<std::vector<Counts>> counts_;        // of each all-to-all by node
  bool resetting_ = false;
};

// Arcs as in fabric::Routes. For few sites: ways are kept for all pairs that are asked for.
class RoutedObjective final : public Objective {
 public:
  RoutedObjective(const Problem* problem, const topology::Graph* graph, const fabric::Routes* routes);
  static constexpr size_t kMaxSites = 512;

 private:
  void AddPair(uint32_t a, uint32_t b, double there, double back, int pairs) override;
  void CountChanged(uint32_t all, uint32_t site, bool from, int by) override;
  void ClearCounts() override;

  struct ArcShare {
    uint32_t arc;
    double share;
  };
  struct WayOf {
    bool known = false, there_is = false;
    std::vector<ArcShare> arcs;
  };
  const WayOf& Way(uint32_t a, uint32_t b);

  const fabric::Routes* const routes_;
  std::vector<WayOf> ways_;                        // a * sites + b
  struct Counts {
    uint32_t from = 0, to = 0;
  };
  std::vector<std::vector<Counts>> counts_;        // of each all-to-all by site
};

}  // namespace sluice::placement
