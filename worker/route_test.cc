#include "worker/route.h"

#include <gtest/gtest.h>

namespace sluice::worker {
namespace {

proto::Plan TwoServers() {
  proto::Plan plan;
  plan.mutable_config()->set_workers(3);
  for (uint32_t s = 0; s < 2; ++s) {
    proto::ServerInfo* server = plan.add_servers();
    server->set_server(s);
    server->set_alive(true);
    server->add_lanes();
    server->add_lanes();
    proto::ShardInfo* shard = plan.add_shards();
    shard->set_shard(s + 2);
    shard->set_server(s);
    shard->set_lane(1);
    shard->set_term(5 + s);
    shard->set_tree(4);
  }
  proto::Tree* tree = plan.add_trees();
  tree->set_tree(4);
  tree->set_epoch(9);
  proto::TreeNode* node = tree->add_nodes();
  node->set_server(1);
  node->set_parent(-1);
  node->add_ranks(0);
  node->add_ranks(2);
  return plan;
}

TEST(Route, PushesGoToTheRanksNodeAndTheRestToTheOwner) {
  const proto::Plan plan = TwoServers();
  const auto way = control::WayOf(plan, plan.shards(0));
  const Route through = RouteOf(plan.shards(0), way.get(), 2), past = RouteOf(plan.shards(0), way.get(), 1);
  EXPECT_EQ(through.push, LaneKey(1, 0));   // shard 2 modulo 2 lanes
  EXPECT_EQ(through.owner, LaneKey(0, 1));
  EXPECT_EQ(through.term, 5u);
  EXPECT_EQ(through.stamp, (uint64_t{4} << 32) + 9);
  EXPECT_EQ(past.push, LaneKey(0, 1));
  EXPECT_EQ(past.stamp, through.stamp);   // its owner takes no push that has none
}

TEST(Route, WhereTheNodeIsTheOwnerNothingIsBetween) {
  const proto::Plan plan = TwoServers();
  const Route route = RouteOf(plan.shards(1), control::WayOf(plan, plan.shards(1)).get(), 0);
  EXPECT_EQ(route.push, route.owner);
  EXPECT_NE(route.stamp, 0u);
}

TEST(Route, TablesAndShardsWithoutATreeHaveNoStamp) {
  const proto::Plan plan = TwoServers();
  const Route route = RouteOf(plan.shards(0), nullptr, 0);
  EXPECT_EQ(route.push, route.owner);
  EXPECT_EQ(route.stamp, 0u);
}

}  // namespace
}  // namespace sluice::worker
