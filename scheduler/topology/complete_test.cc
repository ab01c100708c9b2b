#include "scheduler/topology/complete.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice::topology {
namespace {

class CompleteTest : public ::testing::Test {
 protected:
  uint32_t Host(const std::string& name) { return graph.Add(VertexKind::kHost, name).value(); }
  uint32_t Switch(const std::string& name) { return graph.Add(VertexKind::kSwitch, name).value(); }
  uint32_t Inside(VertexKind kind, const std::string& name, uint32_t host) { return graph.Add(kind, name, host).value(); }
  uint32_t Link(uint32_t a, uint32_t b, Medium medium = Medium::kUnknown, double speed = 0, uint32_t cables = 1) {
    return graph.Connect(a, b, medium, speed, 0, cables).value();
  }
  double Speed(uint32_t link) { return graph.link(link).bytes_per_second; }

  Graph graph;
};

TEST_F(CompleteTest, ATreeGetsItsOversubscriptionAtEachLevel) {
  const uint32_t root = Switch("root");
  uint32_t host_link = 0, up = 0;
  for (int leaf = 0; leaf < 2; ++leaf) {
    const uint32_t at = Switch("s" + std::to_string(leaf));
    for (int i = 0; i < 4; ++i) host_link = Link(at, Host("n" + std::to_string(4 * leaf + i)));
    up = Link(at, root, Medium::kUnknown, 0, 2);
  }
  const uint32_t spare = Link(Switch("top"), root);
  Complete(&graph, {.host_link_bytes_per_second = 10, .oversubscription = 2});
  EXPECT_DOUBLE_EQ(Speed(host_link), 10);
  EXPECT_DOUBLE_EQ(Speed(up), 20);      // both cables together
  EXPECT_DOUBLE_EQ(Speed(spare), 20);   // 40 below the root
  EXPECT_EQ(graph.link(up).source, Source::kAssumed);
  EXPECT_GT(graph.link(up).latency_s, 0);
  EXPECT_EQ(graph.vertex(graph.Find("n0")).slots, 1u);
}

TEST_F(CompleteTest, WhatAFileSaidStaysAndGuidesTheRest) {
  const uint32_t leaf = Switch("leaf"), spine0 = Switch("spine0"), spine1 = Switch("spine1");
  const uint32_t fast = Link(Host("n0"), leaf, Medium::kInfiniband, 100);
  const uint32_t known = Link(leaf, spine0, Medium::kInfiniband, 60, 2), other = Link(leaf, spine1, Medium::kInfiniband);
  Complete(&graph, {.host_link_bytes_per_second = 10});
  EXPECT_DOUBLE_EQ(Speed(fast), 100);
  EXPECT_DOUBLE_EQ(Speed(known), 60);
  EXPECT_DOUBLE_EQ(Speed(other), 30);   // as the known cables of the same switch
  EXPECT_EQ(graph.link(known).source, Source::kFile);
}

TEST_F(CompleteTest, InsideOfHostsEachMediumHasItsSpeed) {
  const uint32_t host = Host("n0"), leaf = Switch("leaf"), cpu = Inside(VertexKind::kCpu, "n0/cpu0", host);
  const uint32_t gpu0 = Inside(VertexKind::kGpu, "n0/gpu0", host), gpu1 = Inside(VertexKind::kGpu, "n0/gpu1", host);
  const uint32_t nic = Inside(VertexKind::kNic, "n0/nic0", host);
  const uint32_t nvlink = Link(gpu0, gpu1, Medium::kNvlink, 0, 12), pcie = Link(gpu0, cpu, Medium::kPcie);
  const uint32_t card = Link(nic, cpu, Medium::kPcie), network = Link(nic, leaf, Medium::kInfiniband, 50e9);
  const uint32_t socket = Link(cpu, Inside(VertexKind::kCpu, "n0/cpu1", host), Medium::kSocket);
  const uint32_t nvswitch = Link(gpu0, Switch("nvswitch"), Medium::kNvlink, 0, 18);
  Complete(&graph, {});
  EXPECT_DOUBLE_EQ(Speed(nvlink), 12 * 20e9);
  EXPECT_DOUBLE_EQ(Speed(nvswitch), 18 * 20e9);
  EXPECT_DOUBLE_EQ(Speed(pcie), 24e9);
  EXPECT_DOUBLE_EQ(Speed(card), 50e9);   // no slower than the network behind it
  EXPECT_DOUBLE_EQ(Speed(network), 50e9);
  EXPECT_DOUBLE_EQ(Speed(socket), 10e9);
  EXPECT_EQ(graph.vertex(host).slots, 2u);
}

TEST_F(CompleteTest, EqualsAndUnreachedSwitchesGetAHostsSpeed) {
  const uint32_t a = Switch("a"), b = Switch("b");
  Link(Host("n0"), a);
  Link(Host("n1"), b);
  const uint32_t ring = Link(a, b), lonely = Link(Switch("c"), Switch("d"));
  Complete(&graph, {.host_link_bytes_per_second = 7, .oversubscription = -1});   // nonsense is as if not given
  EXPECT_DOUBLE_EQ(Speed(ring), 7);
  EXPECT_DOUBLE_EQ(Speed(lonely), 7);
}

}  // namespace
}  // namespace sluice::topology
