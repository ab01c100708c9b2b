#include "scheduler/moves.h"

#include <algorithm>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/plan_builder.h"

namespace sluice::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

proto::JobRecord Job(int servers, uint32_t shards, uint32_t replicas) {
  proto::JobRecord record;
  proto::Plan* plan = record.mutable_plan();
  for (int i = 0; i < servers; ++i) {
    proto::ServerInfo* info = plan->add_servers();
    info->set_server(static_cast<uint32_t>(i));
    info->set_id("s" + std::to_string(i));
    info->set_alive(true);
    info->add_lanes();
    info->add_lanes();
  }
  PlaceShards(shards, 1, plan);
  Tend({.replicas = replicas, .since = 1, .term = 2, .avoid = {}, .draining = {}}, true, plan);
  return record;
}

CopyRules Rules(uint32_t replicas, const proto::JobRecord& record) {
  return {.replicas = replicas, .since = 2, .term = NextTerm(record.plan(), 0), .avoid = {}, .draining = {}};
}

void Ask(uint32_t shard, uint32_t to, proto::JobRecord* record) {
  proto::MoveRecord* move = record->add_moves();
  move->set_shard(shard);
  move->set_from(record->plan().shards(static_cast<int>(shard)).server());
  move->set_to(to);
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
  proto::JobRecord record = Job(4, 16, 1);
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

TEST(Moves, EndWithTheirSourceTheirTargetOrItsDrain) {
  for (const int what : {0, 1, 2}) {
    proto::JobRecord record = Job(4, 4, 1);
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
  proto::JobRecord record = Job(3, 3, 1);
  CopyRules rules = Rules(1, record);
  Ask(0, 2, &record);
  rules.avoid = {2};
  EXPECT_FALSE(PlanMoves(record, rules, 2).Any());
  rules.avoid = {};
  EXPECT_THAT(PlanMoves(record, rules, 2).begun, SizeIs(1));
}

TEST(Moves, ADrainEmptiesTheServerAndKeepsTheJobProtected) {
  for (const uint32_t replicas : {0u, 1u, 2u}) {
    proto::JobRecord record = Job(4, 32, replicas);
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
  proto::JobRecord record = Job(2, 4, 1);
  CopyRules rules = Rules(1, record);
  rules.draining = {0, 1};
  EXPECT_FALSE(PlanMoves(record, rules, 2).Any());
}

TEST(Moves, CancelEndsAllButDrains) {
  proto::JobRecord record = Job(4, 8, 1);
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

TEST(Rebalance, MovesTheFewestToAServerThatJoined) {
  proto::JobRecord record = Job(4, 12, 0);
  for (auto& shard : *record.mutable_plan()->mutable_shards()) {
    shard.set_server(shard.shard() % 3);   // the fourth owns nothing yet
    shard.set_bytes(10 << 20);
  }
  const Balance balance = PlanRebalance(record, Rules(0, record), {});
  EXPECT_THAT(balance.moves, SizeIs(3));
  for (const auto& move : balance.moves) EXPECT_EQ(move.to(), 3u);
  for (const auto& [server, bytes] : balance.after) EXPECT_EQ(bytes, 30u << 20);
  EXPECT_EQ(balance.before.at(0), 40u << 20);
  EXPECT_EQ(balance.moves[0].reason(), "s0 owns 40.0 MiB, 33 % above the mean; s3 owns 0.0 KiB");
}

TEST(Rebalance, RowsOfTablesCountAndWhatIsBalancedStays) {
  proto::JobRecord record = Job(2, 4, 0);
  EXPECT_THAT(PlanRebalance(record, Rules(0, record), {}).moves, IsEmpty());
  EXPECT_THAT(PlanRebalance(record, Rules(0, record), {{0, 50}, {1, 50}, {2, 50}, {3, 55}}).moves, IsEmpty());
  const Balance balance = PlanRebalance(record, Rules(0, record), {{0, 100}, {2, 100}});   // both of server 0
  ASSERT_THAT(balance.moves, SizeIs(1));
  EXPECT_EQ(balance.moves[0].from(), 0u);
  // One heavy shard cannot be halved.
  EXPECT_THAT(PlanRebalance(record, Rules(0, record), {{0, 1000}}).moves, IsEmpty());
}

TEST(Rebalance, CountsShardsWhileNothingHasASize) {
  proto::JobRecord record = Job(2, 8, 0);
  for (auto& shard : *record.mutable_plan()->mutable_shards()) shard.set_server(0);
  const Balance balance = PlanRebalance(record, Rules(0, record), {});
  EXPECT_THAT(balance.moves, SizeIs(4));
  EXPECT_THAT(balance.moves[0].reason(), HasSubstr("s0 owns 8 empty shards"));
}

TEST(Rebalance, QueuedMovesAndServersThatCannotTakeAreSeen) {
  proto::JobRecord record = Job(3, 6, 0);
  for (auto& shard : *record.mutable_plan()->mutable_shards()) shard.set_server(0), shard.set_bytes(1000);
  CopyRules rules = Rules(0, record);
  rules.draining = {2};
  Ask(0, 1, &record);
  Ask(1, 1, &record);
  const Balance balance = PlanRebalance(record, rules, {});
  EXPECT_EQ(balance.before.at(1), 2000u);
  ASSERT_THAT(balance.moves, SizeIs(1));
  EXPECT_EQ(balance.moves[0].to(), 1u);
}

// The end is balanced, or no single move helps; and as many moves as a slow search would need are not exceeded by much.
TEST(Rebalance, RandomJobsEndBalancedOrWithoutAMoveThatHelps) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    PhiloxRandom random(seed);
    const int servers = 2 + static_cast<int>(random.Below(5));
    proto::JobRecord record = Job(servers, 1 + random.Below(60), 0);
    std::map<uint32_t, uint64_t> owned;
    for (int i = 0; i < servers; ++i) owned[static_cast<uint32_t>(i)] = 0;
    uint64_t total = 0;
    for (auto& shard : *record.mutable_plan()->mutable_shards()) {
      shard.set_server(random.Chance(0.4) ? 0 : random.Below(static_cast<uint32_t>(servers)));
      shard.set_bytes(1 + random.Below(1000));
      owned[shard.server()] += shard.bytes();
      total += shard.bytes();
    }
    const Balance balance = PlanRebalance(record, Rules(0, record), {});
    EXPECT_EQ(balance.before, owned);
    std::set<uint32_t> moved;
    for (const auto& move : balance.moves) {
      const auto& shard = record.plan().shards(static_cast<int>(move.shard()));
      EXPECT_EQ(shard.server(), move.from());
      EXPECT_TRUE(moved.insert(move.shard()).second) << "moved twice";
      owned[move.from()] -= shard.bytes();
      owned[move.to()] += shard.bytes();
    }
    EXPECT_EQ(balance.after, owned);
    const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto largest = std::max_element(owned.begin(), owned.end(), less);
    const auto smallest = std::min_element(owned.begin(), owned.end(), less);
    if (static_cast<double>(largest->second) <= 1.1 * static_cast<double>(total) / servers) continue;
    for (const auto& shard : record.plan().shards())
      EXPECT_FALSE(shard.server() == largest->first && moved.count(shard.shard()) == 0 &&
                   shard.bytes() < largest->second - smallest->second)
          << "shard " << shard.shard() << " could still go";
  }
}

}  // namespace
}  // namespace sluice::scheduler
