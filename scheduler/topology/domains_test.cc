#include "scheduler/topology/domains.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "base/philox.h"
#include "scheduler/topology/complete.h"
#include "scheduler/topology/generate.h"

namespace sluice::topology {
namespace {

std::vector<std::string> Names(const Graph& graph, const Domains& domains, const std::string& host) {
  std::vector<std::string> names;
  for (const uint32_t id : domains.Of(graph.Find(host))) names.push_back(graph.vertex(domains.all()[id].vertex).name);
  return names;
}

TEST(DomainsTest, InATreeEachSwitchAboveIsOne) {
  const Graph graph = Zones({.zones = 2, .spines_per_zone = 1, .cores = 1, .leaves_per_zone = 2, .hosts_per_leaf = 2}).value();
  const Domains domains = Domains::Find(graph);
  EXPECT_EQ(Names(graph, domains, "n0"), (std::vector<std::string>{"n0", "z0l0", "z0s0", "c0"}));
  EXPECT_EQ(graph.vertex(domains.all()[domains.Common(graph.Find("n0"), graph.Find("n3"))].vertex).name, "z0s0");
  EXPECT_EQ(graph.vertex(domains.all()[domains.Common(graph.Find("n0"), graph.Find("n7"))].vertex).name, "c0");
  EXPECT_EQ(domains.all()[domains.Of(graph.Find("n0"))[1]].hosts, 2u);
  EXPECT_TRUE(domains.Of(graph.Find("c0")).empty());
  EXPECT_TRUE(domains.Of(kNone).empty());
}

TEST(DomainsTest, WithTwoSpinesOnlyTheLeafIsOne) {
  const Graph graph = SpineLeaf({.leaves = 3, .spines = 2, .hosts_per_leaf = 2}).value();
  const Domains domains = Domains::Find(graph);
  EXPECT_EQ(Names(graph, domains, "n4"), (std::vector<std::string>{"n4", "leaf2"}));
  EXPECT_EQ(domains.Common(graph.Find("n0"), graph.Find("n4")), kNone);
}

TEST(DomainsTest, ALeafOfARailOptimisedFabricIsNone) {
  const Graph graph = Rails({.groups = 2, .hosts_per_group = 3, .rails = 4, .spines = 2}).value();
  EXPECT_EQ(Names(graph, Domains::Find(graph), "n5"), (std::vector<std::string>{"n5"}));
}

TEST(DomainsTest, OneLeafOfTwoHostsOnEachSideIsOneThoughSidesAreEqual) {
  const Graph graph = SpineLeaf({.leaves = 2, .spines = 1, .hosts_per_leaf = 1}).value();
  EXPECT_EQ(Names(graph, Domains::Find(graph), "n0"), (std::vector<std::string>{"n0", "leaf0", "spine0"}));
}

TEST(DomainsTest, AChainOfManySwitchesIsCutAndQuick) {
  Graph graph;
  uint32_t last = kNone;
  for (int i = 0; i < 20000; ++i) {
    const uint32_t at = graph.Add(VertexKind::kSwitch, "s" + std::to_string(i)).value();
    ASSERT_TRUE(graph.Connect(at, graph.Add(VertexKind::kHost, "n" + std::to_string(i)).value(), Medium::kEthernet).ok());
    if (last != kNone) {
      ASSERT_TRUE(graph.Connect(last, at, Medium::kEthernet).ok());
    }
    last = at;
  }
  graph.Finish();
  const Domains domains = Domains::Find(graph);
  EXPECT_EQ(Names(graph, domains, "n1")[1], "s1");
  EXPECT_LT(domains.all().size(), 45000u);
}

// The definition, taken literally: lose a switch, look at what is left.
std::map<uint32_t, std::set<uint32_t>> Slow(const Graph& graph) {
  std::map<uint32_t, std::set<uint32_t>> parted;   // host -> switches
  const auto is_switch = [&](uint32_t v) { return graph.vertex(v).host == kNone; };
  std::map<uint32_t, std::set<uint32_t>> attached;
  for (const Link& link : graph.links())
    if (is_switch(link.a) != is_switch(link.b))
      attached[is_switch(link.a) ? link.b : link.a].insert(is_switch(link.a) ? link.a : link.b);
  const auto parts = [&](uint32_t lost) {   // of each switch that is left
    std::map<uint32_t, uint32_t> of;
    uint32_t count = 0;
    for (uint32_t root = 0; root < graph.vertices().size(); ++root) {
      if (!is_switch(root) || root == lost || of.count(root)) continue;
      std::vector<uint32_t> queue = {root};
      of[root] = count;
      while (!queue.empty()) {
        const uint32_t v = queue.back();
        queue.pop_back();
        for (const Graph::Half& half : graph.Incident(v))
          if (is_switch(half.to) && half.to != lost && !of.count(half.to)) {
            of[half.to] = count;
            queue.push_back(half.to);
          }
      }
      ++count;
    }
    return of;
  };
  const auto before = parts(kNone);
  for (uint32_t lost = 0; lost < graph.vertices().size(); ++lost) {
    if (!is_switch(lost)) continue;
    const auto after = parts(lost);
    std::map<uint32_t, std::pair<double, int>> weight;   // of each part of the component of the lost one
    for (const auto& [v, part] : after)
      if (before.at(v) == before.at(lost)) ++weight[part].second;
    for (const auto& [host, leaves] : attached)
      for (const uint32_t leaf : leaves)
        if (leaf != lost && before.at(leaf) == before.at(lost)) weight[after.at(leaf)].first += 1.0 / static_cast<double>(leaves.size());
    uint32_t main = kNone;
    std::pair<double, int> best = {-1, 0};
    for (auto& [part, w] : weight) {
      w.first = std::round(w.first * 1e6);
      if (w == best) main = kNone;
      if (w > best) {
        main = part;
        best = w;
      }
    }
    if (best.first <= 0) main = kNone;
    for (const auto& [host, leaves] : attached) {
      const bool cut = std::all_of(leaves.begin(), leaves.end(), [&](uint32_t leaf) {
        return leaf == lost || (before.at(leaf) == before.at(lost) && (main == kNone || after.at(leaf) != main));
      });
      if (cut) parted[host].insert(lost);
    }
  }
  return parted;
}

TEST(DomainsTest, AsTheDefinitionOnRandomGraphs) {
  PhiloxRandom random(7);
  for (int round = 0; round < 400; ++round) {
    Graph graph;
    std::vector<uint32_t> switches;
    const uint32_t count = 1 + random.Below(12), hosts = 1 + random.Below(12);
    for (uint32_t i = 0; i < count; ++i) {
      switches.push_back(graph.Add(VertexKind::kSwitch, "s" + std::to_string(i)).value());
      if (i > 0 && random.Chance(0.9)) {
        ASSERT_TRUE(graph.Connect(switches[i], switches[random.Below(i)], Medium::kEthernet).ok());
      }
    }
    for (uint32_t i = 0; i < random.Below(count); ++i) {
      const uint32_t a = switches[random.Below(count)], b = switches[random.Below(count)];
      if (a != b) {
        ASSERT_TRUE(graph.Connect(a, b, Medium::kEthernet).ok());
      }
    }
    for (uint32_t i = 0; i < hosts; ++i) {
      const uint32_t host = graph.Add(VertexKind::kHost, "n" + std::to_string(i)).value();
      const uint32_t homes = random.Chance(0.7) ? 1 : 2;
      for (uint32_t h = 0; h < homes; ++h) ASSERT_TRUE(graph.Connect(host, switches[random.Below(count)], Medium::kEthernet).ok());
    }
    graph.Finish();
    const Domains domains = Domains::Find(graph);
    const auto slow = Slow(graph);
    for (const uint32_t host : graph.Hosts()) {
      std::set<uint32_t> fast;
      uint32_t narrower = 0;
      for (const uint32_t id : domains.Of(host)) {
        EXPECT_GE(domains.all()[id].hosts, narrower);
        narrower = domains.all()[id].hosts;
        if (domains.all()[id].vertex != host) fast.insert(domains.all()[id].vertex);
      }
      EXPECT_EQ(fast, slow.count(host) ? slow.at(host) : std::set<uint32_t>()) << "round " << round << " host " << host;
    }
  }
}

TEST(TiersTest, OfZones) {
  const Graph graph = Zones({.zones = 2, .spines_per_zone = 2, .cores = 2, .leaves_per_zone = 2, .hosts_per_leaf = 4, .zone_ratio = 8,
                             .host = {.slots = 2, .link_bytes_per_second = 10}}).value();
  std::vector<uint32_t> hosts;
  for (const uint32_t host : graph.Hosts()) hosts.insert(hosts.end(), 2, host);
  const Tiers tiers = FindTiers(graph, hosts);
  ASSERT_EQ(tiers.tiers.size(), 4u);
  EXPECT_EQ(tiers.tiers[0].name, "host");
  EXPECT_EQ(tiers.tiers[3].name, "core");
  EXPECT_DOUBLE_EQ(tiers.tiers[0].bytes_per_second, kMemoryBytesPerSecond);
  EXPECT_DOUBLE_EQ(tiers.tiers[1].bytes_per_second, 5);       // two workers on a host
  EXPECT_DOUBLE_EQ(tiers.tiers[2].bytes_per_second, 5);       // leaves are not oversubscribed
  EXPECT_DOUBLE_EQ(tiers.tiers[3].bytes_per_second, 0.625);   // 10 out of a zone, 16 workers
  EXPECT_GT(tiers.tiers[3].latency_s, tiers.tiers[1].latency_s);
  EXPECT_EQ(tiers.coordinates[0], (std::vector<uint32_t>{0, 0, 0, 0}));
  EXPECT_EQ(tiers.coordinates[31], (std::vector<uint32_t>{15, 3, 1, 0}));
}

TEST(TiersTest, OnlyTiersThatJoinWorkersAreThere) {
  const Graph graph = Zones({.zones = 2, .spines_per_zone = 1, .cores = 1, .leaves_per_zone = 2, .hosts_per_leaf = 2}).value();
  const auto host = [&](const char* name) { return graph.Find(name); };
  EXPECT_EQ(FindTiers(graph, {host("n0"), host("n0")}).tiers.size(), 1u);
  const Tiers across = FindTiers(graph, {host("n0"), host("n4"), host("n0")});
  ASSERT_EQ(across.tiers.size(), 2u);
  EXPECT_EQ(across.coordinates[1], (std::vector<uint32_t>{1, 0}));
  EXPECT_TRUE(FindTiers(graph, {}).coordinates.empty());
}

TEST(TiersTest, HostsOfRailsAreARackAndPartedFabricsMeetNowhere) {
  const Graph rails = Rails({.groups = 2, .hosts_per_group = 2, .rails = 4, .spines = 2, .host = {.link_bytes_per_second = 10}}).value();
  const Tiers tiers = FindTiers(rails, rails.Hosts());
  ASSERT_EQ(tiers.tiers.size(), 3u);
  EXPECT_DOUBLE_EQ(tiers.tiers[1].bytes_per_second, 40);
  EXPECT_EQ(tiers.coordinates[3], (std::vector<uint32_t>{3, 1, 0}));

  Graph parted;
  for (const char* name : {"a", "b"})
    ASSERT_TRUE(parted.Connect(parted.Add(VertexKind::kSwitch, name).value(),
                               parted.Add(VertexKind::kHost, std::string("n") + name).value(), Medium::kEthernet).ok());
  Complete(&parted, {});
  const Tiers none = FindTiers(parted, parted.Hosts());
  ASSERT_EQ(none.tiers.size(), 2u);
  EXPECT_EQ(none.tiers[1].bytes_per_second, 0);
  EXPECT_EQ(none.coordinates[1], (std::vector<uint32_t>{1, 0}));
}

TEST(TiersTest, GpusOfAHostHaveTheirOwnLinks) {
  Graph graph;
  const uint32_t host = graph.Add(VertexKind::kHost, "n0").value();
  const uint32_t a = graph.Add(VertexKind::kGpu, "n0/gpu0", host).value(), b = graph.Add(VertexKind::kGpu, "n0/gpu1", host).value();
  ASSERT_TRUE(graph.Connect(a, b, Medium::kNvlink, 0, 0, 12).ok());
  Complete(&graph, {});
  EXPECT_DOUBLE_EQ(FindTiers(graph, {host, host}).tiers[0].bytes_per_second, 240e9);
}

}  // namespace
}  // namespace sluice::topology
