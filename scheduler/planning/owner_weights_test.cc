#include "scheduler/planning/owner_weights.h"

#include <gtest/gtest.h>

#include <numeric>

#include "scheduler/plan_builder.h"
#include "scheduler/planning/test_plans.h"

namespace sluice::planning {
namespace {

double Sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

TEST(OwnerWeightsTest, WhereAllIsEvenSharesAreEven) {
  const auto network = Racks(2, 2, 20e6);
  const std::vector<std::string> hosts = {"r0h0", "r0h1", "r1h0", "r1h1"};
  const OwnerWeights owners = WeighOwners(PlanOf(hosts, hosts, 1, network.get()), *network, {});
  ASSERT_EQ(owners.weights.size(), 4u);
  for (const double weight : owners.weights) EXPECT_NEAR(weight, 0.25, 0.01);
  EXPECT_NEAR(owners.best_s, owners.even_s, 0.01 * owners.even_s);
  const auto one_rack = Racks(1, 4, 20e6);
  const std::vector<std::string> alike = {"r0h0", "r0h1"};
  EXPECT_TRUE(WeighOwners(PlanOf(alike, alike, 1, one_rack.get()), *one_rack, {}).weights.empty());   // one kind of server
}

TEST(OwnerWeightsTest, OwnersGoWhereMostWorkersAre) {
  const auto network = Racks(2, 2, 20e6);
  const std::vector<std::string> hosts = {"r0h0", "r0h1", "r1h0", "r1h1"};
  const proto::Plan plan = PlanOf({"r0h0", "r0h1", "r1h0"}, hosts, 1, network.get());
  const OwnerWeights owners = WeighOwners(plan, *network, {});
  ASSERT_EQ(owners.weights.size(), 4u);
  EXPECT_NEAR(Sum(owners.weights), 1, 1e-9);
  EXPECT_GT(owners.weights[0] + owners.weights[1], 0.95);
  // Evenly, two workers push half and one gets half: 1.5 of the model up; so only the third one's pushes cross, or replies.
  EXPECT_NEAR(owners.best_s / owners.even_s, 1 / 1.5, 0.03);
}

TEST(OwnerWeightsTest, ServersBehindNarrowLinksOwnLessAndLostOnesNothing) {
  auto network = Racks(1, 4, 1e9);
  const std::vector<std::string> servers = {"r0h1", "r0h2", "r0h3"};
  proto::Plan plan = PlanOf({"r0h0"}, servers, 1, network.get());
  plan.mutable_servers(2)->set_alive(false);
  EXPECT_TRUE(WeighOwners(plan, *network, {}).weights.empty());   // what is left is alike
  const auto owners = WeighOwners(PlanOf({"r0h0", "r0h1"}, {"r0h1", "r0h2"}, 1, network.get()), *network, {});
  ASSERT_EQ(owners.weights.size(), 2u);
  EXPECT_LE(owners.best_s, owners.even_s);
  EXPECT_TRUE(WeighOwners(PlanOf({"r0h0"}, {"r0h1", "elsewhere"}, 1, network.get()), *network, {0}).weights.empty());
}

TEST(OwnerWeightsTest, ANarrowLinkOfItsOwnIsBusyForAsLongAsTheOthers) {
  const auto network = Racks(2, 4, 1e9);
  const auto routes = fabric::Routes::Create(&network->graph());
  const uint32_t link = network->graph().Incident(network->Host("r1h0"))[0].link;
  routes->SetBytesPerSecond(fabric::Routes::ArcOf(link, true), 1e7);
  routes->SetBytesPerSecond(fabric::Routes::ArcOf(link, false), 1e7);
  const proto::Plan plan = PlanOf({"r0h1", "r0h2", "r1h1", "r1h2"}, {"r0h0", "r1h0"}, 1, network.get());
  const OwnerWeights owners = WeighOwners(plan, network::View(network->graph(), *routes), {});
  ASSERT_EQ(owners.weights.size(), 2u);
  EXPECT_NEAR(owners.weights[0], 10.0 / 11, 0.02);
  EXPECT_NEAR(Sum(owners.weights), 1, 1e-9);
  EXPECT_TRUE(MayPay(owners));
}

TEST(OwnerWeightsTest, SeveralLinksThatAreAsBusyAreRelievedTogether) {
  // Two racks behind narrow links, one behind a wide one: no move of one rack's share alone helps.
  auto network = Racks(3, 2, 20e6);
  const auto routes = fabric::Routes::Create(&network->graph());
  const topology::Graph& graph = network->graph();
  for (const topology::Graph::Half& half : graph.Incident(graph.Find("core")))
    if (graph.vertex(half.to).name == "r2")
      for (const bool from_a : {false, true}) routes->SetBytesPerSecond(fabric::Routes::ArcOf(half.link, from_a), 200e6);
  const std::vector<std::string> hosts = {"r0h0", "r0h1", "r1h0", "r1h1", "r2h0", "r2h1"};
  const OwnerWeights owners = WeighOwners(PlanOf(hosts, hosts, 1, network.get()), network::View(graph, *routes), {}, {}, 0);
  ASSERT_EQ(owners.weights.size(), 6u);
  EXPECT_NEAR(owners.weights[0], owners.weights[2], 0.02);
  EXPECT_GT(owners.weights[4], owners.weights[0]);
  EXPECT_LT(owners.best_s, 0.95 * owners.even_s);
}

TEST(OwnerWeightsTest, OtherTrafficDrawsSharesAway) {
  const auto network = Racks(2, 2, 1e9);
  const proto::Plan plan = PlanOf({"r0h0", "r1h0"}, {"r0h1", "r1h1"}, 16, network.get());
  std::vector<double> beside(network->routes().arcs());
  const uint32_t link = network->graph().Incident(network->Host("r1h1"))[0].link;
  for (const bool from_a : {false, true}) beside[fabric::Routes::ArcOf(link, from_a)] = 16 << 20;   // as much as one worker's
  StepRules rules;
  rules.beside = &beside;
  const OwnerWeights owners = WeighOwners(plan, *network, {}, rules, 0);
  ASSERT_EQ(owners.weights.size(), 2u);
  // 2 x = 1 + 2 (1 - x)
  EXPECT_NEAR(owners.weights[0], 0.75, 0.02);
  EXPECT_NEAR(owners.even_s / owners.best_s, 2 / 1.5, 0.05);
}

TEST(OwnerWeightsTest, NobodyKnowsWhereAMemberIs) {
  const auto network = Racks(2, 2, 20e6);
  proto::Plan plan = PlanOf({"r0h0", "r0h1", "r1h0"}, {"r0h0", "r1h0"}, 1, network.get());
  plan.mutable_workers(0)->set_host("");
  EXPECT_TRUE(WeighOwners(plan, *network, {}).weights.empty());
}

TEST(OwnerWeightsTest, TensorsAreSharedOutByWeights) {
  const auto network = Racks(2, 2, 20e6);
  const std::vector<std::string> hosts = {"r0h0", "r0h1", "r1h0", "r1h1"};
  proto::Plan plan = PlanOf(hosts, hosts, 1, network.get());
  plan.clear_tensors();
  plan.mutable_config()->set_partition_bytes(1 << 20);
  proto::TensorSpec spec;
  spec.set_name("t");
  spec.add_shape(64 << 18);   // 64 partitions
  scheduler::AddTensor(spec, 64 << 18, &plan, {0.5, 0.25, 0.25, 0});
  std::vector<int> partitions(4);
  for (const uint32_t shard : plan.tensors(0).partition_shard()) ++partitions[plan.shards(static_cast<int>(shard)).server()];
  EXPECT_EQ(partitions, (std::vector<int>{32, 16, 16, 0}));
  // One partition goes to who has the largest share.
  proto::Plan small = PlanOf(hosts, hosts, 1, network.get());
  small.clear_tensors();
  small.mutable_config()->set_partition_bytes(1 << 20);
  scheduler::AddTensor(spec, 1000, &small, {0.1, 0.1, 0.7, 0.1});
  EXPECT_EQ(small.shards(static_cast<int>(small.tensors(0).partition_shard(0))).server(), 2u);
}

}  // namespace
}  // namespace sluice::planning
