#include "scheduler/placement/solver.h"

#include <algorithm>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/baselines.h"
#include "scheduler/placement/exact.h"
#include "scheduler/placement/instances.h"
#include "scheduler/placement/layouts.h"
#include "scheduler/placement/partition.h"

namespace sluice::placement {
namespace {

using ::testing::HasSubstr;

// A cluster in use: some hosts have little room, some none.
Problem RandomProblem(uint64_t seed) {
  PhiloxRandom random(seed);
  Problem problem = RegularProblem({2 + random.Below(3), 1 + random.Below(3), 1 + random.Below(5)}, {4e9, 4e9, 4e9}, 0);
  uint32_t places = 0;
  for (Site& site : problem.sites) places += site.places = random.Below(9);
  if (places < 8) problem.sites[0].places += 8;
  places = std::max(8u, places);
  const uint32_t workers = 4 * (1 + random.Below(places / 4)), servers = random.Below(static_cast<uint32_t>(problem.sites.size()) + 1);
  SetWorkers(workers, &problem);
  for (uint32_t s = 0; s < servers; ++s) problem.tasks.push_back({Role::kServer, s});
  problem.traffic = Traffic(workers + servers);
  if (random.Chance(0.5)) problem.blocks = {2, 4};
  for (uint32_t r = 0; r < workers; ++r) {
    problem.traffic.Add(r, r ^ 1, 8e6);
    problem.traffic.Add(r, (r + 4) % workers, 1e6 * random.Below(4));
  }
  if (servers > 0) {
    Traffic::AllToAll all{.from = {}, .to = {}, .there = 1e6, .back = 1e6};
    for (uint32_t t = 0; t < workers + servers; ++t) (t < workers ? all.from : all.to).push_back(t);
    problem.traffic.AddAllToAll(all);
    for (uint32_t s = 0; s + 1 < servers; s += 2) problem.apart.push_back({workers + s, workers + s + 1});
  }
  if (random.Chance(0.3)) {
    problem.fixed.assign(problem.tasks.size(), kNone);
    const auto roomy = std::find_if(problem.sites.begin(), problem.sites.end(), [](const Site& s) { return s.places > 0; });
    problem.fixed[random.Below(workers)] = static_cast<uint32_t>(roomy - problem.sites.begin());
  }
  problem.traffic.Finish();
  return problem;
}

Score ScoreOf(const Problem& problem, const Placement& placement) {
  TreeObjective objective(&problem);
  objective.Reset(placement);
  return objective.score();
}

TEST(Solve, NeverExceedsRoomIsNeverWorseThanABaselineAndIsTheSameAgain) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Problem problem = RandomProblem(seed);
    const SolveOptions options{.seed = seed, .starts = 4, .evaluations = 3000};
    const auto solution = Solve(problem, options);
    ASSERT_TRUE(solution.ok()) << seed << ": " << solution.status();
    ASSERT_TRUE(Check(problem, solution->placement).ok()) << seed << ": " << Check(problem, solution->placement);
    for (const auto& baseline : {BestFit(problem), RoundRobin(problem), Random(problem, seed)}) {
      ASSERT_TRUE(baseline.ok()) << seed << ": " << baseline.status();
      ASSERT_TRUE(Check(problem, *baseline).ok()) << seed << ": " << Check(problem, *baseline);
      EXPECT_FALSE(Better(ScoreOf(problem, *baseline), solution->score)) << seed;
    }
    EXPECT_LE(solution->evaluations, options.evaluations + 2 * options.starts) << seed;
    const auto again = Solve(problem, options);
    EXPECT_EQ(again->placement, solution->placement) << seed;
    EXPECT_EQ(again->start, solution->start) << seed;
  }
}

TEST(Solve, EachLayoutPlacesAllWithinRoom) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Problem problem = RandomProblem(seed);
    for (const Layout& layout : LayoutsFor(problem, false)) {
      for (const Seating seating : {Seating::kBeside, Seating::kApart, Seating::kWide}) {
        Placement placement = LayOut(problem, layout, 1);
        Seat(problem, seating, &placement);
        ASSERT_TRUE(Check(problem, placement).ok()) << seed << " " << layout.Name() << ": " << Check(problem, placement);
      }
    }
  }
}

TEST(Solve, CopiesLieInDifferentDomainsWhereThereIsAChoice) {
  // 8 workers fit one rack, and are best there; the two servers still go to different racks.
  Problem problem = RegularProblem({3, 4}, {1e9, 4e9}, 2);
  for (uint32_t t = 0; t < 10; ++t) problem.tasks.push_back({t < 8 ? Role::kWorker : Role::kServer, t < 8 ? t : t - 8});
  problem.traffic = Traffic(10);
  Traffic::AllToAll all{.from = {0, 1, 2, 3, 4, 5, 6, 7}, .to = {8, 9}, .there = 1e6, .back = 1e6};
  problem.traffic.AddAllToAll(all);
  problem.traffic.Finish();
  problem.apart = {{8, 9}};
  const auto solution = Solve(problem, {});
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_EQ(solution->score.broken, 0u);
  EXPECT_NE(problem.sites[solution->placement[8]].failure_domain, problem.sites[solution->placement[9]].failure_domain);
}

TEST(Solve, WithOneDomainCopiesAtLeastLieOnDifferentHosts) {
  Problem problem = RegularProblem({1, 3}, {1e9, 4e9}, 2);
  for (Site& site : problem.sites) site.seats = 2;
  for (uint32_t t = 0; t < 4; ++t) problem.tasks.push_back({t < 2 ? Role::kWorker : Role::kServer, t % 2});
  problem.traffic = Traffic(4);
  problem.traffic.Add(0, 2, 1e6);
  problem.traffic.Add(0, 3, 1e6);
  problem.traffic.Finish();
  problem.apart = {{2, 3}};
  const auto solution = Solve(problem, {});
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_NE(solution->placement[2], solution->placement[3]);
}

TEST(Solve, KeepsBlocksWholeOnAClusterInUse) {
  // Hosts with room for 5 and 4 in turn, groups of 4 that talk much: nobody needs to split one, best fit does.
  Problem problem = RegularProblem({2, 4}, {2e9, 2e9}, 4);
  for (uint32_t s = 0; s < 8; s += 2) problem.sites[s].places = 5;
  SetWorkers(24, &problem);
  problem.blocks = {4};
  for (uint32_t r = 0; r < 24; ++r) problem.traffic.Add(r, r / 4 * 4 + (r + 1) % 4, 1e8);
  problem.traffic.Finish();
  const auto solution = Solve(problem, {});
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_EQ(solution->score.hops, 0);
  EXPECT_GT(ScoreOf(problem, *BestFit(problem)).hops, 0);
}

TEST(Solve, SaysHowMuchRoomIsMissing) {
  Problem problem = RegularProblem({2, 2}, {1e9, 1e9}, 2);
  SetWorkers(11, &problem);
  problem.traffic.Finish();
  const absl::Status status = Solve(problem, {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("11 workers, and room for 8 on 4 hosts; 3 are too many"));
}

TEST(Improve, MovesOnlyWhatHelps) {
  Problem problem = SixteenNodes();
  PhiloxRandom random(3);
  SetWorkers(16, &problem);
  AddGridTraffic(&random, 4, 1e8, 1e7, &problem);
  problem.traffic.Finish();
  const auto best = Solve(problem, {});
  ASSERT_TRUE(best.ok());
  const auto again = Improve(problem, best->placement, {});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->placement, best->placement);
  // Zones are joined through links of which one is nearly gone: less goes over it afterwards.
  problem.hierarchy.nodes[1].up /= 10;
  const Score before = ScoreOf(problem, best->placement);
  const auto improved = Improve(problem, best->placement, {});
  ASSERT_TRUE(improved.ok());
  EXPECT_FALSE(Better(before, improved->score));
  EXPECT_TRUE(Check(problem, improved->placement).ok());
  const auto from_random = Improve(problem, *Random(problem, 1), {});
  EXPECT_TRUE(Better(from_random->score, ScoreOf(problem, *Random(problem, 1))));
}

double BruteForce(const Problem& problem) {
  Placement placement(problem.tasks.size());
  for (uint32_t t = 0; t < placement.size(); ++t) placement[t] = t;   // a host each
  double best = 1e300;
  do {
    best = std::min(best, ScoreOf(problem, placement).time);
  } while (std::next_permutation(placement.begin(), placement.end()));
  return best;
}

TEST(SolveExactly, AgreesWithBruteForce) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    PhiloxRandom random(seed);
    Problem problem = RegularProblem({seed % 2 == 0 ? 3u : 2u, seed % 2 == 0 ? 2u : 3u}, {1e9, 2e9}, 1);
    if (seed % 3 == 0) problem.hierarchy.nodes[1].up = 5e8;   // not all are alike
    SetWorkers(6, &problem);
    AddRandomTraffic(&random, 0.6, &problem);
    problem.traffic.Finish();
    const auto exact = SolveExactly(problem, *Random(problem, seed), 1 << 20);
    ASSERT_TRUE(exact.ok()) << exact.status();
    EXPECT_TRUE(Check(problem, exact->placement).ok());
    EXPECT_NEAR(exact->time, BruteForce(problem), 1e-9) << seed;
    EXPECT_NEAR(exact->time, ScoreOf(problem, exact->placement).time, 1e-9) << seed;
    const auto solution = Solve(problem, {.seed = seed});
    EXPECT_GE(solution->score.time, exact->time * (1 - 1e-9)) << seed;
    EXPECT_LE(solution->score.time, exact->time * 1.07) << seed;
  }
}

TEST(CutIntoParts, GivesEachPartItsSizeAndIsTheSameAgain) {
  PhiloxRandom random(7);
  for (int round = 0; round < 20; ++round) {
    const uint32_t n = 2 + random.Below(200);
    WeightedGraph graph;
    std::vector<std::vector<std::pair<uint32_t, double>>> edges(n);
    for (uint32_t v = 0; v + 1 < n; ++v) {
      const uint32_t other = v + 1 + random.Below(std::min(8u, n - v - 1));
      const double weight = 1 + random.Below(1000);
      edges[v].emplace_back(other, weight);
      edges[other].emplace_back(v, weight);
    }
    graph.first.push_back(0);
    for (const auto& of : edges) {
      for (const auto& [to, weight] : of) {
        graph.to.push_back(to);
        graph.weight.push_back(weight);
      }
      graph.first.push_back(static_cast<uint32_t>(graph.to.size()));
    }
    std::vector<uint32_t> sizes(1 + random.Below(6));
    for (uint32_t i = 0; i < n; ++i) ++sizes[random.Below(static_cast<uint32_t>(sizes.size()))];
    const std::vector<uint32_t> part = CutIntoParts(graph, sizes, 5);
    std::vector<uint32_t> count(sizes.size());
    for (const uint32_t p : part) ++count[p];
    EXPECT_EQ(count, sizes);
    EXPECT_EQ(part, CutIntoParts(graph, sizes, 5));
  }
}

}  // namespace
}  // namespace sluice::placement
