#include "scheduler/placement/sites.h"

#include "gtest/gtest.h"
#include "scheduler/placement/instances.h"
#include "scheduler/placement/objective.h"
#include "scheduler/placement/solver.h"
#include "scheduler/topology/generate.h"

namespace sluice::placement {
namespace {

topology::Graph SomeZones() {
  auto graph = topology::Zones({.zones = 2, .spines_per_zone = 2, .cores = 2, .leaves_per_zone = 2, .hosts_per_leaf = 3,
                                .leaf_ratio = 2, .zone_ratio = 7, .host = {.slots = 8}});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

TEST(SitesOf, KeepsToRulesAndWhatIsFree) {
  const topology::Graph graph = SomeZones();
  const topology::Domains domains = topology::Domains::Find(graph);
  SiteRules rules{.slots_per_worker = 3};
  rules.exclude = {"n0"};
  rules.used_slots = {{"n1", 4}, {"n2", 100}};
  const std::vector<Site> sites = SitesOf(graph, domains, rules);
  ASSERT_EQ(sites.size(), 11u);
  EXPECT_EQ(graph.vertex(sites[0].host).name, "n1");
  EXPECT_EQ(sites[0].places, 1u);
  EXPECT_EQ(sites[1].places, 0u);
  EXPECT_EQ(sites[2].places, 2u);
  EXPECT_EQ(sites[0].failure_domain, sites[1].failure_domain);   // a leaf
  EXPECT_NE(sites[0].failure_domain, sites[2].failure_domain);
  rules.only = {"n5", "nothing"};
  EXPECT_EQ(SitesOf(graph, domains, rules).size(), 1u);
}

TEST(HierarchyOf, HasRacksAndZonesWithWhatLeavesThem) {
  const topology::Graph graph = SomeZones();
  const std::vector<Site> sites = SitesOf(graph, topology::Domains::Find(graph), {});
  const Hierarchy tree = HierarchyOf(graph, sites, nullptr);
  ASSERT_TRUE(tree.Check().ok());
  ASSERT_EQ(tree.nodes.size(), 1u + 2 + 4 + 12);
  EXPECT_EQ(tree.nodes[0].up, Hierarchy::kNoLimit);
  const Hierarchy::Node& host = tree.nodes[tree.leaf[7]];
  EXPECT_EQ(host.depth, 3u);
  EXPECT_EQ(host.up, 12.5e9);
  EXPECT_NEAR(tree.nodes[host.parent].up, 3 * 12.5e9 / 2, 1);
  EXPECT_NEAR(tree.nodes[tree.nodes[host.parent].parent].down, 6 * 12.5e9 / 2 / 7, 1);
}

TEST(HierarchyOf, UnconnectedFabricsHaveARootEachAndAHostAloneInARackIsOneNode) {
  topology::Graph graph;
  const auto add = [&](topology::VertexKind kind, const char* name) { return *graph.Add(kind, name); };
  const uint32_t a = add(topology::VertexKind::kHost, "a"), b = add(topology::VertexKind::kHost, "b"), c = add(topology::VertexKind::kHost, "c");
  const uint32_t s = add(topology::VertexKind::kSwitch, "s"), t = add(topology::VertexKind::kSwitch, "t");
  for (const auto& [host, leaf, rate] : {std::tuple(a, s, 1e9), std::tuple(b, s, 2e9), std::tuple(c, t, 3e9)})
    ASSERT_TRUE(graph.Connect(host, leaf, topology::Medium::kEthernet, rate, 1e-6).ok());
  graph.Finish();
  for (const uint32_t host : {a, b, c}) graph.vertex(host).slots = 1;
  const std::vector<Site> sites = SitesOf(graph, topology::Domains::Find(graph), {});
  const Hierarchy tree = HierarchyOf(graph, sites, nullptr);
  ASSERT_TRUE(tree.Check().ok());
  ASSERT_EQ(tree.nodes.size(), 4u);
  EXPECT_EQ(tree.nodes[tree.leaf[1]].up, 2e9);
  EXPECT_EQ(tree.nodes[tree.leaf[2]].parent, kNone);
  EXPECT_EQ(tree.nodes[tree.leaf[2]].up, 3e9);
}

// On a tree of switches domains and arcs are two views of the same.
TEST(RoutedObjective, EqualsTheTreeOfDomainsAndItsRecomputation) {
  const auto graph = topology::Zones({.zones = 2, .spines_per_zone = 1, .cores = 1, .leaves_per_zone = 2, .hosts_per_leaf = 3,
                                      .leaf_ratio = 2, .zone_ratio = 7, .host = {.slots = 4}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto routes = fabric::Routes::Create(&*graph);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    PhiloxRandom random(seed);
    Problem problem;
    problem.sites = SitesOf(*graph, topology::Domains::Find(*graph), {});
    problem.hierarchy = HierarchyOf(*graph, problem.sites, routes.get());
    SetWorkers(40, &problem);
    AddRandomTraffic(&random, 0.1, &problem);
    Traffic::AllToAll all{.from = {}, .to = {}, .there = 1e6, .back = 5e5};
    for (uint32_t t = 0; t < 40; ++t) (t < 25 ? all.from : all.to).push_back(t);
    problem.traffic.AddAllToAll(all);
    problem.traffic.Finish();
    ASSERT_FALSE(problem.traffic.all_to_alls().empty());
    Placement placement;
    for (uint32_t t = 0; t < 40; ++t) placement.push_back(random.Below(12));
    RoutedObjective routed(&problem, &*graph, routes.get());
    TreeObjective tree(&problem);
    routed.Reset(placement);
    tree.Reset(placement);
    for (int i = 0; i < 60; ++i) {
      const uint32_t task = random.Below(40), site = random.Below(12);
      routed.Move(task, site);
      tree.Move(task, site);
    }
    RoutedObjective fresh(&problem, &*graph, routes.get());
    fresh.Reset(routed.placement());
    EXPECT_NEAR(routed.score().time, fresh.score().time, 1e-9 * fresh.score().time);
    EXPECT_NEAR(routed.score().time, tree.score().time, 1e-9 * tree.score().time);
    EXPECT_NEAR(routed.score().cut, fresh.score().cut, 1e-9 * fresh.score().cut);
    EXPECT_NEAR(routed.score().cut, tree.score().cut, 1e-6 * tree.score().cut);
    EXPECT_NEAR(routed.score().hops, tree.score().hops, 1e-6 * tree.score().hops);
    EXPECT_EQ(routed.score().broken, 0u);
  }
}

TEST(Solve, GoesRoundADegradedLinkInARing) {
  // Four switches in a ring, two hosts each: domains say nothing here, arcs do.
  auto graph = topology::Torus({.dims = {4}, .hosts_per_switch = 2});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto routes = fabric::Routes::Create(&*graph);
  Problem problem;
  problem.sites = SitesOf(*graph, topology::Domains::Find(*graph), {});
  problem.hierarchy = HierarchyOf(*graph, problem.sites, routes.get());
  SetWorkers(4, &problem);
  for (uint32_t r = 0; r < 4; ++r) problem.traffic.Add(r, (r + 1) % 4, 1e9);
  problem.traffic.Finish();
  uint32_t between = kNone;   // the first link of two switches
  for (uint32_t l = 0; l < graph->links().size() && between == kNone; ++l)
    if (graph->vertex(graph->link(l).a).host == kNone && graph->vertex(graph->link(l).b).host == kNone) between = l;
  routes->SetBytesPerSecond(fabric::Routes::ArcOf(between, true), 1e6);
  routes->SetBytesPerSecond(fabric::Routes::ArcOf(between, false), 1e6);
  const auto solution = Solve(problem, {.graph = &*graph, .routes = routes.get()});
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_LT(solution->score.time, 1.0);
}

}  // namespace
}  // namespace sluice::placement
