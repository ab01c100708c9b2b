#include "scheduler/topology/graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace sluice::topology {
namespace {

uint32_t Host(Graph& graph, const std::string& name) { return graph.Add(VertexKind::kHost, name).value(); }
uint32_t Switch(Graph& graph, const std::string& name) { return graph.Add(VertexKind::kSwitch, name).value(); }

TEST(GraphTest, ANameIsOneVertexOfOneKind) {
  Graph graph;
  const uint32_t host = Host(graph, "n1");
  EXPECT_EQ(Host(graph, "n1"), host);
  EXPECT_EQ(graph.Find("n1"), host);
  EXPECT_EQ(graph.Find("n2"), kNone);
  EXPECT_EQ(graph.vertex(host).host, host);
  EXPECT_FALSE(graph.Add(VertexKind::kSwitch, "n1").ok());
  EXPECT_FALSE(graph.Add(VertexKind::kSwitch, "").ok());
  EXPECT_FALSE(graph.Add(VertexKind::kSwitch, std::string(256, 'x')).ok());
  ASSERT_TRUE(graph.Add(VertexKind::kGpu, "n1/gpu0", host).ok());
  EXPECT_FALSE(graph.Add(VertexKind::kGpu, "n1/gpu0", Host(graph, "n2")).ok());
}

TEST(GraphTest, CablesBetweenTheSameEndsAreOneLink) {
  Graph graph;
  const uint32_t a = Switch(graph, "a"), b = Switch(graph, "b");
  const uint32_t link = graph.Connect(a, b, Medium::kInfiniband, 10).value();
  EXPECT_EQ(graph.Connect(b, a, Medium::kInfiniband, 30).value(), link);
  EXPECT_EQ(graph.Connect(a, b, Medium::kInfiniband).value(), link);   // as fast as the others
  EXPECT_EQ(graph.link(link).cables, 3u);
  EXPECT_DOUBLE_EQ(graph.link(link).bytes_per_second, 60);
  EXPECT_NE(graph.Connect(a, b, Medium::kEthernet, 1).value(), link);
  EXPECT_FALSE(graph.Connect(a, a, Medium::kEthernet).ok());
  EXPECT_FALSE(graph.Connect(a, b, Medium::kEthernet, -1).ok());
  EXPECT_FALSE(graph.Connect(a, b, Medium::kEthernet, std::nan("")).ok());
  EXPECT_FALSE(graph.Connect(a, b, Medium::kEthernet, 1, 0, 0).ok());
}

TEST(GraphTest, NeighboursAreThere) {
  Graph graph;
  const uint32_t leaf = Switch(graph, "leaf"), h1 = Host(graph, "h1"), h2 = Host(graph, "h2");
  ASSERT_TRUE(graph.Connect(h1, leaf, Medium::kEthernet).ok());
  ASSERT_TRUE(graph.Connect(leaf, h2, Medium::kEthernet).ok());
  graph.Finish();
  ASSERT_EQ(graph.Incident(leaf).size(), 2u);
  EXPECT_EQ(graph.Incident(leaf)[0].to, h1);
  EXPECT_EQ(graph.Incident(leaf)[1].to, h2);
  ASSERT_EQ(graph.Incident(h2).size(), 1u);
  EXPECT_EQ(graph.Incident(h2)[0].link, 1u);
  EXPECT_EQ(graph.Hosts(), (std::vector<uint32_t>{h1, h2}));
}

TEST(GraphTest, MergingKeepsTheBetterNumbers) {
  Graph cluster, inside;
  const uint32_t leaf = Switch(cluster, "leaf");
  const uint32_t link = cluster.Connect(Host(cluster, "h1"), leaf, Medium::kEthernet).value();
  const uint32_t h1 = Host(inside, "h1");
  const uint32_t gpu = inside.Add(VertexKind::kGpu, "h1/gpu0", h1).value();
  ASSERT_TRUE(inside.Connect(gpu, h1, Medium::kPcie, 32e9).ok());
  ASSERT_TRUE(inside.Connect(h1, Switch(inside, "leaf"), Medium::kEthernet, 5, 1e-6).ok());
  inside.vertex(h1).slots = 8;
  ASSERT_TRUE(cluster.Merge(inside).ok());
  EXPECT_EQ(cluster.vertices().size(), 3u);
  EXPECT_EQ(cluster.links().size(), 2u);
  EXPECT_DOUBLE_EQ(cluster.link(link).bytes_per_second, 5);
  EXPECT_DOUBLE_EQ(cluster.link(link).latency_s, 1e-6);
  EXPECT_EQ(cluster.vertex(cluster.Find("h1")).slots, 8u);
  EXPECT_EQ(cluster.vertex(cluster.Find("h1/gpu0")).host, cluster.Find("h1"));
  // Again: nothing is counted twice. Worse numbers change nothing.
  inside.link(1).source = Source::kAssumed;
  inside.link(1).bytes_per_second = 7;
  ASSERT_TRUE(cluster.Merge(inside).ok());
  EXPECT_EQ(cluster.links().size(), 2u);
  EXPECT_DOUBLE_EQ(cluster.link(link).bytes_per_second, 5);
  // What is a host in one file and a switch in another is refused.
  Graph wrong;
  Host(wrong, "leaf");
  EXPECT_FALSE(cluster.Merge(wrong).ok());
}

}  // namespace
}  // namespace sluice::topology
