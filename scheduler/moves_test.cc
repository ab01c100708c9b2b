#include "scheduler/moves.h"

#include <algorithm>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/move_records.h"
#include "scheduler/plan_builder.h"

namespace sluice::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Of shards that are large: their moves are bounded by `at_once`.
proto::JobRecord LargeJob(int servers, uint32_t shards, uint32_t replicas) {
  proto::JobRecord record = Job(servers, shards, replicas);
  for (auto& shard : *record.mutable_plan()->mutable_shards()) shard.set_bytes(kSmallShardBytes + 1);
  return record;
}

std::vector<uint32_t> ShardsOf(const std::vector<proto::MoveRecord>& moves) {
  std::vector<uint32_t> shards;
  for (const auto& move : moves) shards.push_back(move.shard());
  return shards;
}

// Until nothing changes any more; every copy is in sync at once.
int Finish(CopyRules rules, uint32_t at_once, proto::JobRecord* record) {
  int rounds = 0;
  for (; rounds < 1000; ++rounds) {
    for (auto& shard : *record->mutable_plan()->mutable_shards())
      for (auto& copy : *shard.mutable_backups()) copy.set_in_sync(true);
    ++rules.since;
    rules.term = NextTerm(record->plan(), 0);
    const MoveChanges changes = PlanMoves(*record, rules, at_once);
    const bool tend = NeedsTending(rules, record->plan());
    if (!changes.Any() && !tend) return rounds;
    ApplyMoves(changes, rules, record);
    Tend(rules, false, record->mutable_plan());
    std::map<uint32_t, uint32_t> busy;
    for (const auto& shard : record->plan().shards())
      if (shard.moving()) ++busy[shard.server()], ++busy[shard.move_to()];
    for (const auto& [server, n] : busy) EXPECT_LE(n, at_once);
  }
  return rounds;
}

TEST(Moves, BeginInTheirOrderAFewAtATime) {
  proto::JobRecord record = LargeJob(4, 16, 1);
  const CopyRules rules = Rules(1, record);
  for (const uint32_t shard : {0u, 4u, 8u, 1u}) Ask(shard, 3, &record);   // 0, 4 and 8 are of server 0
  MoveChanges changes = PlanMoves(record, rules, 2);
  EXPECT_THAT(ShardsOf(changes.begun), ElementsAre(0u, 4u));
  ApplyMoves(changes, rules, &record);
  EXPECT_TRUE(record.plan().shards(0).moving());
  EXPECT_EQ(record.plan().shards(0).move_to(), 3u);
  EXPECT_NE(FindCopy(record.plan().shards(0), 3), nullptr);
  EXPECT_THAT(PlanMoves(record, rules, 2).begun, IsEmpty());
  EXPECT_THAT(ShardsOf(PlanMoves(record, rules, 3).begun), ElementsAre(8u));
  record.set_moves_paused(true);
  EXPECT_THAT(PlanMoves(record, rules, 9).begun, IsEmpty());
  record.set_moves_paused(false);
  Finish(rules, 2, &record);
  EXPECT_THAT(record.moves(), IsEmpty());
  for (const int shard : {0, 4, 8, 1}) EXPECT_EQ(record.plan().shards(shard).server(), 3u);
  EXPECT_TRUE(ProtectionOf(record.plan(), 1).Full());
}

TEST(Moves, SmallShardsHaveABoundOfTheirOwnUnlessTheyHoldATable) {
  proto::JobRecord record = LargeJob(4, 16, 1);
  const CopyRules rules = Rules(1, record);
  for (const int shard : {0, 4, 1, 5, 2}) record.mutable_plan()->mutable_shards(shard)->set_bytes(kSmallShardBytes);
  proto::TensorInfo* table = record.mutable_plan()->add_tensors();
  table->mutable_spec()->mutable_table();
  table->add_partition_shard(2);
  for (const uint32_t shard : {0u, 4u, 8u, 1u, 5u, 12u, 2u}) Ask(shard, 3, &record);
  EXPECT_THAT(ShardsOf(PlanMoves(record, rules, 1).begun), ElementsAre(0u, 4u, 8u, 1u, 5u));
  EXPECT_THAT(ShardsOf(PlanMoves(record, rules, 2).begun), ElementsAre(0u, 4u, 8u, 1u, 5u, 12u));
}

TEST(Moves, EndWithTheirSourceTheirTargetOrItsDrain) {
  for (const int what : {0, 1, 2}) {
    proto::JobRecord record = LargeJob(4, 4, 1);
    CopyRules rules = Rules(1, record);
    Ask(0, 3, &record);
    ApplyMoves(PlanMoves(record, rules, 2), rules, &record);
    ASSERT_TRUE(record.plan().shards(0).moving());
    if (what == 0) LoseServers({0}, rules, record.mutable_plan());
    if (what == 1) LoseServers({3}, rules, record.mutable_plan());
    if (what == 2) rules.draining = {3};
    const MoveChanges changes = PlanMoves(record, rules, 2);
    EXPECT_THAT(changes.over, ElementsAre(0));
    ApplyMoves(changes, rules, &record);
    EXPECT_EQ(FindMove(record, 0), nullptr);
    EXPECT_FALSE(record.plan().shards(0).moving());
  }
}

TEST(Moves, WaitForATargetWithoutAStream) {
  proto::JobRecord record = LargeJob(3, 3, 1);
  CopyRules rules = Rules(1, record);
  Ask(0, 2, &record);
  rules.avoid = {2};
  EXPECT_FALSE(PlanMoves(record, rules, 2).Any());
  rules.avoid = {};
  EXPECT_THAT(PlanMoves(record, rules, 2).begun, SizeIs(1));
}

TEST(Moves, ADrainEmptiesTheServerAndKeepsTheJobProtected) {
  for (const uint32_t replicas : {0u, 1u, 2u}) {
    proto::JobRecord record = LargeJob(4, 32, replicas);
    CopyRules rules = Rules(replicas, record);
    rules.draining = {0};
    EXPECT_EQ(PlanMoves(record, rules, 2).coordinator, 1u);
    Finish(rules, 2, &record);
    EXPECT_EQ(HeldBy(record.plan(), 0).shards, 0u);
    EXPECT_EQ(HeldBy(record.plan(), 0).copies, 0u);
    EXPECT_NE(record.plan().coordinator_server(), 0u);
    for (const uint32_t server : {1u, 2u, 3u}) EXPECT_NEAR(HeldBy(record.plan(), server).shards, 32 / 3.0, 1.0);
    EXPECT_EQ(ProtectionOf(record.plan(), replicas).lacking, 0u);
    EXPECT_THAT(record.moves(), IsEmpty());
  }
}

TEST(Moves, ADrainWithNowhereToGoDoesNothing) {
  proto::JobRecord record = LargeJob(2, 4, 1);
  CopyRules rules = Rules(1, record);
  rules.draining = {0, 1};
  EXPECT_FALSE(PlanMoves(record, rules, 2).Any());
}

TEST(Moves, CancelEndsAllButDrains) {
  proto::JobRecord record = LargeJob(4, 8, 1);
  CopyRules rules = Rules(1, record);
  Ask(1, 2, &record);   // begins
  Ask(5, 2, &record);
  rules.draining = {0};
  ApplyMoves(PlanMoves(record, rules, 1), rules, &record);
  ASSERT_TRUE(record.plan().shards(1).moving());
  EXPECT_EQ(CancelMoves(rules, &record), 2u);
  EXPECT_FALSE(record.plan().shards(1).moving());
  ASSERT_EQ(record.moves_size(), 2);
  EXPECT_EQ(record.moves(0).from(), 0u);
  EXPECT_THAT(record.moves(0).reason(), HasSubstr("s0 is being drained"));
}

}  // namespace
}  // namespace sluice::scheduler
