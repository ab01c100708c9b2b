#include "scheduler/balance.h"

#include <algorithm>
#include <set>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/move_records.h"
#include "scheduler/plan_builder.h"

namespace sluice::scheduler {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Balance, MovesTheFewestToAServerThatJoined) {
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

TEST(Balance, RowsOfTablesCountAndWhatIsBalancedStays) {
  proto::JobRecord record = Job(2, 4, 0);
  EXPECT_THAT(PlanRebalance(record, Rules(0, record), {}).moves, IsEmpty());
  EXPECT_THAT(PlanRebalance(record, Rules(0, record), {{0, 50}, {1, 50}, {2, 50}, {3, 55}}).moves, IsEmpty());
  const Balance balance = PlanRebalance(record, Rules(0, record), {{0, 100}, {2, 100}});   // both of server 0
  ASSERT_THAT(balance.moves, SizeIs(1));
  EXPECT_EQ(balance.moves[0].from(), 0u);
  // One heavy shard cannot be halved.
  EXPECT_THAT(PlanRebalance(record, Rules(0, record), {{0, 1000}}).moves, IsEmpty());
}

TEST(Balance, CountsShardsWhileNothingHasASize) {
  proto::JobRecord record = Job(2, 8, 0);
  for (auto& shard : *record.mutable_plan()->mutable_shards()) shard.set_server(0);
  const Balance balance = PlanRebalance(record, Rules(0, record), {});
  EXPECT_THAT(balance.moves, SizeIs(4));
  EXPECT_THAT(balance.moves[0].reason(), HasSubstr("s0 owns 8 empty shards"));
}

TEST(Balance, QueuedMovesAndServersThatCannotTakeAreSeen) {
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
TEST(Balance, RandomJobsEndBalancedOrWithoutAMoveThatHelps) {
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


// --- by load

// Servers with one event loop each and a link of `link` bytes a second; what shards cost their owners.
Loads Measured(const proto::JobRecord& record, const std::vector<Cost>& shards, double link = 0) {
  Loads loads;
  for (const proto::ServerInfo& info : record.plan().servers())
    loads.servers[info.server()].capacity = {.cpu = 1, .in = link, .out = link};
  for (const proto::ShardInfo& shard : record.plan().shards())
    loads.shards[{shard.shard(), shard.server()}] = shards.at(shard.shard());
  return loads;
}

TEST(Balance, ALoadThatIsSkewedIsSpreadWhateverTheBytes) {
  proto::JobRecord record = Job(2, 8, 0);   // shard i is of server i % 2
  for (auto& shard : *record.mutable_plan()->mutable_shards()) shard.set_bytes(1 << 20);
  std::vector<Cost> costs(8);
  for (const size_t hot : {0, 2, 4, 6}) costs[hot] = {.cpu = 0.2, .in = 1000, .out = 1000};
  EXPECT_THAT(PlanRebalance(record, Rules(0, record), {}).moves, IsEmpty());
  const Loads loads = Measured(record, costs);
  const Balance balance = PlanRebalance(record, Rules(0, record), {}, &loads);
  ASSERT_THAT(balance.moves, SizeIs(2));
  for (const auto& move : balance.moves) EXPECT_EQ(move.to(), 1u);
  EXPECT_THAT(balance.moves[0].reason(),
              HasSubstr("s0 is at 80 % (CPU 80 %, 7.8 KiB/s), 100 % above the mean, s1 at 0 %"));
  EXPECT_THAT(balance.moves[0].reason(), HasSubstr("the shard takes 20 % (CPU 20 %, 2.0 KiB/s)"));
  EXPECT_NEAR(balance.largest_before, 0.8, 1e-9);
  EXPECT_NEAR(balance.largest_after, 0.4, 1e-9);
  EXPECT_NEAR(balance.cost_after.at(1).cpu, 0.4, 1e-9);
  EXPECT_EQ(balance.moved_bytes, 2u << 20);
  EXPECT_EQ(balance.after.at(0), 2u << 20);
}

TEST(Balance, TheLinkIsTheBottleneckWhereItIsFuller) {
  proto::JobRecord record = Job(2, 4, 0);
  std::vector<Cost> costs(4, {.cpu = 0.1, .in = 0, .out = 0});
  costs[0].out = costs[2].out = 40e6;       // both of server 0
  const Loads loads = Measured(record, costs, 100e6);
  const Balance balance = PlanRebalance(record, Rules(0, record), {}, &loads);
  ASSERT_THAT(balance.moves, SizeIs(1));
  EXPECT_EQ(balance.moves[0].from(), 0u);
  EXPECT_NEAR(balance.largest_before, 0.8, 1e-9);
}

TEST(Balance, WhatNoMoveChangesCountsToo) {
  proto::JobRecord record = Job(2, 4, 0);
  Loads loads = Measured(record, std::vector<Cost>(4, {.cpu = 0.1, .in = 0, .out = 0}));
  loads.servers[1].base.cpu = 0.4;          // another job's
  const Balance balance = PlanRebalance(record, Rules(0, record), {}, &loads);
  ASSERT_THAT(balance.moves, SizeIs(2));
  for (const auto& move : balance.moves) EXPECT_EQ(move.to(), 0u);
}

TEST(Balance, AShardThatGoesToItsCopySwapsRolesWithIt) {
  proto::JobRecord record = Job(2, 8, 1);
  for (auto& shard : *record.mutable_plan()->mutable_shards()) {
    shard.set_server(0);
    shard.mutable_backups(0)->set_server(1);
  }
  Loads loads = Measured(record, std::vector<Cost>(8, {.cpu = 0.1, .in = 0, .out = 0}));
  for (uint32_t shard = 0; shard < 8; ++shard) loads.shards[{shard, 1}].cpu = 0.06;
  const Balance balance = PlanRebalance(record, Rules(1, record), {}, &loads);
  // .8 and .48; each move takes .04 from one and gives it to the other, and .68 is within a tenth of the mean.
  EXPECT_THAT(balance.moves, SizeIs(3));
  EXPECT_NEAR(balance.cost_after.at(0).cpu, 0.68, 1e-9);
  EXPECT_NEAR(balance.cost_after.at(1).cpu, 0.60, 1e-9);
}

TEST(Balance, OneHotShardStaysWhereItIs) {
  proto::JobRecord record = Job(3, 3, 0);
  std::vector<Cost> costs(3, {.cpu = 0.02, .in = 0, .out = 0});
  costs[1].cpu = 0.9;
  for (const uint32_t owner : {0u, 1u, 2u}) {
    record.mutable_plan()->mutable_shards(1)->set_server(owner);
    const Loads loads = Measured(record, costs);
    const Balance balance = PlanRebalance(record, Rules(0, record), {}, &loads);
    for (const auto& move : balance.moves) EXPECT_NE(move.shard(), 1u);   // what shares its server may go
    record.mutable_plan()->mutable_shards(1)->set_server(1);
  }
}

TEST(Balance, RandomLoadsEndLowerAndNothingIsMovedTwice) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    PhiloxRandom random(seed);
    const int servers = 2 + static_cast<int>(random.Below(4));
    proto::JobRecord record = Job(servers, 1 + random.Below(40), 1);
    std::vector<Cost> costs;
    for (int i = 0; i < record.plan().shards_size(); ++i)
      costs.push_back({random.Uniform() * 0.05, random.Uniform() * 1e6, random.Uniform() * 1e6});
    Loads loads = Measured(record, costs, random.Chance(0.5) ? 2e7 : 0);
    for (const auto& shard : record.plan().shards())
      for (const auto& copy : shard.backups())
        loads.shards[{shard.shard(), copy.server()}].cpu = random.Uniform() * 0.02;
    const Balance balance = PlanRebalance(record, Rules(1, record), {}, &loads);
    EXPECT_LE(balance.largest_after, balance.largest_before + 1e-9);
    std::set<uint32_t> moved;
    for (const auto& move : balance.moves) {
      EXPECT_TRUE(moved.insert(move.shard()).second);
      EXPECT_NE(move.from(), move.to());
    }
  }
}

// --- when

constexpr BottleneckWatch::Rule kRule{.after = 10 * kSecond, .over = 1.3, .cooldown = 60 * kSecond};

class Watch : public ::testing::Test {
 protected:
  // Whether it says so within this time, looking each second.
  bool Look(std::vector<double> loads, TimeNs during) {
    std::map<uint32_t, double> map;
    for (uint32_t i = 0; i < loads.size(); ++i) map[i] = loads[i];
    for (TimeNs t = 0; t < during; t += kSecond) {
      now_ += kSecond;
      if (watch_.Observe(&map, kRule, now_)) return true;
    }
    return false;
  }
  BottleneckWatch watch_;
  TimeNs now_ = 100 * kSecond;
};

TEST_F(Watch, OneServerThatStaysTheBottleneck) {
  EXPECT_FALSE(Look({0.8, 0.2, 0.2}, 10 * kSecond));
  EXPECT_TRUE(Look({0.8, 0.2, 0.2}, kSecond));
}

TEST_F(Watch, BalancedOrIdleServersAreLeftAlone) {
  EXPECT_FALSE(Look({0.5, 0.4, 0.4}, 100 * kSecond));
  EXPECT_FALSE(Look({0.04, 0, 0}, 100 * kSecond));
  EXPECT_FALSE(Look({0.9}, 100 * kSecond));
  EXPECT_FALSE(Look({}, 100 * kSecond));
}

TEST_F(Watch, ALoadThatSwingsIsNone) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(Look({0.8, 0.2}, 9 * kSecond));
    EXPECT_FALSE(Look({0.5, 0.5}, kSecond));
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(Look({0.8, 0.2}, 9 * kSecond));
    EXPECT_FALSE(Look({0.2, 0.8}, 9 * kSecond));
  }
}

TEST_F(Watch, AGapInTheMeasurementsBeginsAnew) {
  EXPECT_FALSE(Look({0.8, 0.2}, 9 * kSecond));
  EXPECT_FALSE(watch_.Observe(nullptr, kRule, now_));
  EXPECT_FALSE(Look({0.8, 0.2}, 10 * kSecond));
  EXPECT_TRUE(Look({0.8, 0.2}, kSecond));
}

TEST_F(Watch, NothingWithinTheCooldownOfAMove) {
  watch_.Moves(now_);
  EXPECT_FALSE(Look({0.8, 0.2}, 59 * kSecond));
  EXPECT_TRUE(Look({0.8, 0.2}, kSecond));
}

TEST(Worth, ARebalanceMustTakeSomethingOffAndPayForItsBytes) {
  Balance balance;
  balance.moves.emplace_back();
  balance.largest_before = 0.8;
  balance.largest_after = 0.5;
  EXPECT_TRUE(Worth(balance, 60 * kSecond));
  balance.moved_bytes = uint64_t{10} << 30;
  EXPECT_FALSE(Worth(balance, 60 * kSecond));
  EXPECT_TRUE(Worth(balance, 600 * kSecond));
  balance.moved_bytes = 0;
  balance.largest_after = 0.79;
  EXPECT_FALSE(Worth(balance, 600 * kSecond));
  balance.moves.clear();
  balance.largest_after = 0.5;
  EXPECT_FALSE(Worth(balance, 600 * kSecond));
}

}  // namespace
}  // namespace sluice::scheduler
