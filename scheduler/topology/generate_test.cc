#include "scheduler/topology/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace sluice::topology {
namespace {

// Hops between two vertices, by plain search.
uint32_t Distance(const Graph& graph, uint32_t from, uint32_t to) {
  std::vector<uint32_t> distance(graph.vertices().size(), kNone), queue = {from};
  distance[from] = 0;
  for (size_t i = 0; i < queue.size(); ++i)
    for (const Graph::Half& half : graph.Incident(queue[i]))
      if (distance[half.to] == kNone) {
        distance[half.to] = distance[queue[i]] + 1;
        queue.push_back(half.to);
      }
  return distance[to];
}

uint32_t Farthest(const Graph& graph) {
  uint32_t most = 0;
  for (const uint32_t host : graph.Hosts()) most = std::max(most, Distance(graph, graph.Hosts()[0], host));
  return most;
}

double Speed(const Graph& graph, const std::string& a, const std::string& b) {
  const uint32_t link = graph.FindLink(graph.Find(a), graph.Find(b), Medium::kEthernet);
  return link == kNone ? 0 : graph.link(link).bytes_per_second;
}

TEST(GenerateTest, AFatTreeHasFullBandwidth) {
  const Graph graph = FatTree({.k = 4}).value();
  EXPECT_EQ(graph.Hosts().size(), 16u);
  EXPECT_EQ(graph.vertices().size(), 16u + 20u);
  EXPECT_EQ(graph.links().size(), 48u);
  EXPECT_EQ(Farthest(graph), 6u);
  for (const Vertex& vertex : graph.vertices())
    if (vertex.kind == VertexKind::kSwitch) {
      EXPECT_EQ(graph.Incident(graph.Find(vertex.name)).size(), 4u) << vertex.name;
    }
  EXPECT_FALSE(FatTree({.k = 3}).ok());
  EXPECT_FALSE(FatTree({.k = 4096}).ok());
}

TEST(GenerateTest, RatiosLieBetweenLevels) {
  const Graph flat = SpineLeaf({.leaves = 3, .spines = 2, .hosts_per_leaf = 4, .ratio = 4, .host = {.link_bytes_per_second = 8}}).value();
  EXPECT_EQ(flat.Hosts().size(), 12u);
  EXPECT_DOUBLE_EQ(Speed(flat, "leaf2", "spine1"), 4);
  EXPECT_DOUBLE_EQ(Speed(flat, "n11", "leaf2"), 8);

  const Graph zones = Zones({.zones = 3, .spines_per_zone = 2, .cores = 2, .leaves_per_zone = 7, .hosts_per_leaf = 4, .leaf_ratio = 2,
                             .zone_ratio = 7, .host = {.slots = 8, .link_bytes_per_second = 10}}).value();
  EXPECT_EQ(zones.Hosts().size(), 84u);
  EXPECT_EQ(zones.vertex(zones.Hosts()[0]).slots, 8u);
  EXPECT_DOUBLE_EQ(Speed(zones, "z1l3", "z1s0"), 10);      // 40 below, 20 above, two spines
  EXPECT_DOUBLE_EQ(Speed(zones, "z1s0", "c1"), 5);         // 70 below, 10 above, two cores
  EXPECT_EQ(Farthest(zones), 6u);
}

TEST(GenerateTest, EachRailIsANetworkOfItsOwnInsideAGroup) {
  const Graph graph = Rails({.groups = 2, .hosts_per_group = 3, .rails = 4, .spines = 2}).value();
  EXPECT_EQ(graph.Hosts().size(), 6u);
  EXPECT_GT(Speed(graph, "n1/nic2", "g0r2"), 0);
  EXPECT_EQ(Speed(graph, "n1/nic2", "g0r1"), 0);
  EXPECT_EQ(Distance(graph, graph.Find("n0"), graph.Find("n2")), 4u);
  EXPECT_EQ(Distance(graph, graph.Find("n0"), graph.Find("n5")), 6u);
  EXPECT_TRUE(Rails({.groups = 1, .spines = 0}).ok());
  EXPECT_FALSE(Rails({.groups = 2, .spines = 0}).ok());
}

TEST(GenerateTest, ATorusHasWraps) {
  const Graph graph = Torus({.dims = {4, 3, 2}}).value();
  EXPECT_EQ(graph.Hosts().size(), 24u);
  EXPECT_EQ(graph.links().size(), 24u + 24u + 24u + 12u);
  EXPECT_EQ(Farthest(graph), 2u + 2 + 1 + 1);   // to the host's switch and back
  EXPECT_GT(Speed(graph, "t0-1-1", "t3-1-1"), 0);
  EXPECT_EQ(Torus({.dims = {1, 1}}).value().links().size(), 1u);
  EXPECT_FALSE(Torus({.dims = {4, 0}}).ok());
  EXPECT_FALSE(Torus({.dims = {100000, 100000}}).ok());
}

TEST(GenerateTest, AHypercubeAndADragonfly) {
  const Graph cube = Hypercube(5, 2, {}).value();
  EXPECT_EQ(cube.Hosts().size(), 64u);
  EXPECT_EQ(cube.links().size(), 64u + 80u);
  EXPECT_EQ(Farthest(cube), 7u);
  EXPECT_FALSE(Hypercube(40, 1, {}).ok());

  const Graph fly = Dragonfly({.routers = 4, .global = 2, .hosts_per_router = 2}).value();
  EXPECT_EQ(fly.Hosts().size(), 72u);
  EXPECT_EQ(fly.links().size(), 72u + 9 * 6 + 36);
  EXPECT_EQ(Farthest(fly), 5u);
  for (const Vertex& vertex : fly.vertices())
    if (vertex.kind == VertexKind::kSwitch) {
      EXPECT_EQ(fly.Incident(fly.Find(vertex.name)).size(), 7u) << vertex.name;
    }
}

}  // namespace
}  // namespace sluice::topology
