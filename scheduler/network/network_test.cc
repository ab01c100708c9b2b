#include "scheduler/network/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::network {
namespace {

using testing::HasSubstr;
using topology::Graph;
using topology::kNone;
using topology::Medium;
using topology::VertexKind;

proto::TopologyConfig Config() {
  proto::TopologyConfig config;
  config.set_link_bytes(100'000'000);
  config.set_oversubscription(2);
  return config;
}

// r1: a, b; r2: c. joined: both under one core.
Graph Racks(bool joined) {
  Graph graph;
  const auto host = [&](const char* name, const char* leaf) {
    const uint32_t h = graph.Add(VertexKind::kHost, name).value(), l = graph.Add(VertexKind::kSwitch, leaf).value();
    EXPECT_TRUE(graph.Connect(h, l, Medium::kEthernet).ok());
  };
  host("a", "r1");
  host("b", "r1");
  host("c", "r2");
  if (joined) {
    const uint32_t core = graph.Add(VertexKind::kSwitch, "core").value();
    EXPECT_TRUE(graph.Connect(graph.Find("r1"), core, Medium::kEthernet, 20e6).ok());
    EXPECT_TRUE(graph.Connect(graph.Find("r2"), core, Medium::kEthernet, 20e6).ok());
  }
  return graph;
}

std::unique_ptr<Network> Make(Graph graph, const std::vector<std::string>& hosts) {
  auto network = Network::Create(std::move(graph), Config());
  EXPECT_TRUE(network.ok()) << network.status();
  (*network)->AddHosts(hosts);
  return *std::move(network);
}

TEST(NetworkTest, WithoutFilesAllHostsHangOnOneSwitch) {
  const auto network = Make(Graph(), {"x", "y", "x", ""});
  ASSERT_NE(network->Host("x"), kNone);
  EXPECT_EQ(network->Host("z"), kNone);
  EXPECT_EQ(network->Host("(unlisted)"), kNone);   // no host
  EXPECT_EQ(network->routes().Hops(network->Host("x"), network->Host("y")), 2u);
  EXPECT_DOUBLE_EQ(network->routes().BytesPerSecond(0), 100e6);
  EXPECT_THAT(network->Summary(), HasSubstr("2 hosts, 1 switch, 2 links, no topology file"));
  EXPECT_THAT(network->Notes(), testing::Contains(HasSubstr("no topology is given")));
}

TEST(NetworkTest, FabricsThatNoFileJoinsMeetOnlyWhereMembersNeedIt) {
  EXPECT_EQ(Make(Racks(false), {"a", "b"})->graph().Find("(assumed core)"), kNone);
  const auto network = Make(Racks(false), {"a", "c"});
  ASSERT_NE(network->graph().Find("(assumed core)"), kNone);
  EXPECT_EQ(network->routes().Hops(network->Host("a"), network->Host("c")), 4u);
  EXPECT_THAT(network->Notes(), testing::Contains(HasSubstr("does not join the 2 fabrics")));
}

TEST(NetworkTest, AHostThatNoFileNamesIsReachedAndNamed) {
  const auto network = Make(Racks(true), {"a"});
  const uint64_t before = network->version();
  network->AddHosts({"stranger"});
  EXPECT_GT(network->version(), before);
  EXPECT_NE(network->routes().Hops(network->Host("a"), network->Host("stranger")), kNone);
  EXPECT_THAT(network->Notes(), testing::Contains(HasSubstr("stranger")));
  // The name of a switch cannot be a host's: such a member is nowhere, and nothing breaks.
  network->AddHosts({"core"});
  EXPECT_EQ(network->Host("core"), kNone);
  EXPECT_NE(network->Host("stranger"), kNone);
}

TEST(NetworkTest, MeasurementsChangeRoutesAndAreShown) {
  const auto network = Make(Racks(true), {"a", "b", "c"});
  EXPECT_FALSE(network->Refresh(kSecond));
  const auto said = [&](const std::string& from, const std::string& to) {
    for (const proto::LinkEstimate& row : network->Estimates(2 * kSecond, 100))
      if (row.from() == from && row.to() == to) return row;
    return proto::LinkEstimate();
  };
  EXPECT_EQ(said("r1", "core").source(), "file");
  EXPECT_EQ(said("a", "r1").source(), "assumed");
  network->Take("a", "c", 1, {.goodput = 1e6, .rtt_s = 2e-3, .retransmits = 5, .at = kSecond});
  network->Take("a", "nowhere", 1, {.goodput = 1e6, .at = kSecond});
  EXPECT_TRUE(network->Refresh(kSecond));
  EXPECT_FALSE(network->Refresh(kSecond));
  const proto::LinkEstimate up = said("r1", "core"), down = said("core", "r2");
  EXPECT_EQ(up.source(), "measured");
  EXPECT_DOUBLE_EQ(std::min(up.bytes_per_second(), down.bytes_per_second()), 1e6);
  EXPECT_DOUBLE_EQ(up.nominal(), 20e6);
  EXPECT_EQ(up.age_ms(), 1000u);
  EXPECT_DOUBLE_EQ(up.rtt_us(), 2000);
  EXPECT_EQ(up.retransmits(), 5u);
  EXPECT_EQ(network->Estimates(2 * kSecond, 3).size(), 3u);
  // A new host makes everything anew; what was measured is put in again by the next Refresh.
  network->AddHosts({"stranger"});
  EXPECT_TRUE(network->Refresh(kSecond));
  EXPECT_EQ(said("r1", "core").source(), "measured");
  EXPECT_TRUE(network->Refresh(kSecond + kForgotten));
  EXPECT_EQ(said("r1", "core").source(), "file");
}

}  // namespace
}  // namespace sluice::network
