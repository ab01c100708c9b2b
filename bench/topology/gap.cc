// How far the solver is from the optimum on 16 nodes in 4 zones.
#include <algorithm>
#include <cstdio>

#include "bench/topology/rows.h"
#include "scheduler/placement/baselines.h"
#include "scheduler/placement/exact.h"
#include "scheduler/placement/instances.h"
#include "scheduler/placement/solver.h"

namespace sluice::bench {
namespace {

using namespace sluice::placement;   // NOLINT: a benchmark of it

Problem Instance(const std::string& kind, uint64_t seed) {
  PhiloxRandom random(seed, 0x676170);
  Problem problem = SixteenNodes();
  SetWorkers(16, &problem);
  if (kind == "random") AddRandomTraffic(&random, 0.4, &problem);
  if (kind == "data x pipeline") AddGridTraffic(&random, random.Chance(0.5) ? 4 : 2, 1e8 * (1 + random.Below(8)), 1e8 * (1 + random.Below(8)), &problem);
  if (kind == "parameter servers") AddServerTraffic(&random, 2 + random.Below(3), 4e8, &problem);
  problem.traffic.Finish();
  return problem;
}

double TimeOf(const Problem& problem, const Placement& placement) {
  TreeObjective objective(&problem);
  objective.Reset(placement);
  return objective.score().time;
}

}  // namespace

nlohmann::json Gap(uint32_t instances, uint32_t first) {
  nlohmann::json rows = nlohmann::json::array();
  std::fprintf(stderr, "%-18s %-12s %9s %9s %12s %10s\n", "traffic, 16 nodes", "solver", "mean gap", "worst", "at optimum", "time");
  for (const std::string kind : {"random", "data x pipeline", "parameter servers"}) {
    struct Sum {
      const char* name;
      double gap = 0, worst = 0, seconds = 0;
      uint32_t at_optimum = 0;
    };
    Sum sums[] = {{.name = "solver"}, {.name = "best-fit"}, {.name = "round-robin"}, {.name = "random"}};
    double exact_seconds = 0;
    uint32_t solved = 0;
    for (uint32_t i = first; i < first + instances; ++i) {
      const Problem problem = Instance(kind, i);
      double t0 = Seconds();
      const auto solution = Solve(problem, {.seed = i});
      sums[0].seconds += Seconds() - t0;
      if (!solution.ok()) continue;
      t0 = Seconds();
      const auto exact = SolveExactly(problem, solution->placement, uint64_t{1} << 28);
      exact_seconds += Seconds() - t0;
      if (!exact.ok()) continue;   // too many partial placements: said below
      ++solved;
      const double times[] = {solution->score.time, TimeOf(problem, *BestFit(problem)), TimeOf(problem, *RoundRobin(problem)),
                              TimeOf(problem, *Random(problem, i))};
      for (size_t s = 0; s < 4; ++s) {
        const double gap = times[s] / exact->time - 1;
        sums[s].gap += gap;
        sums[s].worst = std::max(sums[s].worst, gap);
        sums[s].at_optimum += gap < 1e-6;
      }
    }
    for (const Sum& s : sums) {
      std::fprintf(stderr, "%-18s %-12s %8.2f%% %8.2f%% %7u/%-4u", kind.c_str(), s.name, 100 * s.gap / solved, 100 * s.worst, s.at_optimum, solved);
      std::fprintf(stderr, s.seconds > 0 ? " %7.1f ms\n" : "\n", 1e3 * s.seconds / instances);
      rows.push_back({{"traffic", kind}, {"instances", solved}, {"of", instances}, {"by", s.name}, {"mean_gap_percent", 100 * s.gap / solved},
                      {"worst_gap_percent", 100 * s.worst}, {"at_optimum", s.at_optimum}, {"ms_each", 1e3 * s.seconds / instances},
                      {"exact_ms_each", 1e3 * exact_seconds / instances}});
      if (s.seconds > 0)
        rows.back()["goal_met"] = solved == instances && s.gap / solved <= 0.01 && s.worst <= 0.07;
    }
    std::fprintf(stderr, "%-18s %-12s %39s %7.1f ms\n", kind.c_str(), "exact", "", 1e3 * exact_seconds / instances);
  }
  return rows;
}

}  // namespace sluice::bench
