#include "scheduler/fabric/steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "base/philox.h"
#include "scheduler/fabric/costs.h"
#include "scheduler/topology/domains.h"
#include "scheduler/topology/generate.h"

namespace sluice::fabric {
namespace {

using topology::Graph;

constexpr double kGigabit = 125e6;

StepPrediction Predict(const Routes& routes, const StepSpec& spec, size_t busiest = 8) {
  return StepModel::Create(&routes, spec).value().Predict(busiest);
}

Graph TwoRacks(double ratio) {
  return topology::SpineLeaf({.leaves = 2, .spines = 1, .hosts_per_leaf = 4, .ratio = ratio,
                              .host = {.link_bytes_per_second = kGigabit, .link_latency_s = 1e-5}}).value();
}

// Workers on 6 of 8 hosts, a server on each of the others, one in each rack.
StepSpec Servers(const Graph& graph, double bytes) {
  const std::vector<uint32_t> hosts = graph.Hosts();
  StepSpec spec;
  spec.workers = {hosts[0], hosts[1], hosts[2], hosts[4], hosts[5], hosts[6]};
  spec.servers = {hosts[3], hosts[7]};
  for (uint32_t s = 0; s < 8; ++s) spec.shards.push_back({.server = s % 2, .bytes = bytes / 8});
  return spec;
}

TEST(StepsTest, ServersOnAnIdealNetworkCostWhatTheFormulaSays) {
  const Graph graph = TwoRacks(0.01);
  const auto routes = Routes::Create(&graph);
  StepSpec spec = Servers(graph, 400e6);
  spec.compute_s = 0.5;
  const StepPrediction prediction = Predict(*routes, spec);
  const double formula = ParameterServers({.workers = 6, .servers = 2, .worker_bytes_per_second = kGigabit, .server_bytes_per_second = kGigabit,
                                           .alpha = 4e-5}, 400e6, true);
  EXPECT_NEAR(prediction.communication_s / formula, 1, 0.05);   // and the first partition
  EXPECT_DOUBLE_EQ(prediction.step_s, 0.5 + prediction.communication_s);
  EXPECT_NEAR(prediction.busiest[0].bytes, 1200e6, 1);
  EXPECT_TRUE(prediction.complete);
  spec.overlap = 1;
  EXPECT_DOUBLE_EQ(Predict(*routes, spec).step_s, std::max(0.5, prediction.communication_s));
  spec.partition_bytes = 1e9;   // nothing overlaps
  EXPECT_NEAR(Predict(*routes, spec).communication_s / (2 * formula), 1, 0.01);
  spec.push_ratio = spec.reply_ratio = 0.25;
  EXPECT_NEAR(Predict(*routes, spec).communication_s / (2 * formula), 0.25, 0.01);
  spec.server_bytes_per_second = 50e6;   // adds more slowly than the network brings
  EXPECT_NEAR(Predict(*routes, spec).communication_s, 6 * 50e6 / 50e6, 0.01);
}

TEST(StepsTest, OtherTrafficKeepsLinksBusy) {
  const Graph graph = TwoRacks(4);
  const auto routes = Routes::Create(&graph);
  StepSpec spec = Servers(graph, 400e6);
  const StepPrediction alone = Predict(*routes, spec);
  spec.beside.assign(routes->arcs(), 0);
  const ArcLoad& busiest = alone.busiest[0];
  spec.beside[busiest.arc] = busiest.bytes;   // as much again
  const StepPrediction beside = Predict(*routes, spec);
  EXPECT_EQ(beside.busiest[0].arc, busiest.arc);
  EXPECT_DOUBLE_EQ(beside.busiest[0].bytes, 2 * busiest.bytes);
  EXPECT_NEAR(beside.communication_s, alone.communication_s + busiest.busy_s, 1e-9);
  spec.shards.clear();   // nothing else: the other traffic alone
  EXPECT_DOUBLE_EQ(Predict(*routes, spec).communication_s, busiest.busy_s);
  spec.beside.pop_back();
  EXPECT_FALSE(StepModel::Create(routes.get(), spec).ok());
}

TEST(StepsTest, ATreeSendsOneSumAcross) {
  const Graph graph = TwoRacks(5);
  const auto routes = Routes::Create(&graph);
  const std::vector<uint32_t> hosts = graph.Hosts();
  StepSpec spec = Servers(graph, 100e6);
  for (StepSpec::Shard& shard : spec.shards) shard.server = 0;   // all owners are in rack 0
  const StepPrediction flat = Predict(*routes, spec);
  spec.trees = {{.nodes = {{.server = 1, .parent = -1, .ranks = {3, 4, 5}}}}};
  for (StepSpec::Shard& shard : spec.shards) shard.tree = 0;
  const StepPrediction tree = Predict(*routes, spec, 1000);
  const uint32_t up = graph.FindLink(graph.Find("leaf1"), graph.Find("spine0"), topology::Medium::kEthernet);
  const auto load = std::find_if(tree.busiest.begin(), tree.busiest.end(), [&](const ArcLoad& l) { return l.arc / 2 == up; });
  ASSERT_NE(load, tree.busiest.end());
  EXPECT_NEAR(load->bytes, 100e6, 1);               // 300 without a tree
  EXPECT_NEAR(flat.busiest[0].bytes, 600e6, 1);
  EXPECT_LT(tree.communication_s, 0.8 * flat.communication_s);
}

TEST(StepsTest, CollectivesCostWhatTheFormulasSay) {
  const Graph graph = TwoRacks(0.01);
  const auto routes = Routes::Create(&graph);
  StepSpec spec;
  for (const uint32_t host : graph.Hosts()) spec.workers.insert(spec.workers.end(), 2, host);
  spec.collective_bytes = 320e6;
  spec.inside_bytes_per_second = 1e9;
  const StepPrediction flat = Predict(*routes, spec);
  // The hops between racks are longer, and all wait for them.
  EXPECT_NEAR(flat.communication_s, RingAllReduce(16, 320e6, {.alpha = 4e-5, .beta = 1 / kGigabit}), 1e-6);
  for (size_t r = 0; r < spec.workers.size(); ++r) spec.coordinates.push_back({static_cast<uint32_t>(r / 2), 0});
  const StepPrediction levels = Predict(*routes, spec);
  EXPECT_NEAR(levels.communication_s, TwoLevelAllReduce(2, 8, 320e6, {.beta = 1e-9}, {.alpha = 4e-5, .beta = 2 / kGigabit}), 1e-6);
  spec.gather_ratio = 0;
  EXPECT_LT(Predict(*routes, spec).communication_s, 0.55 * levels.communication_s);
}

TEST(StepsTest, UtilizationLengthensWhatLastsAndNotTheFirstPartitionsWay) {
  const Graph graph = TwoRacks(5);
  const auto routes = Routes::Create(&graph);
  StepSpec spec = Servers(graph, 100e6);
  for (StepSpec::Shard& shard : spec.shards) shard.server = 0;
  spec.partition_bytes = 1;                         // so short that the way of the first one is nothing
  const double ideal = Predict(*routes, spec).communication_s;
  spec.utilization = 0.8;
  EXPECT_NEAR(Predict(*routes, spec).communication_s, ideal / 0.8, 0.001 * ideal);
  EXPECT_NEAR(Predict(*routes, spec, 1).busiest[0].busy_s, ideal, 0.001 * ideal);
  spec.partition_bytes = 1e9;                       // one partition: all there is, stage after stage
  spec.utilization = 1;
  const double alone = Predict(*routes, spec).communication_s;
  spec.utilization = 0.8;
  EXPECT_NEAR(Predict(*routes, spec).communication_s, alone, 0.001 * alone);
}

TEST(StepsTest, WhatMakesNoSenseIsRefused) {
  const Graph graph = TwoRacks(1);
  const auto routes = Routes::Create(&graph);
  const StepSpec good = Servers(graph, 1e6);
  const auto refused = [&](auto&& change) {
    StepSpec spec = good;
    change(spec);
    return !StepModel::Create(routes.get(), spec).ok() && !SimulateStep(*routes, spec).ok();
  };
  EXPECT_FALSE(refused([](StepSpec&) {}));
  EXPECT_TRUE(refused([](StepSpec& s) { s.shards[0].server = 2; }));
  EXPECT_TRUE(refused([](StepSpec& s) { s.shards[0].tree = 0; }));
  EXPECT_TRUE(refused([](StepSpec& s) { s.shards[0].bytes = -1; }));
  EXPECT_TRUE(refused([](StepSpec& s) { s.efficiency = 0; }));
  EXPECT_TRUE(refused([](StepSpec& s) { s.utilization = 0; }));
  EXPECT_TRUE(refused([](StepSpec& s) { s.coordinates = {{0}}; }));
  EXPECT_TRUE(refused([](StepSpec& s) { s.trees = {{.nodes = {{.server = 0, .parent = 1, .ranks = {0}}}}}; }));
  EXPECT_TRUE(refused([](StepSpec& s) { s.trees = {{.nodes = {{.server = 0, .parent = 1}, {.server = 1, .parent = 0}}}}; }));
  EXPECT_TRUE(refused([](StepSpec& s) { s.trees = {{.nodes = {{.server = 0, .ranks = {1, 1}}}}}; }));
  EXPECT_TRUE(refused([](StepSpec& s) { s.trees = {{.nodes = {{.server = 5}}}}; }));
}

TEST(StepsTest, WhoCannotReachEachOtherIsLeftOutAndSaid) {
  const Graph graph = TwoRacks(1);
  const auto routes = Routes::Create(&graph);
  routes->SetBytesPerSecond(0, 0);   // of spine0 and leaf0, one way
  routes->SetBytesPerSecond(1, 0);
  const StepSpec spec = Servers(graph, 8e6);
  const StepPrediction prediction = Predict(*routes, spec);
  EXPECT_FALSE(prediction.complete);
  EXPECT_TRUE(std::isfinite(prediction.step_s));
  EXPECT_FALSE(SimulateStep(*routes, spec).value().complete);
}

// Random jobs on small fabrics: both halves put the same bytes on every arc, and come to about the same time.
TEST(StepsTest, LoadsAndSimulationAgree) {
  std::vector<Graph> graphs;
  graphs.push_back(TwoRacks(5));
  graphs.push_back(topology::SpineLeaf({.leaves = 4, .spines = 2, .hosts_per_leaf = 3, .ratio = 2, .host = {.link_bytes_per_second = kGigabit}}).value());
  graphs.push_back(topology::Zones({.zones = 2, .spines_per_zone = 2, .cores = 1, .leaves_per_zone = 2, .hosts_per_leaf = 3, .zone_ratio = 4,
                                    .host = {.link_bytes_per_second = kGigabit}}).value());
  graphs.push_back(topology::Torus({.dims = {3, 3}, .host = {.link_bytes_per_second = kGigabit}}).value());
  PhiloxRandom random(21);
  struct Spread {
    double sum = 0, least = 1e9, most = 0, count = 0;
  };
  std::map<int, Spread> kinds;   // pushes, trees, flat rings, rings by tiers
  for (int round = 0; round < 80; ++round) {
    const Graph& graph = graphs[round % graphs.size()];
    const auto routes = Routes::Create(&graph);
    std::vector<uint32_t> hosts = graph.Hosts();
    StepSpec spec;
    for (uint32_t i = 0; i < 4 + random.Below(6); ++i) spec.workers.push_back(hosts[random.Below(static_cast<uint32_t>(hosts.size()))]);
    std::sort(spec.workers.begin(), spec.workers.end());
    for (uint32_t i = 0; i < 1 + random.Below(4); ++i) spec.servers.push_back(hosts[random.Below(static_cast<uint32_t>(hosts.size()))]);
    const int kind = round / 4 % 4;
    if (kind <= 1) {
      for (uint32_t s = 0; s < spec.servers.size(); ++s) spec.shards.push_back({.server = s, .bytes = 1e6 * (40 + random.Below(60))});
      spec.push_ratio = random.Chance(0.5) ? 0.25 : 1;
    }
    if (kind == 1) {
      StepTree tree;
      tree.nodes.resize(2);
      for (uint32_t r = 0; r < spec.workers.size(); ++r)
        if (random.Chance(0.9)) tree.nodes[r % 2].ranks.push_back(r);
      tree.nodes[1] = {.server = static_cast<uint32_t>(spec.servers.size()) - 1, .parent = random.Chance(0.5) ? 0 : -1, .ranks = tree.nodes[1].ranks};
      spec.trees = {tree};
      for (StepSpec::Shard& shard : spec.shards) shard.tree = 0;
    }
    if (kind >= 2) spec.collective_bytes = 200e6;
    if (kind == 3) spec.coordinates = FindTiers(graph, spec.workers).coordinates;
    const StepPrediction loads = Predict(*routes, spec, 10000);
    const StepPrediction exact = SimulateStep(*routes, spec, 10000).value();
    std::map<uint32_t, double> fast;
    for (const ArcLoad& load : loads.busiest) fast[load.arc] = load.bytes;
    ASSERT_EQ(loads.busiest.size(), exact.busiest.size()) << round;
    for (const ArcLoad& load : exact.busiest) EXPECT_NEAR(fast[load.arc] / load.bytes, 1, 1e-4) << round;
    if (exact.communication_s == 0) continue;
    const double ratio = loads.communication_s / exact.communication_s;
    EXPECT_GT(ratio, 0.7) << "round " << round << " kind " << kind;
    EXPECT_LT(ratio, 1.3) << "round " << round << " kind " << kind;
    Spread& of = kinds[kind];
    of.sum += ratio;
    of.least = std::min(of.least, ratio);
    of.most = std::max(of.most, ratio);
    ++of.count;
  }
  for (const auto& [kind, of] : kinds) {
    std::printf("kind %d: loads / simulation: mean %.3f, %.3f to %.3f\n", kind, of.sum / of.count, of.least, of.most);
    EXPECT_NEAR(of.sum / of.count, 1, 0.12);
  }
}

TEST(StepsTest, TooLargeToSimulateIsSaid) {
  const Graph graph = topology::SpineLeaf({.leaves = 20, .spines = 2, .hosts_per_leaf = 40}).value();
  const auto routes = Routes::Create(&graph);
  StepSpec spec;
  spec.workers = spec.servers = graph.Hosts();
  for (uint32_t s = 0; s < spec.servers.size(); ++s) spec.shards.push_back({.server = s, .bytes = 1e6});
  EXPECT_EQ(SimulateStep(*routes, spec).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NEAR(Predict(*routes, spec).busiest[0].bytes, 2 * 799e6, 1e3);   // out of a host: its pushes, its server's replies
}

TEST(StepsTest, AHybridIsNoWorseThanEither) {
  const Graph graph = TwoRacks(2);
  const auto routes = Routes::Create(&graph);
  StepSpec spec = Servers(graph, 1);
  const StepModel model = StepModel::Create(routes.get(), spec).value();
  std::vector<double> tensors;
  for (int i = 0; i < 200; ++i) tensors.push_back(1e5 * (1 + i % 37));
  const Hybrid hybrid = ChooseHybrid(model, tensors);
  EXPECT_EQ(hybrid.by_servers.size(), tensors.size());
  EXPECT_LT(hybrid.prediction.step_s, 0.95 * std::min(hybrid.all_servers.step_s, hybrid.all_collective.step_s));
  double by_servers = 0, total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    total += tensors[i];
    if (hybrid.by_servers[i]) by_servers += tensors[i];
  }
  EXPECT_DOUBLE_EQ(model.PredictWith(by_servers, total - by_servers).step_s, hybrid.prediction.step_s);
  EXPECT_EQ(ChooseHybrid(model, {}).prediction.communication_s, 0);
  // What goes one way already is left to it, and what comes takes the other one.
  const Hybrid beside = ChooseHybrid(model, {1e5}, by_servers, 0);
  EXPECT_FALSE(beside.by_servers[0]);
  EXPECT_DOUBLE_EQ(beside.all_servers.step_s, model.PredictWith(by_servers + 1e5, 0).step_s);
}

}  // namespace
}  // namespace sluice::fabric
