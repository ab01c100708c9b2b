#include "scheduler/trees.h"

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/copies_harness.h"
#include "transport/control/tree_way.h"

namespace sluice::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

proto::Plan MakePlan(const std::vector<std::string>& servers, const std::vector<std::string>& workers) {
  proto::Plan plan;
  plan.mutable_config()->set_workers(static_cast<uint32_t>(workers.size()));
  for (const std::string& host : servers) {
    proto::ServerInfo* info = plan.add_servers();
    info->set_server(static_cast<uint32_t>(plan.servers_size() - 1));
    info->set_id("s" + std::to_string(info->server()));
    info->set_host(host);
    info->set_alive(true);
    info->add_lanes();
    proto::ShardInfo* shard = plan.add_shards();
    shard->set_shard(info->server());
    shard->set_server(info->server());
  }
  for (const std::string& host : workers) {
    proto::WorkerInfo* info = plan.add_workers();
    info->set_rank(static_cast<uint32_t>(plan.workers_size() - 1));
    info->set_host(host);
  }
  return plan;
}

proto::Tree TreeOf(uint32_t number, const std::vector<std::tuple<uint32_t, int32_t, std::vector<uint32_t>>>& nodes) {
  proto::Tree tree;
  tree.set_tree(number);
  for (const auto& [server, parent, ranks] : nodes) {
    proto::TreeNode* node = tree.add_nodes();
    node->set_server(server);
    node->set_parent(parent);
    node->mutable_ranks()->Assign(ranks.begin(), ranks.end());
  }
  return tree;
}

TEST(Trees, EachHostWithAServerAndSeveralWorkersHasAnAggregator) {
  proto::Plan plan = MakePlan({"a", "a", "b", "c"}, {"a", "b", "a", "b", "d", "c"});
  const TreeChoice choice = RackTrees(plan);
  ASSERT_TRUE(ApplyTrees(choice, 12, &plan).ok());
  ASSERT_EQ(plan.trees_size(), 1);
  const proto::Tree& tree = plan.trees(0);
  EXPECT_EQ(tree.epoch(), 12u);
  ASSERT_EQ(tree.nodes_size(), 2);   // c has one worker, d no server
  EXPECT_EQ(tree.nodes(0).server(), 0u);
  EXPECT_THAT(tree.nodes(0).ranks(), ElementsAre(0, 2));
  EXPECT_EQ(tree.nodes(1).server(), 2u);
  EXPECT_THAT(tree.nodes(1).ranks(), ElementsAre(1, 3));
  for (const proto::ShardInfo& shard : plan.shards()) EXPECT_EQ(shard.tree(), 1u);
}

TEST(Trees, WhereThereCanBeNoneThePlanSaysWhy) {
  proto::Plan plan = MakePlan({"a", "b"}, {"a", "b"});
  ASSERT_TRUE(ApplyTrees(RackTrees(plan), 3, &plan).ok());
  EXPECT_THAT(plan.trees(0).why(), HasSubstr("no host"));
  EXPECT_EQ(plan.shards(0).tree(), 0u);
  plan = MakePlan({"a"}, {"a", "a"});
  plan.mutable_config()->set_backup_workers(1);
  ASSERT_TRUE(ApplyTrees(RackTrees(plan), 3, &plan).ok());
  EXPECT_THAT(plan.trees(0).why(), HasSubstr("job.backup_workers"));
  EXPECT_EQ(control::WayOf(plan, plan.shards(0)), nullptr);
}

TEST(Trees, WhatDoesNotHoldTogetherIsRefusedAndChangesNothing) {
  const proto::Plan before = MakePlan({"a", "b"}, {"a", "b", "b"});
  const auto refused = [&](TreeChoice choice, const std::string& what) {
    proto::Plan plan = before;
    const absl::Status status = ApplyTrees(choice, 5, &plan);
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_EQ(plan.SerializeAsString(), before.SerializeAsString());
  };
  refused({.trees = {TreeOf(1, {{0, 0, {0}}})}, .tree_of_shard = {}}, "circle");
  refused({.trees = {TreeOf(1, {{0, -1, {0, 3}}})}, .tree_of_shard = {}}, "rank 3 of 3");
  refused({.trees = {TreeOf(1, {}), TreeOf(1, {})}, .tree_of_shard = {}}, "two aggregation trees 1");
  refused({.trees = {TreeOf(1, {})}, .tree_of_shard = {{0, 2}}}, "tree 2");
  refused({.trees = {TreeOf(1, {})}, .tree_of_shard = {{9, 1}}}, "shard 9");
  proto::Plan ssp = before;
  ssp.mutable_config()->set_mode(proto::MODE_SSP);
  EXPECT_EQ(ApplyTrees({.trees = {TreeOf(1, {{0, -1, {0, 1}}})}, .tree_of_shard = {}}, 5, &ssp).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Trees, ATreeThatIsTheSameKeepsItsEpoch) {
  proto::Plan plan = MakePlan({"a", "b"}, {"a", "a", "b", "b"});
  TreeChoice choice{.trees = {TreeOf(1, {{0, -1, {0, 1}}}), TreeOf(2, {{1, -1, {2, 3}}})}, .tree_of_shard = {{1, 1}, {0, 2}}};
  ASSERT_TRUE(ApplyTrees(choice, 10, &plan).ok());
  choice.trees[1] = TreeOf(2, {{1, -1, {1, 2, 3}}});
  ASSERT_TRUE(ApplyTrees(choice, 11, &plan).ok());
  EXPECT_EQ(plan.trees(0).epoch(), 10u);
  EXPECT_EQ(plan.trees(1).epoch(), 11u);
}

TEST(Trees, ALostServersRanksGoToItsParentOrTheOwner) {
  proto::Plan plan = MakePlan({"a", "b", "c", "d"}, {"a", "a", "b", "b", "c", "c"});
  // 1 and 2 forward to 0; 3 to the owner.
  ASSERT_TRUE(ApplyTrees({.trees = {TreeOf(1, {{1, 2, {2, 3}}, {3, -1, {5}}, {0, -1, {0}}, {2, 2, {4}}})}, .tree_of_shard = {{0, 1}}}, 10, &plan).ok());
  EXPECT_FALSE(PruneTrees(&plan));
  EXPECT_EQ(plan.trees(0).epoch(), 10u);
  plan.mutable_servers(1)->set_alive(false);
  plan.mutable_servers(3)->set_alive(false);
  EXPECT_TRUE(PruneTrees(&plan));
  const proto::Tree& tree = plan.trees(0);
  EXPECT_EQ(tree.epoch(), 11u);
  EXPECT_EQ(tree.why(), "without server s1, s3, which was lost");
  ASSERT_EQ(tree.nodes_size(), 2);
  EXPECT_EQ(tree.nodes(0).server(), 0u);
  EXPECT_EQ(tree.nodes(0).parent(), -1);
  EXPECT_THAT(tree.nodes(0).ranks(), ElementsAre(0, 2, 3));
  EXPECT_EQ(tree.nodes(1).server(), 2u);
  EXPECT_EQ(tree.nodes(1).parent(), 0);
  plan.mutable_servers(0)->set_alive(false);
  EXPECT_TRUE(PruneTrees(&plan));
  ASSERT_EQ(tree.nodes_size(), 1);
  EXPECT_EQ(tree.nodes(0).parent(), -1);
  EXPECT_THAT(tree.nodes(0).ranks(), ElementsAre(4));
  EXPECT_FALSE(PruneTrees(&plan));
}

TEST(Trees, RanksThatAreOutPushToTheOwner) {
  proto::Plan plan = MakePlan({"a"}, {"a", "a", "a"});
  ASSERT_TRUE(ApplyTrees(RackTrees(plan), 4, &plan).ok());
  plan.mutable_workers(1)->add_out_from_round(5);
  EXPECT_TRUE(PruneTrees(&plan));
  EXPECT_THAT(plan.trees(0).nodes(0).ranks(), ElementsAre(0, 2));
  EXPECT_EQ(plan.trees(0).epoch(), 5u);
  EXPECT_EQ(plan.trees(0).why(), "without rank 1, which is out");
}

// What is left says the same ways as the tree before did with the losses taken into account.
TEST(Trees, PrunedTreesHaveTheWaysOfTheFullOnes) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    PhiloxRandom random(seed, 2);
    const uint32_t servers = 1 + random.Below(6), workers = 1 + random.Below(8);
    proto::Plan plan = MakePlan(std::vector<std::string>(servers, "h"), std::vector<std::string>(workers, "h"));
    TreeChoice choice;
    proto::Tree& tree = choice.trees.emplace_back();
    tree.set_tree(1);
    for (uint32_t s = 0; s < servers; ++s) {
      proto::TreeNode* node = tree.add_nodes();
      node->set_server(s);
      node->set_parent(static_cast<int32_t>(random.Below(s + 1)) - 1);
    }
    for (uint32_t rank = 0; rank < workers; ++rank) tree.mutable_nodes(static_cast<int>(random.Below(servers)))->add_ranks(rank);
    for (uint32_t s = 0; s < servers; ++s) choice.tree_of_shard[s] = 1;
    ASSERT_TRUE(ApplyTrees(choice, 3, &plan).ok());
    for (uint32_t s = 0; s < servers; ++s) plan.mutable_servers(static_cast<int>(s))->set_alive(random.Chance(0.6));
    if (random.Chance(0.3)) plan.mutable_workers(0)->add_out_from_round(1);
    proto::Plan pruned = plan;
    PruneTrees(&pruned);
    ASSERT_EQ(control::CheckTree(pruned, pruned.trees(0)), "");
    for (uint32_t s = 0; s < servers; ++s) {
      const auto a = control::WayOf(plan, plan.shards(static_cast<int>(s))), b = control::WayOf(pruned, pruned.shards(static_cast<int>(s)));
      ASSERT_EQ(a->nodes.size(), b->nodes.size());
      for (size_t i = 0; i < a->nodes.size(); ++i) {
        EXPECT_EQ(a->nodes[i].server, b->nodes[i].server);
        EXPECT_EQ(a->nodes[i].parent, b->nodes[i].parent);
        EXPECT_EQ(a->nodes[i].covers, b->nodes[i].covers);
      }
    }
  }
}

class TreesOfJobs : public CopiesHarness {};

TEST_F(TreesOfJobs, ALostAggregatorLeavesTheTreeWithTheSamePlan) {
  Start(3, /*replicas=*/1);
  Report(/*in_sync=*/true);
  TreeChoice choice{.trees = {TreeOf(1, {{1, -1, {0}}})}, .tree_of_shard = {{0, 1}}};
  ASSERT_TRUE(core_->SetTrees("j", choice).ok());
  const proto::Plan before = Plan();
  EXPECT_EQ(before.trees(0).epoch(), before.version());
  EXPECT_EQ(before.shards(0).tree(), 1u);
  core_->OnSessionClosed(s_[1]);
  peers_[s_[1]].open = false;
  Run(8 * kSecond, Others(1));
  const proto::Plan after = Plan();
  ASSERT_EQ(after.state(), proto::JOB_RUNNING);
  ASSERT_FALSE(after.servers(1).alive());
  EXPECT_THAT(after.trees(0).nodes(), IsEmpty());
  EXPECT_GT(after.trees(0).epoch(), before.trees(0).epoch());
  EXPECT_LE(after.trees(0).epoch(), after.version());
}

TEST_F(TreesOfJobs, WhatIsNoTreeIsRefused) {
  Start(2, 0);
  EXPECT_EQ(core_->SetTrees("other", {}).code(), absl::StatusCode::kNotFound);
  const uint64_t version = Plan().version();
  EXPECT_EQ(core_->SetTrees("j", {.trees = {TreeOf(1, {{7, -1, {0}}})}, .tree_of_shard = {}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Plan().version(), version);
}

}  // namespace
}  // namespace sluice::scheduler
