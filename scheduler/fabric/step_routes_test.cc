#include "scheduler/fabric/step_routes.h"

#include <map>
#include <memory>
#include <string>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/topology/complete.h"
#include "scheduler/topology/generate.h"

namespace sluice::fabric {
namespace {

using topology::Graph;
using topology::Medium;
using topology::VertexKind;

// Two racks of two hosts: "a0" and "a1" on "ra", "b0" and "b1" on "rb", 100 MB/s to hosts, 20 between racks and core.
struct TwoRacks {
  TwoRacks() {
    const uint32_t core = *graph.Add(VertexKind::kSwitch, "core");
    for (const std::string rack : {"a", "b"}) {
      const uint32_t leaf = *graph.Add(VertexKind::kSwitch, "r" + rack);
      EXPECT_TRUE(graph.Connect(leaf, core, Medium::kEthernet, 20e6).ok());
      for (const char* host : {"0", "1"}) {
        hosts.push_back(*graph.Add(VertexKind::kHost, rack + host));
        EXPECT_TRUE(graph.Connect(hosts.back(), leaf, Medium::kEthernet, 100e6).ok());
      }
    }
    topology::Complete(&graph, {});
    routes = Routes::Create(&graph);
  }
  std::string Via(const HostWay& way) const {
    std::string text;
    for (const HostWay::Stop& stop : way.via) text += graph.vertex(stop.vertex).name + (stop.of > 1 ? "*" + std::to_string(stop.of) : "") + " ";
    return text;
  }
  Graph graph;
  std::vector<uint32_t> hosts;
  std::unique_ptr<Routes> routes;
};

TEST(Ways, NameSwitchesInOrderAndTheNarrowestLink) {
  const TwoRacks net;
  const auto ways = WaysBetween(net.graph, *net.routes, net.hosts[0], net.hosts[3]);
  ASSERT_EQ(ways.size(), 1u);
  EXPECT_EQ(net.Via(ways[0]), "ra core rb ");
  EXPECT_EQ(ways[0].share, 1);
  EXPECT_EQ(net.graph.vertex(net.graph.link(ways[0].narrowest / 2).a).name, "ra");
  EXPECT_EQ(ways[0].narrowest % 2, 0u);   // from ra to core, the first of two that are as narrow
  EXPECT_TRUE(WaysBetween(net.graph, *net.routes, net.hosts[0], net.hosts[0]).empty());
}

TEST(Ways, RailsAreToldApartByTheirCards) {
  // Host a has a card in each of two networks, b hangs on both.
  Graph graph;
  const uint32_t a = *graph.Add(VertexKind::kHost, "a"), b = *graph.Add(VertexKind::kHost, "b");
  for (int rail = 0; rail < 2; ++rail) {
    const uint32_t net = *graph.Add(VertexKind::kSwitch, "net" + std::to_string(rail));
    const uint32_t nic = *graph.Add(VertexKind::kNic, "a/mlx5_" + std::to_string(rail), a);
    ASSERT_TRUE(graph.Connect(a, nic, Medium::kPcie, 30e9).ok());
    ASSERT_TRUE(graph.Connect(nic, net, Medium::kEthernet, rail == 0 ? 10e9 : 1e9).ok());
    ASSERT_TRUE(graph.Connect(b, net, Medium::kEthernet, 10e9).ok());
  }
  topology::Complete(&graph, {});
  const auto routes = Routes::Create(&graph);
  const auto ways = WaysBetween(graph, *routes, a, b);
  ASSERT_EQ(ways.size(), 2u);
  for (size_t rail = 0; rail < 2; ++rail) {
    ASSERT_EQ(ways[rail].via.size(), 2u);
    EXPECT_EQ(graph.vertex(ways[rail].via[0].vertex).name, "a/mlx5_" + std::to_string(rail));
    EXPECT_DOUBLE_EQ(ways[rail].share, 0.5);
    EXPECT_DOUBLE_EQ(routes->BytesPerSecond(ways[rail].narrowest), rail == 0 ? 10e9 : 1e9);
  }
}

TEST(Ways, ManyEqualOnesStandForOneAnother) {
  for (const uint32_t spines : {3u, 16u}) {
    const Graph graph = *topology::SpineLeaf({.leaves = 2, .spines = spines, .hosts_per_leaf = 2, .host = {.link_bytes_per_second = 1e9}});
    const auto routes = Routes::Create(&graph);
    const uint32_t from = graph.Find("n0"), to = graph.Find("n3");
    uint32_t narrowest = topology::kNone;
    EXPECT_EQ(CountWays(graph, *routes, from, to, &narrowest), spines);
    const auto ways = WaysBetween(graph, *routes, from, to);
    ASSERT_EQ(ways.size(), spines <= kMaxWays ? spines : 1);
    ASSERT_EQ(ways[0].via.size(), 3u);
    EXPECT_EQ(ways[0].via[1].of, spines <= kMaxWays ? 1 : spines);
    EXPECT_EQ(routes->BytesPerSecond(ways[0].narrowest), routes->BytesPerSecond(narrowest));
  }
}

TEST(Ways, RailsStayApartWhereSpinesDoNot) {
  const Graph graph = *topology::Rails({.groups = 2, .hosts_per_group = 2, .rails = 4, .spines = 4});
  const auto routes = Routes::Create(&graph);
  const auto ways = WaysBetween(graph, *routes, graph.Find("n0"), graph.Find("n3"));
  ASSERT_EQ(ways.size(), 4u);
  for (size_t rail = 0; rail < 4; ++rail) {
    ASSERT_EQ(ways[rail].via.size(), 5u);   // card, leaf, spine, leaf, card
    EXPECT_EQ(graph.vertex(ways[rail].via[0].vertex).name, "n0/nic" + std::to_string(rail));
    EXPECT_EQ(ways[rail].via[2].of, 4u);
    EXPECT_DOUBLE_EQ(ways[rail].share, 0.25);
  }
}

TEST(StepRoutes, PushesAndRepliesOfAPair) {
  const TwoRacks net;
  StepSpec spec{.workers = net.hosts, .servers = {net.hosts[0]}, .shards = {{.server = 0, .bytes = 1000}}, .trees = {}};
  spec.push_ratio = 0.25;
  StepRoutes step(&net.graph, net.routes.get(), net.hosts);
  step.AddStep(spec);
  const auto found = step.Busiest(100);
  ASSERT_EQ(found.routes.size(), 6u);   // three workers elsewhere, there and back
  EXPECT_EQ(found.left_out, 0u);
  EXPECT_FALSE(found.joined);
  EXPECT_FALSE(found.parallel);
  // Replies to the other rack keep a narrow link busy for longest.
  for (size_t i = 0; i < 6; ++i) {
    const StepRoute& route = found.routes[i];
    EXPECT_EQ(route.uses, static_cast<uint32_t>(kPushesAndReplies));
    EXPECT_DOUBLE_EQ(route.bytes, route.to == net.hosts[0] ? 250 : 1000);
    EXPECT_EQ(net.Via(route.way), i < 4 ? (route.to == net.hosts[0] ? "rb core ra " : "ra core rb ") : "ra ");
  }
  EXPECT_EQ(found.routes[0].from, net.hosts[0]);
  const auto two = step.Busiest(2);
  EXPECT_EQ(two.routes.size(), 2u);
  EXPECT_EQ(two.left_out, 4u);
}

TEST(StepRoutes, TreesForwardAndRingsGoRound) {
  const TwoRacks net;
  StepSpec spec{.workers = net.hosts, .servers = {net.hosts[0], net.hosts[2]}, .shards = {{.server = 0, .bytes = 1000, .tree = 0}}, .trees = {}};
  spec.trees.push_back({.nodes = {{.server = 1, .parent = -1, .ranks = {2, 3}}}});
  spec.collective_bytes = 800;
  StepRoutes step(&net.graph, net.routes.get(), net.hosts);
  step.AddStep(spec);
  step.Add(net.hosts[0], net.hosts[1], 50, kCopies);
  std::map<std::pair<uint32_t, uint32_t>, StepRoute> of;
  for (const StepRoute& route : step.Busiest(100).routes) of[{route.from, route.to}] = route;
  const auto at = [&](size_t a, size_t b) { return of[{net.hosts[a], net.hosts[b]}]; };
  const double ring = 2 * 0.75 * 800;
  EXPECT_EQ(at(2, 0).uses, static_cast<uint32_t>(kForwards));
  EXPECT_DOUBLE_EQ(at(2, 0).bytes, 1000);
  EXPECT_EQ(at(3, 2).uses, static_cast<uint32_t>(kPushesAndReplies));
  EXPECT_EQ(at(3, 0).uses, static_cast<uint32_t>(kCollectives));   // its push stays in the rack
  EXPECT_DOUBLE_EQ(at(3, 0).bytes, ring);
  EXPECT_EQ(at(0, 1).uses, static_cast<uint32_t>(kPushesAndReplies | kCopies | kCollectives));
  EXPECT_DOUBLE_EQ(at(0, 1).bytes, 1000 + 50 + ring);
}

// The bytes of all pairs are those that the loads of hosts' links say, joined or not.
TEST(StepRoutes, BytesAreThoseOfTheLoads) {
  for (const uint32_t leaves : {4u, 40u}) {   // 32 and 320 hosts
    const Graph graph = *topology::SpineLeaf({.leaves = leaves, .spines = 2, .hosts_per_leaf = 8, .host = {.slots = 2, .link_bytes_per_second = 1e9}});
    const auto routes = Routes::Create(&graph);
    const std::vector<uint32_t> hosts = graph.Hosts();
    StepSpec spec;
    for (const uint32_t host : hosts) spec.workers.insert(spec.workers.end(), 2, host);
    for (size_t i = 0; i < hosts.size(); i += 3) {
      spec.shards.push_back({.server = static_cast<uint32_t>(spec.servers.size()), .bytes = 100.0 + static_cast<double>(i)});
      spec.servers.push_back(hosts[i]);
    }
    const auto model = StepModel::Create(routes.get(), spec);
    ASSERT_TRUE(model.ok());
    double expected = 0;
    for (const ArcLoad& load : model->Predict(routes->arcs()).busiest) {
      const topology::Link& link = graph.link(load.arc / 2);
      if (graph.vertex(load.arc % 2 == 0 ? link.a : link.b).kind == VertexKind::kHost) expected += load.bytes;
    }
    StepRoutes step(&graph, routes.get(), hosts);
    step.AddStep(spec);
    const auto found = step.Busiest(size_t{1} << 20);
    double bytes = 0;
    for (const StepRoute& route : found.routes) bytes += route.bytes;
    EXPECT_NEAR(bytes / expected, 1, 1e-6);
    EXPECT_EQ(found.joined, leaves > 32);
    EXPECT_TRUE(found.parallel);
    EXPECT_EQ(found.left_out, 0u);
    EXPECT_EQ(found.routes[0].from_hosts, found.joined ? 8u : 1u);
  }
}

TEST(StepRoutes, ManyRacksAreJoinedByWhatIsAbove) {
  const auto made = topology::Zones({.zones = 4, .spines_per_zone = 2, .cores = 2, .leaves_per_zone = 70, .hosts_per_leaf = 2});
  ASSERT_TRUE(made.ok()) << made.status();
  const auto routes = Routes::Create(&*made);
  const std::vector<uint32_t> hosts = made->Hosts();
  StepSpec spec{.workers = hosts, .servers = {hosts[0]}, .shards = {{.server = 0, .bytes = 1}}, .trees = {}};
  StepRoutes step(&*made, routes.get(), hosts);
  step.AddStep(spec);
  const auto found = step.Busiest(1000);
  ASSERT_FALSE(found.routes.empty());
  EXPECT_EQ(found.routes[0].from_hosts, 140u);
  double bytes = 0;
  for (const StepRoute& route : found.routes) bytes += route.bytes;
  EXPECT_NEAR(bytes, 2 * 559, 1e-6);
}

}  // namespace
}  // namespace sluice::fabric
