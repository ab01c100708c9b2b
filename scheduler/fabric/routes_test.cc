#include "scheduler/fabric/routes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "base/philox.h"
#include "scheduler/topology/complete.h"
#include "scheduler/topology/generate.h"

namespace sluice::fabric {
namespace {

using topology::Graph;
using topology::kNone;
using topology::Medium;
using topology::VertexKind;

struct Answer {
  uint32_t hops = kNone;
  double latency = 0;
  std::map<uint32_t, double> shares;   // of arcs
  std::map<uint32_t, uint32_t> distance;   // of vertices, to the receiver
};

uint32_t Tail(const Graph& graph, uint32_t arc) { return arc & 1 ? graph.link(arc / 2).b : graph.link(arc / 2).a; }
uint32_t Head(const Graph& graph, uint32_t arc) { return Tail(graph, arc ^ 1); }

// The definition, taken literally, over the whole graph.
Answer Slow(const Graph& graph, const std::vector<double>& rates, uint32_t from, uint32_t to) {
  Answer answer;
  const auto passable = [&](uint32_t v) {
    const auto& vertex = graph.vertex(v);
    if (v == from || v == to || vertex.kind == VertexKind::kSwitch) return true;
    return (vertex.host == from || vertex.host == to) && vertex.kind != VertexKind::kGpu && vertex.kind != VertexKind::kHost;
  };
  const auto usable = [&](uint32_t arc) {
    const auto& link = graph.link(arc / 2);
    const uint32_t a = graph.vertex(link.a).host, b = graph.vertex(link.b).host;
    return rates[arc] > 0 && passable(link.a) && passable(link.b) && ((a == b && a != kNone) || link.medium <= Medium::kInfiniband);
  };
  std::vector<uint32_t> queue = {to};
  answer.distance[to] = 0;
  for (size_t i = 0; i < queue.size(); ++i)
    for (uint32_t arc = 0; arc < rates.size(); ++arc)
      if (Head(graph, arc) == queue[i] && usable(arc) && !answer.distance.count(Tail(graph, arc))) {
        answer.distance[Tail(graph, arc)] = answer.distance[queue[i]] + 1;
        queue.push_back(Tail(graph, arc));
      }
  if (!answer.distance.count(from)) return answer;
  answer.hops = answer.distance[from];
  std::map<uint32_t, double> at = {{from, 1}};
  for (uint32_t left = answer.hops; left > 0; --left) {
    std::map<uint32_t, double> next;
    for (const auto& [v, share] : at) {
      double cables = 0;
      for (const bool counting : {true, false})
        for (uint32_t arc = 0; arc < rates.size(); ++arc) {
          if (Tail(graph, arc) != v || !usable(arc)) continue;
          const auto found = answer.distance.find(Head(graph, arc));
          if (found == answer.distance.end() || found->second != left - 1) continue;
          const double part = graph.link(arc / 2).cables;
          if (counting) {
            cables += part;
            continue;
          }
          answer.shares[arc] = share * part / cables;
          answer.latency += share * part / cables * graph.link(arc / 2).latency_s;
          next[Head(graph, arc)] += share * part / cables;
        }
    }
    at = next;
  }
  return answer;
}

void ExpectSame(const Graph& graph, const Routes& routes, const std::vector<double>& rates, uint32_t from, uint32_t to) {
  const Answer slow = Slow(graph, rates, from, to);
  std::map<uint32_t, double> shares;
  const bool found = routes.Spread(from, to, [&](uint32_t arc, double share) {
    EXPECT_FALSE(shares.count(arc)) << "arc " << arc << " came twice";
    shares[arc] = share;
  });
  EXPECT_EQ(found, slow.hops != kNone);
  EXPECT_EQ(routes.Hops(from, to), slow.hops);
  ASSERT_EQ(shares.size(), slow.shares.size()) << graph.vertex(from).name << " to " << graph.vertex(to).name;
  std::map<uint32_t, double> cut, in, out;
  for (const auto& [arc, share] : shares) {
    ASSERT_TRUE(slow.shares.count(arc));
    EXPECT_NEAR(share, slow.shares.at(arc), 1e-5);
    cut[slow.distance.at(Tail(graph, arc))] += share;
    out[Tail(graph, arc)] += share;
    in[Head(graph, arc)] += share;
  }
  for (const auto& [distance, share] : cut) EXPECT_NEAR(share, 1, 1e-5);
  for (const auto& [v, share] : out) {
    if (v != from) {
      EXPECT_NEAR(share, in[v], 1e-5);
    }
  }
  if (found && from != to) {
    EXPECT_NEAR(routes.Latency(from, to), slow.latency, 1e-5 * slow.latency);
  }
  // Ways by hash: each is one of the shortest, joined from end to end.
  for (uint64_t hash = 0; hash < 4; ++hash) {
    std::vector<uint32_t> way;
    EXPECT_EQ(routes.Way(from, to, hash, &way), found);
    if (!found || from == to) continue;
    ASSERT_EQ(way.size(), slow.hops);
    uint32_t at = from;
    for (const uint32_t arc : way) {
      EXPECT_TRUE(shares.count(arc));
      EXPECT_EQ(Tail(graph, arc), at);
      at = Head(graph, arc);
    }
    EXPECT_EQ(at, to);
  }
}

std::vector<double> Rates(const Graph& graph) {
  std::vector<double> rates;
  for (const auto& link : graph.links()) rates.insert(rates.end(), 2, link.bytes_per_second);
  return rates;
}

Graph Random(PhiloxRandom& random) {
  Graph graph;
  std::vector<uint32_t> switches;
  const uint32_t count = 1 + random.Below(10), hosts = 2 + random.Below(8);
  const auto connect = [&](uint32_t a, uint32_t b, Medium medium) {
    if (a != b) {
      ASSERT_TRUE(graph.Connect(a, b, medium, 0, 1e-6 * (1 + random.Below(5)), 1 + random.Below(2)).ok());
    }
  };
  for (uint32_t i = 0; i < count; ++i) {
    switches.push_back(graph.Add(VertexKind::kSwitch, "s" + std::to_string(i)).value());
    if (i > 0) connect(switches[i], switches[random.Below(i)], Medium::kEthernet);
  }
  for (uint32_t i = 0; i < 2 * count; ++i) connect(switches[random.Below(count)], switches[random.Below(count)], Medium::kEthernet);
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < hosts; ++i) {
    const std::string name = "n" + std::to_string(i);
    const uint32_t host = graph.Add(VertexKind::kHost, name).value();
    all.push_back(host);
    if (random.Chance(0.4)) {   // some have an inside
      const uint32_t bridge = graph.Add(VertexKind::kBridge, name + "/pci", host).value();
      connect(host, bridge, Medium::kPcie);
      for (uint32_t n = 0; n < 1 + random.Below(3); ++n) {
        const uint32_t nic = graph.Add(VertexKind::kNic, name + "/nic" + std::to_string(n), host).value();
        connect(nic, random.Chance(0.7) ? bridge : host, Medium::kPcie);
        connect(nic, switches[random.Below(count)], Medium::kInfiniband);
        const uint32_t gpu = graph.Add(VertexKind::kGpu, name + "/gpu", host).value();   // a short cut that is none
        connect(gpu, nic, Medium::kPcie);
        connect(gpu, host, Medium::kPcie);
      }
    }
    for (uint32_t n = 0; n < 1 + random.Below(2); ++n) connect(host, switches[random.Below(count)], Medium::kEthernet);
    if (random.Chance(0.2)) connect(host, all[random.Below(i + 1)], Medium::kEthernet);   // back to back
  }
  Complete(&graph, {});
  return graph;
}

// All to all at once, against pair by pair.
void ExpectSameLoads(const Graph& graph, const Routes& routes, PhiloxRandom& random) {
  std::vector<Routes::Part> senders, receivers;
  for (const uint32_t host : graph.Hosts()) {
    for (uint32_t i = 0; i < random.Below(3); ++i) senders.push_back({host, random.Uniform()});
    if (random.Chance(0.6)) receivers.push_back({host, random.Uniform()});
  }
  if (random.Chance(0.05)) receivers.push_back({kNone, 1});
  std::vector<double> fast(routes.arcs()), slow(routes.arcs());
  EXPECT_EQ(routes.AddLoads(senders, receivers, &fast), routes.Routes::AddLoads(senders, receivers, &slow));
  for (size_t arc = 0; arc < fast.size(); ++arc) ASSERT_NEAR(fast[arc], slow[arc], 1e-5) << arc;
}

// All pairs or some, while arcs go down and come up.
void Exercise(const Graph& graph, PhiloxRandom& random, int changes, float part) {
  std::vector<double> rates = Rates(graph);
  const auto routes = Routes::Create(&graph);
  const std::vector<uint32_t> hosts = graph.Hosts();
  std::vector<uint32_t> down;
  for (int change = 0; change < changes && !::testing::Test::HasFailure(); ++change) {
    for (const uint32_t from : hosts)
      for (const uint32_t to : hosts)
        if (random.Chance(part)) ExpectSame(graph, *routes, rates, from, to);
    ExpectSameLoads(graph, *routes, random);
    for (uint32_t i = 0; i < 1 + random.Below(3); ++i) {
      uint32_t arc = random.Below(static_cast<uint32_t>(rates.size()));
      if (!down.empty() && random.Chance(0.5)) arc = down[random.Below(static_cast<uint32_t>(down.size()))];
      rates[arc] = rates[arc] > 0 ? 0 : 1e9;
      if (rates[arc] == 0) down.push_back(arc);
      routes->SetBytesPerSecond(arc, rates[arc]);
      EXPECT_EQ(routes->BytesPerSecond(arc), rates[arc]);
    }
  }
}

TEST(RoutesTest, AsSlowSearchOnRandomGraphsWhileLinksComeAndGo) {
  PhiloxRandom random(11);
  for (int round = 0; round < 60; ++round) Exercise(Random(random), random, 8, 0.6f);
}

// Leaves that hang on the same switches, some of them with more links.
Graph Twins(PhiloxRandom& random) {
  Graph graph;
  std::vector<uint32_t> leaves, spines;
  const auto connect = [&](uint32_t a, uint32_t b) {
    if (a != b) {
      ASSERT_TRUE(graph.Connect(a, b, Medium::kEthernet).ok());
    }
  };
  for (int i = 0; i < 3; ++i) spines.push_back(graph.Add(VertexKind::kSwitch, "spine" + std::to_string(i)).value());
  for (int i = 0; i < 6; ++i) {
    leaves.push_back(graph.Add(VertexKind::kSwitch, "leaf" + std::to_string(i)).value());
    for (const uint32_t spine : spines)
      if (i < 3 || spine != spines[2]) connect(leaves[i], spine);
  }
  const uint32_t lone = graph.Add(VertexKind::kSwitch, "lone").value();
  connect(lone, random.Chance(0.5) ? spines[2] : leaves[5]);
  for (uint32_t i = 0; i < random.Below(4); ++i) connect(leaves[random.Below(6)], leaves[random.Below(6)]);
  leaves.push_back(lone);
  for (int i = 0; i < 9; ++i) {
    const std::string name = "n" + std::to_string(i);
    const uint32_t host = graph.Add(VertexKind::kHost, name).value();
    connect(host, leaves[random.Below(7)]);
    if (random.Chance(0.5)) {   // a second leaf, farther away
      const uint32_t cpu = graph.Add(VertexKind::kCpu, name + "/cpu", host).value();
      const uint32_t nic = graph.Add(VertexKind::kNic, name + "/nic", host).value();
      connect(host, cpu);
      connect(cpu, nic);
      connect(nic, leaves[random.Below(7)]);
    }
  }
  Complete(&graph, {});
  return graph;
}

TEST(RoutesTest, AsSlowSearchWhereLeavesAreTwins) {
  PhiloxRandom random(12);
  for (int round = 0; round < 30; ++round) Exercise(Twins(random), random, 8, 0.6f);
}

TEST(RoutesTest, OnGeneratedFabrics) {
  PhiloxRandom random(13);
  Exercise(topology::FatTree({.k = 4}).value(), random, 6, 0.2f);
  Exercise(topology::Rails({.groups = 2, .hosts_per_group = 2, .rails = 4, .spines = 2}).value(), random, 12, 0.8f);
  Exercise(topology::Zones({.zones = 2, .spines_per_zone = 2, .cores = 2, .leaves_per_zone = 2, .hosts_per_leaf = 2}).value(), random, 20, 0.8f);
  Exercise(topology::Torus({.dims = {4, 3}}).value(), random, 6, 0.5f);
}

TEST(RoutesTest, HashesSpreadOverAllWays) {
  const Graph graph = topology::FatTree({.k = 8}).value();
  const auto routes = Routes::Create(&graph);
  const uint32_t from = graph.Hosts().front(), to = graph.Hosts().back();
  std::map<uint32_t, int> used;
  std::vector<uint32_t> way;
  for (uint64_t hash = 0; hash < 4096; ++hash) {
    ASSERT_TRUE(routes->Way(from, to, hash, &way));
    for (const uint32_t arc : way) ++used[arc];
  }
  routes->Spread(from, to, [&](uint32_t arc, double share) { EXPECT_NEAR(used[arc], 4096 * share, 120); });
}

TEST(RoutesTest, WhatIsNoHostHasNoWay) {
  const Graph graph = topology::SpineLeaf({}).value();
  const auto routes = Routes::Create(&graph);
  const uint32_t host = graph.Hosts()[0], leaf = graph.Find("leaf0");
  const auto none = [](uint32_t, double) { FAIL(); };
  std::vector<uint32_t> way;
  EXPECT_FALSE(routes->Spread(host, leaf, none));
  EXPECT_FALSE(routes->Spread(kNone, host, none));
  EXPECT_FALSE(routes->Way(leaf, host, 1, &way));
  EXPECT_TRUE(routes->Spread(host, host, none));
  EXPECT_EQ(routes->Latency(host, host), 0);
  EXPECT_TRUE(std::isinf(routes->Latency(leaf, host)));
  EXPECT_EQ(routes->Hops(leaf, leaf), kNone);
}

}  // namespace
}  // namespace sluice::fabric
