#include "transport/control/tree_way.h"

#include <set>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

proto::Plan MakePlan(uint32_t servers, uint32_t workers, uint32_t shards, int lanes = 2) {
  proto::Plan plan;
  plan.mutable_config()->set_workers(workers);
  for (uint32_t s = 0; s < servers; ++s) {
    proto::ServerInfo* info = plan.add_servers();
    info->set_server(s);
    info->set_alive(true);
    for (int lane = 0; lane < lanes; ++lane) info->add_lanes();
  }
  for (uint32_t rank = 0; rank < workers; ++rank) plan.add_workers()->set_rank(rank);
  for (uint32_t s = 0; s < shards; ++s) {
    proto::ShardInfo* shard = plan.add_shards();
    shard->set_shard(s);
    shard->set_server(s % servers);
    shard->set_tree(1);
  }
  proto::Tree* tree = plan.add_trees();
  tree->set_tree(1);
  tree->set_epoch(7);
  return plan;
}

void AddNode(proto::Plan* plan, uint32_t server, int32_t parent, const std::vector<uint32_t>& ranks) {
  proto::TreeNode* node = plan->mutable_trees(0)->add_nodes();
  node->set_server(server);
  node->set_parent(parent);
  node->mutable_ranks()->Assign(ranks.begin(), ranks.end());
}

TEST(TreeWay, RanksPushToTheirNodeAndNodesToTheirParent) {
  proto::Plan plan = MakePlan(4, 6, 4);
  AddNode(&plan, 1, 1, {4, 2});
  AddNode(&plan, 2, -1, {3});
  const auto way = WayOf(plan, plan.shards(3));
  ASSERT_NE(way, nullptr);
  EXPECT_EQ(way->stamp, (uint64_t{1} << 32) + 7);
  ASSERT_EQ(way->nodes.size(), 2u);
  EXPECT_EQ(way->nodes[0].lane, 1u);   // shard 3 modulo 2 lanes
  EXPECT_EQ(way->nodes[0].parent, 1);
  EXPECT_THAT(way->nodes[0].ranks, ElementsAre(2, 4));
  EXPECT_THAT(way->nodes[1].children, ElementsAre(0));
  EXPECT_THAT(way->nodes[1].covers, ElementsAre(2, 3, 4));
  EXPECT_EQ(way->NodeOf(4), 0);
  EXPECT_EQ(way->NodeOf(0), -1);
  EXPECT_EQ(way->NodeOf(1000), -1);
  EXPECT_EQ(way->Find(2), &way->nodes[1]);
  EXPECT_EQ(way->Find(3), nullptr);
}

TEST(TreeWay, TheOwnersOwnNodeFallsAwayAndWhatIsBelowItGoesUp) {
  proto::Plan plan = MakePlan(3, 6, 3);
  AddNode(&plan, 0, 1, {0, 1});
  AddNode(&plan, 1, 2, {2});
  AddNode(&plan, 2, -1, {5});
  const auto way = WayOf(plan, plan.shards(1));   // of server 1
  ASSERT_EQ(way->nodes.size(), 2u);
  EXPECT_EQ(way->nodes[0].parent, 1);
  EXPECT_THAT(way->nodes[1].ranks, ElementsAre(2, 5));
  EXPECT_THAT(way->nodes[1].covers, ElementsAre(0, 1, 2, 5));
}

TEST(TreeWay, ServersThatDoNotLiveAndRanksThatAreOutFallAway) {
  proto::Plan plan = MakePlan(3, 4, 3);
  AddNode(&plan, 0, -1, {0, 1});
  AddNode(&plan, 1, -1, {2, 3});
  plan.mutable_servers(0)->set_alive(false);
  plan.mutable_workers(2)->add_out_from_round(0);
  const auto way = WayOf(plan, plan.shards(2));
  ASSERT_EQ(way->nodes.size(), 1u);
  EXPECT_THAT(way->nodes[0].covers, ElementsAre(3));
  EXPECT_EQ(way->NodeOf(0), -1);
  EXPECT_EQ(way->NodeOf(2), -1);
  plan.mutable_workers(3)->add_out_from_round(0);
  EXPECT_THAT(WayOf(plan, plan.shards(2))->nodes, IsEmpty());   // a node without ranks is none
}

TEST(TreeWay, WithoutATreeThereIsNoWay) {
  proto::Plan plan = MakePlan(2, 2, 1);
  AddNode(&plan, 1, -1, {0, 1});
  EXPECT_NE(WayOf(plan, plan.shards(0)), nullptr);
  plan.mutable_shards(0)->set_tree(2);
  EXPECT_EQ(WayOf(plan, plan.shards(0)), nullptr);
  plan.mutable_shards(0)->set_tree(0);
  EXPECT_EQ(WayOf(plan, plan.shards(0)), nullptr);
}

TEST(TreeWay, JobsWhoseRoundsDoNotNeedAllHaveNone) {
  proto::Plan plan = MakePlan(2, 2, 1);
  AddNode(&plan, 1, -1, {0, 1});
  for (const auto change : {+[](proto::JobConfig* c) { c->set_mode(proto::MODE_SSP); },
                            +[](proto::JobConfig* c) { c->set_mode(proto::MODE_ASP); },
                            +[](proto::JobConfig* c) { c->set_backup_workers(1); },
                            +[](proto::JobConfig* c) { c->set_round_deadline_ms(1); }}) {
    proto::Plan other = plan;
    change(other.mutable_config());
    EXPECT_THAT(NoTreesBecause(other.config()), HasSubstr("job."));
    EXPECT_EQ(WayOf(other, other.shards(0)), nullptr);
  }
  EXPECT_EQ(NoTreesBecause(plan.config()), "");
}

TEST(TreeWay, OfATreeThatDoesNotHoldTogetherOnlyTheStampIsLeft) {
  const auto wrong = [](auto change) {
    proto::Plan plan = MakePlan(3, 4, 1);
    AddNode(&plan, 1, 1, {0, 1});
    AddNode(&plan, 2, -1, {2});
    EXPECT_EQ(CheckTree(plan, plan.trees(0)), "");
    change(plan.mutable_trees(0));
    EXPECT_NE(CheckTree(plan, plan.trees(0)), "");
    const auto way = WayOf(plan, plan.shards(0));
    ASSERT_NE(way, nullptr);
    EXPECT_NE(way->stamp, 0u);
    EXPECT_THAT(way->nodes, IsEmpty());
  };
  wrong([](proto::Tree* t) { t->mutable_nodes(1)->set_parent(0); });          // a circle
  wrong([](proto::Tree* t) { t->mutable_nodes(1)->set_parent(1); });
  wrong([](proto::Tree* t) { t->mutable_nodes(1)->set_parent(2); });
  wrong([](proto::Tree* t) { t->mutable_nodes(1)->set_parent(-2); });
  wrong([](proto::Tree* t) { t->mutable_nodes(1)->set_server(1); });
  wrong([](proto::Tree* t) { t->mutable_nodes(1)->set_server(77); });
  wrong([](proto::Tree* t) { t->mutable_nodes(1)->add_ranks(0); });
  wrong([](proto::Tree* t) { t->mutable_nodes(1)->add_ranks(4); });
}

// Whatever trees are drawn: every rank has one way, ways end at the owner, and a node covers what is below it, once.
TEST(TreeWay, RandomTreesGiveWaysThatEndAtTheOwner) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    PhiloxRandom random(seed, 1);
    const uint32_t servers = 1 + random.Below(5), workers = 1 + random.Below(8);
    proto::Plan plan = MakePlan(servers, workers, 5);
    for (uint32_t s = 0; s < servers; ++s) {
      if (random.Chance(0.8)) AddNode(&plan, s, -1, {});
      plan.mutable_servers(static_cast<int>(s))->set_alive(random.Chance(0.8));
    }
    proto::Tree* tree = plan.mutable_trees(0);
    for (int i = 1; i < tree->nodes_size(); ++i) tree->mutable_nodes(i)->set_parent(static_cast<int32_t>(random.Below(i + 1u)) - 1);
    for (uint32_t rank = 0; rank < workers && tree->nodes_size() > 0; ++rank) {
      if (random.Chance(0.9)) tree->mutable_nodes(static_cast<int>(random.Below(static_cast<uint32_t>(tree->nodes_size()))))->add_ranks(rank);
      if (random.Chance(0.1)) plan.mutable_workers(static_cast<int>(rank))->add_out_from_round(3);
    }
    ASSERT_EQ(CheckTree(plan, *tree), "");
    for (const proto::ShardInfo& shard : plan.shards()) {
      const auto way = WayOf(plan, shard);
      ASSERT_NE(way, nullptr);
      std::vector<std::multiset<uint32_t>> below(way->nodes.size());
      for (uint32_t rank = 0; rank < workers; ++rank) {
        size_t steps = 0;
        for (int32_t at = way->NodeOf(rank); at != -1; at = way->nodes[static_cast<size_t>(at)].parent) {
          below[static_cast<size_t>(at)].insert(rank);
          ASSERT_LE(++steps, way->nodes.size());
        }
      }
      for (size_t i = 0; i < way->nodes.size(); ++i) {
        EXPECT_NE(way->nodes[i].server, shard.server());
        EXPECT_TRUE(std::ranges::equal(below[i], way->nodes[i].covers)) << "seed " << seed;
        EXPECT_FALSE(way->nodes[i].covers.empty());
      }
    }
  }
}

}  // namespace
}  // namespace sluice::control
