#include "scheduler/planning/tree_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "scheduler/planning/explain_plan.h"
#include "scheduler/planning/plan_step.h"
#include "scheduler/planning/test_plans.h"
#include "transport/control/tree_way.h"

namespace sluice::planning {
namespace {

using testing::Contains;
using testing::HasSubstr;

const TreeOption* Find(const std::vector<TreeOption>& options, const std::string& name) {
  for (const TreeOption& option : options)
    if (option.name == name) return &option;
  return nullptr;
}

TEST(TreeOptionsTest, ANarrowLinkBetweenRacksIsCrossedOnceARack) {
  const auto network = Racks(2, 2, 20e6);
  const std::vector<std::string> hosts = {"r0h0", "r0h1", "r1h0", "r1h1"};
  const proto::Plan plan = PlanOf(hosts, hosts, 64, network.get());
  std::string why_not;
  const auto options = TreeOptions(plan, *network, &why_not);
  EXPECT_EQ(why_not, "");
  ASSERT_EQ(options.size(), 2u);   // no host has two ranks
  EXPECT_EQ(options[0].name, "racks");
  // Two workers push half of the model each, and as much comes for the other rack's two; with trees one does.
  EXPECT_NEAR(options[0].step_s / Find(options, "none")->step_s, 0.5, 0.1);
  for (const proto::Tree& tree : options[0].choice.trees) EXPECT_EQ(control::CheckTree(WithTrees(plan, options[0].choice), tree), "");
  // Nobody takes a way through a server of the owner's own rack, and each rack's servers share the work.
  const proto::Plan with = WithTrees(plan, options[0].choice);
  std::set<uint32_t> aggregators;
  for (const proto::ShardInfo& shard : with.shards()) {
    ASSERT_NE(shard.tree(), 0u);
    const proto::Tree& tree = with.trees(static_cast<int>(shard.tree()) - 1);
    ASSERT_EQ(tree.nodes_size(), 1);
    EXPECT_NE(tree.nodes(0).server() / 2, shard.server() / 2);
    EXPECT_EQ(tree.nodes(0).ranks_size(), 2);
    aggregators.insert(tree.nodes(0).server());
  }
  EXPECT_EQ(aggregators.size(), 4u);
}

TEST(TreeOptionsTest, WhereNothingIsNarrowNoTreeIsTheFirst) {
  const auto network = Racks(2, 2, 1e9);
  const std::vector<std::string> hosts = {"r0h0", "r0h1", "r1h0", "r1h1"};
  std::string why_not;
  const auto options = TreeOptions(PlanOf(hosts, hosts, 64, network.get()), *network, &why_not);
  EXPECT_EQ(options[0].name, "none");
}

TEST(TreeOptionsTest, HostsWithSeveralRanksAddUpFirst) {
  // One rack, four ranks a host: what leaves a host is a quarter.
  const auto network = Racks(1, 3, 1e9);
  std::vector<std::string> workers;
  for (int i = 0; i < 8; ++i) workers.push_back(i < 4 ? "r0h0" : "r0h1");
  const auto options = [&](const std::vector<std::string>& servers) {
    std::string why_not;
    return TreeOptions(PlanOf(workers, servers, 64, network.get()), *network, &why_not);
  };
  const auto found = options({"r0h0", "r0h1", "r0h2"});
  EXPECT_EQ(found[0].name, "hosts");
  EXPECT_LT(found[0].step_s, 0.5 * Find(found, "none")->step_s);
  EXPECT_EQ(options({"r0h2"}).size(), 1u);   // no server beside ranks: nobody can add up
}

TEST(TreeOptionsTest, HostsUnderRacks) {
  const auto network = Racks(2, 2, 10e6);
  std::vector<std::string> workers, servers = {"r0h0", "r0h0", "r0h1", "r1h0", "r1h0", "r1h1"};
  for (int i = 0; i < 8; ++i) workers.push_back("r" + std::to_string(i / 4) + "h" + std::to_string(i / 2 % 2));
  std::string why_not;
  const proto::Plan plan = PlanOf(workers, servers, 64, network.get());
  const auto options = TreeOptions(plan, *network, &why_not);
  const TreeOption* both = Find(options, "hosts and racks");
  ASSERT_NE(both, nullptr);
  for (const proto::Tree& tree : both->choice.trees) EXPECT_EQ(control::CheckTree(plan, tree), "");
  EXPECT_TRUE(std::isfinite(both->step_s));
  EXPECT_LE(options[0].step_s, both->step_s);
}

TEST(TreeOptionsTest, AJobBeginsWithWhatTheModeSays) {
  const auto network = Racks(2, 2, 20e6);
  const std::vector<std::string> hosts = {"r0h0", "r0h1", "r1h0", "r1h1"};
  std::string why_not;
  auto options = TreeOptions(PlanOf(hosts, hosts, 64, network.get()), *network, &why_not);
  EXPECT_EQ(options[PickTrees(options, "auto")].name, "racks");
  EXPECT_EQ(options[PickTrees(options, "on")].name, "racks");
  EXPECT_EQ(options[PickTrees(options, "off")].name, "none");
  const auto wide = Racks(2, 2, 1e9);
  options = TreeOptions(PlanOf(hosts, hosts, 64, wide.get()), *wide, &why_not);
  EXPECT_EQ(options[PickTrees(options, "auto")].name, "none");
  EXPECT_EQ(options[PickTrees(options, "on")].name, "racks");
}

TEST(TreeOptionsTest, AJobThatCannotHaveTreesSaysWhy) {
  const auto network = Racks(2, 2, 20e6);
  const std::vector<std::string> hosts = {"r0h0", "r0h1", "r1h0", "r1h1"};
  proto::Plan plan = PlanOf(hosts, hosts, 8, network.get());
  plan.mutable_config()->set_mode(proto::MODE_ASP);
  std::string why_not;
  EXPECT_EQ(TreeOptions(plan, *network, &why_not).size(), 1u);
  EXPECT_NE(why_not, "");
  EXPECT_EQ(ExplainPlan(plan, *network).choices(0).why(), why_not);
}

TEST(ExplainPlanTest, SaysWhatALinkCarriesAndWhatWasWeighed) {
  const auto network = Racks(2, 2, 20e6);
  const std::vector<std::string> hosts = {"r0h0", "r0h1", "r1h0", "r1h1"};
  proto::Plan plan = PlanOf(hosts, hosts, 64, network.get());
  const proto::Explanation flat = ExplainPlan(plan, *network);
  ASSERT_GT(flat.busiest_size(), 0);
  EXPECT_DOUBLE_EQ(flat.busiest(0).bytes_per_second(), 20e6);
  EXPECT_EQ(flat.busiest(0).source(), "file");
  // Up from a rack: two workers' pushes of the half that lies there, and replies to two workers of the half here.
  EXPECT_NEAR(flat.busiest(0).bytes(), 2.0 * 64 * (1 << 20), 1000);
  EXPECT_NEAR(flat.busiest(0).busy_ms(), 1e3 * flat.busiest(0).bytes() / (kTcpEfficiency * 20e6), 1);
  EXPECT_GE(flat.step_ms(), flat.busiest(0).busy_ms());
  ASSERT_EQ(flat.choices_size(), 1);
  EXPECT_EQ(flat.choices(0).chosen(), "none");
  EXPECT_EQ(flat.choices(0).options(0).name(), "racks");
  EXPECT_THAT(flat.choices(0).why(), HasSubstr("shorter"));
  EXPECT_EQ(flat.servers(2), "s2 on r1h0");
  EXPECT_EQ(flat.ranks(3).host(), "r1h1");

  std::string why_not;
  plan = WithTrees(plan, TreeOptions(plan, *network, &why_not)[0].choice);
  const proto::Explanation trees = ExplainPlan(plan, *network);
  EXPECT_NEAR(trees.step_ms() / flat.step_ms(), 0.5, 0.1);
  EXPECT_EQ(trees.trees_size(), plan.trees_size());
  EXPECT_EQ(trees.choices(0).chosen(), "racks");

  plan.clear_tensors();
  EXPECT_THAT(ExplainPlan(plan, *network).notes(), Contains(HasSubstr("no dense tensors yet")));
  plan.mutable_workers(0)->set_host("nowhere");
  EXPECT_THAT(ExplainPlan(plan, *network).notes(), Contains(HasSubstr("node.host")));
}

const proto::RouteLoad* FindRoute(const proto::Explanation& e, const std::string& from, const std::string& to) {
  for (const proto::RouteLoad& route : e.routes())
    if (route.from() == from && route.to() == to) return &route;
  return nullptr;
}

TEST(ExplainPlanTest, ShowsWhichWayBytesTake) {
  const auto network = Racks(2, 2, 20e6);
  const std::vector<std::string> hosts = {"r0h0", "r0h1", "r1h0", "r1h1"};
  proto::Plan plan = PlanOf(hosts, hosts, 64, network.get());
  const proto::Explanation flat = ExplainPlan(plan, *network);
  EXPECT_EQ(flat.routes_size(), 12);   // each host with each other
  EXPECT_EQ(flat.routes_left_out(), 0u);
  const proto::RouteLoad& first = flat.routes(0);
  EXPECT_EQ(first.from()[1] == first.to()[1], false);   // those between racks first
  EXPECT_EQ(first.via_size(), 3);
  EXPECT_EQ(first.via(1), "core");
  EXPECT_EQ(first.narrowest(), first.via(0) + " -> core");
  EXPECT_EQ(first.bytes_per_second(), 20e6);
  EXPECT_EQ(first.what(), "pushes and replies");
  // A push of the quarter that lies there, and a reply of the quarter that lies here.
  for (const proto::RouteLoad& route : flat.routes()) EXPECT_NEAR(route.bytes(), 32.0 * (1 << 20), 1000);

  std::string why_not;
  plan = WithTrees(plan, TreeOptions(plan, *network, &why_not)[0].choice);
  proto::BackupInfo* copy = plan.mutable_shards(0)->add_backups();   // of a shard on r0h0
  copy->set_server(3);
  const proto::Explanation trees = ExplainPlan(plan, *network);
  double across = 0;
  for (const proto::RouteLoad& route : trees.routes()) {
    if (route.from()[1] == route.to()[1]) continue;
    EXPECT_THAT(route.what(), testing::AnyOf("forwards", "copies"));
    if (route.from()[1] == '0') across += route.bytes();
  }
  // Half of the model as sums, half as replies; and the copy.
  const double of_shard = 4.0 * (1 << 20);
  EXPECT_NEAR(across, 64.0 * (1 << 20) + of_shard, 1000);
  const proto::RouteLoad* with_copy = FindRoute(trees, "r0h0", "r1h1");
  ASSERT_NE(with_copy, nullptr);
  EXPECT_EQ(with_copy->what(), "copies");
  EXPECT_THAT(trees.notes(), Contains(HasSubstr("copies of shards is in the routes")));
}

TEST(ExplainPlanTest, RoutesBeyondWhatIsReadableAreCounted) {
  const auto network = Racks(4, 6, 20e6);
  std::vector<std::string> hosts;
  for (int i = 0; i < 24; ++i) hosts.push_back("r" + std::to_string(i / 6) + "h" + std::to_string(i % 6));
  const proto::Explanation e = ExplainPlan(PlanOf(hosts, hosts, 96, network.get()), *network);
  EXPECT_EQ(e.routes_size(), 256);
  EXPECT_EQ(e.routes_left_out(), 24u * 23 - 256);
}

TEST(ExplainPlanTest, NoPlanIsFasterThanTheBound) {
  const auto network = Racks(2, 2, 20e6);
  const std::vector<std::string> hosts = {"r0h0", "r0h1", "r1h0", "r1h1"};
  proto::Plan plan = PlanOf(hosts, hosts, 64, network.get());
  std::vector<uint32_t> where;
  for (const std::string& host : hosts) where.push_back(network->Host(host));
  const topology::Tiers tiers = topology::FindTiers(network->graph(), where);
  for (const topology::TierSpec& tier : tiers.tiers) plan.add_tiers()->set_bytes_per_second(static_cast<uint64_t>(tier.bytes_per_second));
  for (int rank = 0; rank < 4; ++rank)
    for (const uint32_t at : tiers.coordinates[static_cast<size_t>(rank)]) plan.mutable_workers(rank)->add_coordinates(at);
  std::string why_not;
  const auto options = TreeOptions(plan, *network, &why_not);
  const double bound = ExplainPlan(plan, *network).bound_ms();
  EXPECT_NEAR(bound, 1e3 * 64 * (1 << 20) / kTcpEfficiency / 20e6, 20);   // the model once, each way
  for (const TreeOption& option : options) EXPECT_GE(1e3 * option.step_s, bound);
}

}  // namespace
}  // namespace sluice::planning
