#include "scheduler/placement/objective.h"

#include "gtest/gtest.h"
#include "scheduler/placement/instances.h"

namespace sluice::placement {
namespace {

TEST(Loads, KnowTheBusiestArc) {
  Loads loads;
  PhiloxRandom random(1);
  for (int i = 0; i < 37; ++i) loads.AddArc(1e6 * (1 + random.Below(9)), i % 2 == 0);
  for (int i = 0; i < 2000; ++i) {
    const uint32_t arc = random.Below(37);
    loads.Add(arc, loads.bytes(arc) > 500 ? -loads.bytes(arc) : random.Below(1000));
    double most = 0;
    for (uint32_t a = 0; a < 37; ++a) most = std::max(most, loads.busy(a));
    ASSERT_EQ(loads.MaxBusy(), most);
    ASSERT_EQ(loads.busy(loads.Busiest()), most);
  }
}

TEST(Loads, AnArcThatIsDownIsFiniteAndWorstOfAll) {
  Loads loads;
  loads.AddArc(0, false);
  loads.AddArc(1e3, false);
  loads.Add(0, 10);
  loads.Add(1, 10);
  EXPECT_EQ(loads.Busiest(), 0u);
  loads.Add(0, -10);
  EXPECT_EQ(loads.Busiest(), 1u);
}

// Bytes of each domain's edge, from each pair of tasks on its own.
std::vector<double> SlowLoads(const Problem& problem, const Placement& placement) {
  const Hierarchy& tree = problem.hierarchy;
  std::vector<double> loads(2 * tree.nodes.size());
  const auto send = [&](uint32_t from, uint32_t to, double bytes) {
    const auto holds = [&](uint32_t node, uint32_t task) {
      uint32_t n = tree.leaf[placement[task]];
      while (n != node && n != kNone) n = tree.nodes[n].parent;
      return n == node;
    };
    for (uint32_t n = 0; n < tree.nodes.size(); ++n) {
      if (holds(n, from) && !holds(n, to)) loads[2 * n] += bytes;
      if (!holds(n, from) && holds(n, to)) loads[2 * n + 1] += bytes;
    }
  };
  for (uint32_t t = 0; t < problem.tasks.size(); ++t)
    for (const Traffic::Peer& peer : problem.traffic.Peers(t)) send(t, peer.task, peer.out);
  for (const Traffic::AllToAll& all : problem.traffic.all_to_alls()) {
    for (const uint32_t from : all.from) {
      for (const uint32_t to : all.to) {
        send(from, to, all.there);
        send(to, from, all.back);
      }
    }
  }
  return loads;
}

TEST(TreeObjective, EqualsRecomputationAfterAnyMoves) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    PhiloxRandom random(seed);
    Problem problem = RegularProblem({3, 2, 3}, {3e9, 2e9, 1e9}, 4);
    SetWorkers(40, &problem);
    AddRandomTraffic(&random, 0.1, &problem);
    Traffic::AllToAll all{.from = {}, .to = {}, .there = 1e6, .back = 5e5};
    for (uint32_t t = 0; t < 40; ++t) {
      if (t < 30) all.from.push_back(t);
      if (t >= 25) all.to.push_back(t);   // some are both
    }
    problem.traffic.AddAllToAll(all);
    problem.traffic.Finish();
    ASSERT_FALSE(problem.traffic.all_to_alls().empty());
    problem.apart = {{0, 1, 2}, {2, 3}, {4, 5, 6, 7}};
    Placement placement;
    for (uint32_t t = 0; t < 40; ++t) placement.push_back(random.Below(18));
    TreeObjective objective(&problem);
    objective.Reset(placement);
    for (int i = 0; i < 100; ++i) {
      if (i % 3 == 0) objective.Swap(random.Below(40), random.Below(40));
      else objective.Move(random.Below(40), random.Below(18));
    }
    TreeObjective fresh(&problem);
    fresh.Reset(objective.placement());
    EXPECT_EQ(objective.score().broken, fresh.score().broken);
    EXPECT_NEAR(objective.score().time, fresh.score().time, 1e-9 * fresh.score().time);
    EXPECT_NEAR(objective.score().cut, fresh.score().cut, 1e-9 * fresh.score().cut);
    EXPECT_NEAR(objective.score().hops, fresh.score().hops, 1e-9 * fresh.score().hops);
    const std::vector<double> slow = SlowLoads(problem, objective.placement());
    for (uint32_t arc = 0; arc < slow.size(); ++arc) ASSERT_NEAR(objective.loads().bytes(arc), slow[arc], 1e-6 * (1 + slow[arc])) << arc;
  }
}

TEST(TreeObjective, CountsPairsThatBelongApartAndPairsWithoutAWay) {
  Problem problem = RegularProblem({2, 2}, {1e9, 1e9}, 4);
  const uint32_t island = problem.hierarchy.AddNode(kNone, Hierarchy::kNoLimit, Hierarchy::kNoLimit);
  problem.hierarchy.AddSite(island, 1e9, 1e9);
  problem.sites.push_back({.host = 9, .places = 4, .seats = 1, .failure_domain = island});
  SetWorkers(3, &problem);
  problem.traffic.Add(0, 1, 100);
  problem.traffic.Add(1, 2, 100);
  problem.traffic.Finish();
  problem.apart = {{0, 1, 2}};
  TreeObjective objective(&problem);
  objective.Reset({0, 0, 1});   // one rack; 0 and 1 on one host
  EXPECT_EQ(objective.score().broken, 4u);
  objective.Move(1, 2);         // the other rack
  EXPECT_EQ(objective.score().broken, 1u);
  objective.Move(2, 4);         // the island: apart, but 1 cannot reach it
  EXPECT_EQ(objective.score().broken, 1u);
  objective.Move(1, 4);
  EXPECT_EQ(objective.score().broken, 3u);   // 0 and 1 without a way; 1 and 2 on one host and so in one domain
}

TEST(Score, ComparesInOrderAndIgnoresRounding) {
  EXPECT_TRUE(Better({.broken = 0, .time = 9}, {.broken = 1, .time = 1}));
  EXPECT_TRUE(Better({.broken = 0, .time = 1, .cut = 9}, {.broken = 0, .time = 2, .cut = 1}));
  EXPECT_TRUE(Better({.broken = 0, .time = 1 + 1e-13, .cut = 1}, {.broken = 0, .time = 1, .cut = 2}));
  EXPECT_FALSE(Better({.broken = 0, .time = 1, .cut = 1, .hops = 1}, {.broken = 0, .time = 1, .cut = 1, .hops = 1}));
}

}  // namespace
}  // namespace sluice::placement
