// The solver against schedulers that do not look at a job's traffic, on one fabric in several states of use.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "bench/topology/cases.h"
#include "bench/topology/rows.h"
#include "scheduler/placement/arc_loads.h"
#include "scheduler/placement/baselines.h"
#include "scheduler/placement/solver.h"

namespace sluice::bench {
namespace {

using placement::Placement;
using placement::Problem;

constexpr int kSeeds = 3;
constexpr double kCrossGoal = 0.30, kTimeGoal = 0.25, kUseGoal = 1.20;

struct Measured {
  double seconds = 0;      // of the most loaded arc, by ways
  double cross_zone = 0;   // bytes that leave a zone
};

Measured Measure(const Cluster& cluster, const Problem& problem, const Placement& placement) {
  const placement::ArcLoads loads = placement::LoadsOf(problem, placement, cluster.graph, *cluster.routes);
  Measured measured;
  measured.seconds = placement::BusySeconds(loads.bytes, *cluster.routes);
  placement::TreeObjective tree(&problem);
  tree.Reset(placement);
  for (uint32_t n = 0; n < problem.hierarchy.nodes.size(); ++n)
    if (problem.hierarchy.nodes[n].depth == 1) measured.cross_zone += tree.loads().bytes(2 * n);
  return measured;
}

double Less(double mine, double theirs) { return theirs <= 0 ? 0 : 1 - mine / theirs; }

}  // namespace

nlohmann::json Versus(uint64_t evaluations) {
  nlohmann::json rows = nlohmann::json::array();
  std::fprintf(stderr, "\n%-30s %-34s %-12s %10s %10s %12s %10s\n", "cluster", "job", "against", "step", "solver's", "cross-zone", "step");
  struct Sum {
    double cross = 0, time = 0, use = 0, cross_mine = 0, cross_theirs = 0;
    int crossing = 0, crosses_more = 0, count = 0, wins = 0, even = 0;
  };
  std::map<std::string, Sum> sums;
  for (const Use use : {Use::kEmpty, Use::kWholeHosts, Use::kFragments}) {
    for (const Job& job : Jobs()) {
      for (int seed = 1; seed <= (use == Use::kEmpty ? 1 : kSeeds); ++seed) {
        const Cluster cluster = ThreeTiers(4, 4, 8, use, static_cast<uint64_t>(seed));
        const Problem problem = ProblemOf(cluster, job);
        const auto solution = placement::Solve(problem, {.evaluations = evaluations, .graph = &cluster.graph, .routes = cluster.routes.get()});
        if (!solution.ok()) {
          std::fprintf(stderr, "%s, %s: %s\n", cluster.name.c_str(), job.name.c_str(), solution.status().ToString().c_str());
          continue;
        }
        const Measured mine = Measure(cluster, problem, solution->placement);
        const std::pair<const char*, absl::StatusOr<Placement>> others[] = {{"best-fit", placement::BestFit(problem)},
                                                                            {"round-robin", placement::RoundRobin(problem)},
                                                                            {"random", placement::Random(problem, 77)}};
        for (const auto& [name, placement] : others) {
          const Measured theirs = Measure(cluster, problem, *placement);
          const double cross = Less(mine.cross_zone, theirs.cross_zone), time = Less(mine.seconds, theirs.seconds);
          // Bytes of a step are the same: a shorter step is a better use of the same network.
          const double use_ratio = mine.seconds > 0 ? theirs.seconds / mine.seconds : 1;
          Sum& sum = sums[name];
          if (theirs.cross_zone > 0) sum.cross += cross, ++sum.crossing;
          sum.cross_mine += mine.cross_zone;
          sum.cross_theirs += theirs.cross_zone;
          sum.crosses_more += mine.cross_zone > 1.01 * theirs.cross_zone;   // traded for a shorter step
          sum.time += time;
          sum.use += std::log(std::max(1e-9, use_ratio));
          sum.wins += time > 0.01;
          sum.even += time <= 0.01 && time >= -0.01;
          ++sum.count;
          std::fprintf(stderr, "%-30s %-34s %-12s %7.1f ms %7.1f ms %10.0f %% %8.0f %%%s\n", cluster.name.c_str(), job.name.c_str(), name,
                       1e3 * theirs.seconds, 1e3 * mine.seconds, -100 * cross, -100 * time,
                       time <= 0.01 ? "  no gain" : "");
          rows.push_back({{"cluster", cluster.name}, {"seed", seed}, {"job", job.name}, {"against", name}, {"step_s", theirs.seconds},
                          {"solver_step_s", mine.seconds}, {"cross_zone_bytes", theirs.cross_zone}, {"solver_cross_zone_bytes", mine.cross_zone},
                          {"cross_zone_less", cross}, {"step_less", time}, {"bandwidth_use_ratio", use_ratio}, {"start", solution->start}});
        }
      }
    }
  }
  nlohmann::json summary = nlohmann::json::array();
  std::fprintf(stderr, "\n%-12s %6s %6s %6s %14s %12s %13s %12s %15s\n", "against", "cases", "wins", "even", "cross-zone", "of all bytes",
               "more in", "step", "bandwidth use");
  for (const auto& [name, sum] : sums) {
    const double cross = sum.crossing > 0 ? sum.cross / sum.crossing : 0, time = sum.time / sum.count, use = std::exp(sum.use / sum.count);
    std::fprintf(stderr, "%-12s %6d %6d %6d %6.0f %% of %-3d %10.0f %% %4d of %-3d %10.0f %% %12.2f x\n", name.c_str(), sum.count, sum.wins, sum.even,
                 -100 * cross, sum.crossing, -100 * Less(sum.cross_mine, sum.cross_theirs), sum.crosses_more, sum.count, -100 * time, use);
    summary.push_back({{"against", name}, {"cases", sum.count}, {"wins", sum.wins}, {"even", sum.even}, {"cross_zone_less", cross},
                       {"cases_with_cross_zone_bytes", sum.crossing}, {"cross_zone_bytes_less_in_all", Less(sum.cross_mine, sum.cross_theirs)},
                       {"cases_with_more_cross_zone_bytes", sum.crosses_more}, {"step_less", time}, {"bandwidth_use_ratio", use},
                       {"goal_met", cross >= kCrossGoal && time >= kTimeGoal && use >= kUseGoal}});
  }
  return {{"summary", summary}, {"rows", rows}};
}

}  // namespace sluice::bench
