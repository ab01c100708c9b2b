#include "scheduler/replicas.h"

#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/plan_builder.h"

namespace sluice::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

void AddServer(proto::Plan* plan, int lanes) {
  proto::ServerInfo* info = plan->add_servers();
  info->set_server(static_cast<uint32_t>(plan->servers_size() - 1));
  info->set_id("s" + std::to_string(info->server()));
  info->set_alive(true);
  for (int i = 0; i < lanes; ++i) info->add_lanes();
}

proto::Plan Servers(int servers, uint32_t shards, int lanes = 1) {
  proto::Plan plan;
  for (int i = 0; i < servers; ++i) AddServer(&plan, lanes);
  PlaceShards(shards, 1, &plan);
  return plan;
}

proto::Plan Started(int servers, uint32_t shards, uint32_t replicas, int lanes = 1) {
  proto::Plan plan = Servers(servers, shards, lanes);
  Tend({.replicas = replicas, .since = 1, .term = 2, .avoid = {}, .draining = {}}, true, &plan);
  return plan;
}

CopyRules Rules(uint32_t replicas, uint64_t since, const proto::Plan& plan) {
  return {.replicas = replicas, .since = since, .term = NextTerm(plan, 0), .avoid = {}, .draining = {}};
}

std::vector<uint32_t> CopiesOf(const proto::ShardInfo& shard) {
  std::vector<uint32_t> servers;
  for (const auto& copy : shard.backups()) servers.push_back(copy.server());
  std::sort(servers.begin(), servers.end());
  return servers;
}

void SetInSync(proto::Plan* plan) {
  for (auto& shard : *plan->mutable_shards())
    for (auto& copy : *shard.mutable_backups()) copy.set_in_sync(true);
}

void StartMove(uint32_t to, uint64_t since, proto::ShardInfo* shard) {
  if (FindCopy(*shard, to) == nullptr) {
    shard->add_backups()->set_server(to);
    shard->mutable_backups(shard->backups_size() - 1)->set_since(since);
  }
  shard->set_moving(true);
  shard->set_move_to(to);
}

TEST(Replicas, FirstCopiesAreSpreadEvenlyOverServersAndLanesAndPairs) {
  for (const int servers : {2, 3, 4, 7}) {
    for (const uint32_t replicas : {1u, 2u, 3u}) {
      const int lanes = 2;
      const auto shards = static_cast<uint32_t>(16 * servers * lanes);
      const proto::Plan plan = Started(servers, shards, replicas, lanes);
      const uint32_t wanted = std::min<uint32_t>(replicas, static_cast<uint32_t>(servers) - 1);
      std::map<std::pair<uint32_t, uint32_t>, uint32_t> lane, pair;
      for (const auto& shard : plan.shards()) {
        EXPECT_EQ(shard.backups_size(), static_cast<int>(wanted));
        for (const auto& copy : shard.backups()) {
          EXPECT_TRUE(copy.in_sync());
          EXPECT_EQ(copy.since(), 1u);
          ++lane[{copy.server(), copy.lane()}], ++pair[{shard.server(), copy.server()}];
        }
      }
      for (const auto& [key, n] : lane) EXPECT_NEAR(n, 16.0 * wanted, 1.0) << servers << " servers";
      const double even = 16.0 * lanes * wanted / (servers - 1);
      for (const auto& [key, n] : pair) EXPECT_NEAR(n, even, 2.0) << servers << " servers, " << replicas;
      const Protection protection = ProtectionOf(plan, replicas);
      EXPECT_TRUE(protection.Full());
      EXPECT_EQ(protection.wanted, wanted);
    }
  }
}

TEST(Replicas, NoneWithoutAnotherServerOrWithoutReplicas) {
  proto::Plan alone = Started(1, 4, 1);
  EXPECT_EQ(HeldBy(alone, 0).copies, 0u);
  EXPECT_FALSE(ProtectionOf(alone, 1).Full());
  EXPECT_EQ(ProtectionOf(alone, 1).bare, 4u);
  const proto::Plan none = Started(3, 4, 0);
  for (const auto& shard : none.shards()) EXPECT_THAT(shard.backups(), IsEmpty());
  EXPECT_FALSE(ProtectionOf(none, 0).Full());
}

TEST(Replicas, BytesCountWhenCopiesAreSpread) {
  proto::Plan plan = Servers(3, 3);
  plan.mutable_shards(0)->set_bytes(100 << 20);   // of server 0
  Tend(Rules(1, 1, plan), true, &plan);
  // Whoever has the heavy copy has no other: its server carries most of all already.
  const uint32_t heavy = plan.shards(0).backups(0).server();
  EXPECT_EQ(HeldBy(plan, heavy).copies, 1u);
}

TEST(Replicas, ALossIsSharedByTheOthersUnderALargerTerm) {
  proto::Plan plan = Started(4, 48, 1);
  const proto::Plan before = plan;
  CopyRules rules = Rules(1, 2, plan);
  const Loss loss = LoseServers({1}, rules, &plan);
  EXPECT_THAT(loss.orphans, IsEmpty());
  EXPECT_FALSE(loss.coordinator);
  EXPECT_EQ(loss.copies, 12u);
  EXPECT_FALSE(plan.servers(1).alive());
  EXPECT_THAT(loss.promoted, SizeIs(3));
  for (const auto& [owner, n] : loss.promoted) EXPECT_EQ(n, 4u) << owner;
  const Tended tended = Tend(rules, false, &plan);
  EXPECT_EQ(tended.named, 24u);
  for (int i = 0; i < plan.shards_size(); ++i) {
    const auto& shard = plan.shards(i);
    EXPECT_NE(shard.server(), 1u);
    ASSERT_EQ(shard.backups_size(), 1);
    EXPECT_NE(shard.backups(0).server(), 1u);
    if (before.shards(i).server() == 1) {
      EXPECT_EQ(shard.term(), 2u);
      EXPECT_EQ(shard.server(), before.shards(i).backups(0).server());
      EXPECT_EQ(shard.lane(), before.shards(i).backups(0).lane());
    } else {
      EXPECT_EQ(shard.term(), 1u);
    }
    EXPECT_EQ(shard.backups(0).since(), shard.backups(0).in_sync() ? 1u : 2u);
  }
  for (const uint32_t server : {0u, 2u, 3u}) {
    EXPECT_EQ(HeldBy(plan, server).shards, 16u);
    EXPECT_EQ(HeldBy(plan, server).copies, 16u);
  }
  EXPECT_EQ(ProtectionOf(plan, 1).lacking, 24u);
  SetInSync(&plan);
  EXPECT_TRUE(ProtectionOf(plan, 1).Full());
}

TEST(Replicas, ACopyThatIsNotInSyncIsNeverPromoted) {
  proto::Plan plan = Started(3, 1, 2);
  plan.mutable_shards(0)->mutable_backups(0)->set_in_sync(false);
  const uint32_t good = plan.shards(0).backups(1).server();
  EXPECT_THAT(LoseServers({0}, Rules(2, 2, plan), &plan).orphans, IsEmpty());
  EXPECT_EQ(plan.shards(0).server(), good);
  EXPECT_FALSE(plan.shards(0).backups(0).in_sync());
  EXPECT_THAT(LoseServers({good}, Rules(2, 3, plan), &plan).orphans, ElementsAre(0u));
}

TEST(Replicas, TwoServersLostAtOnceWithinAndBeyondTheBudget) {
  const proto::Plan started = Started(4, 24, 2);
  proto::Plan plan = started;
  EXPECT_THAT(LoseServers({0, 2}, Rules(2, 2, plan), &plan).orphans, IsEmpty());
  for (const auto& shard : plan.shards()) EXPECT_TRUE(shard.server() == 1 || shard.server() == 3);
  plan = started;
  EXPECT_THAT(LoseServers({0, 1, 2}, Rules(2, 2, plan), &plan).orphans.size(), 6u);   // all copies among those three
}

TEST(Replicas, TheStepCoordinatorIsReplacedByOneWithAStream) {
  proto::Plan plan = Started(3, 6, 2);
  plan.set_coordinator_server(0);
  CopyRules rules = Rules(2, 2, plan);
  rules.avoid = {1};
  EXPECT_TRUE(LoseServers({0}, rules, &plan).coordinator);
  EXPECT_EQ(plan.coordinator_server(), 2u);
  EXPECT_TRUE(LoseServers({2}, rules, &plan).coordinator);
  EXPECT_EQ(plan.coordinator_server(), 1u);
}

TEST(Replicas, ServersWithoutAStreamAreTheLastChoice) {
  proto::Plan plan = Started(4, 1, 2);
  const std::vector<uint32_t> copies = CopiesOf(plan.shards(0));
  CopyRules rules = Rules(2, 2, plan);
  rules.avoid = {copies[0]};
  LoseServers({0}, rules, &plan);
  EXPECT_EQ(plan.shards(0).server(), copies[1]);
  Tend(rules, false, &plan);
  for (const auto& copy : plan.shards(0).backups())
    EXPECT_TRUE(copy.in_sync() || copy.server() != copies[0]) << "a new copy where nobody is";
}

TEST(Replicas, CopiesWaitForAServerAndGoToTheOneThatJoins) {
  proto::Plan plan = Started(2, 8, 1);
  CopyRules rules = Rules(1, 2, plan);
  LoseServers({1}, rules, &plan);
  EXPECT_FALSE(NeedsTending(rules, plan));
  EXPECT_EQ(HeldBy(plan, 0).shards, 8u);
  AddServer(&plan, 2);
  rules = Rules(1, 3, plan);
  EXPECT_TRUE(NeedsTending(rules, plan));
  EXPECT_EQ(Tend(rules, false, &plan).named, 8u);
  EXPECT_EQ(HeldBy(plan, 2).copies, 8u);
  EXPECT_EQ(ProtectionOf(plan, 1).filling, 8u);
  EXPECT_FALSE(NeedsTending(rules, plan));
}

TEST(Replicas, AMoveFillsACopyAndLeavesTheShardProtectedThroughout) {
  proto::Plan plan = Started(3, 3, 1);
  proto::ShardInfo* shard = plan.mutable_shards(0);
  const uint32_t copy = shard->backups(0).server(), target = 3 - copy;
  StartMove(target, 2, shard);
  EXPECT_FALSE(NeedsTending(Rules(1, 2, plan), plan));   // its copy comes beside the one it has
  shard->mutable_backups(1)->set_in_sync(true);
  EXPECT_THAT(Tend(Rules(1, 3, plan), false, &plan).moved, ElementsAre(0u));
  EXPECT_EQ(shard->server(), target);
  EXPECT_EQ(shard->term(), 2u);
  EXPECT_FALSE(shard->moving());
  EXPECT_THAT(CopiesOf(*shard), ElementsAre(copy));
  EXPECT_TRUE(ProtectionOf(plan, 1).Full());
}

TEST(Replicas, AMoveToTheOnlyCopyFillsAnotherFirst) {
  proto::Plan plan = Started(3, 1, 1);
  proto::ShardInfo* shard = plan.mutable_shards(0);
  const uint32_t target = shard->backups(0).server(), third = 3 - target;
  StartMove(target, 0, shard);
  EXPECT_THAT(Tend(Rules(1, 2, plan), false, &plan).moved, IsEmpty());
  EXPECT_EQ(shard->server(), 0u);
  ASSERT_NE(FindCopy(*shard, third), nullptr);
  SetInSync(&plan);
  EXPECT_THAT(Tend(Rules(1, 3, plan), false, &plan).moved, ElementsAre(0u));
  EXPECT_EQ(shard->server(), target);
  EXPECT_THAT(CopiesOf(*shard), ElementsAre(third));
}

TEST(Replicas, WithTwoServersAMoveSwapsOwnerAndCopy) {
  proto::Plan plan = Started(2, 1, 1);
  proto::ShardInfo* shard = plan.mutable_shards(0);
  StartMove(1, 0, shard);
  const Tended tended = Tend(Rules(1, 2, plan), false, &plan);
  EXPECT_THAT(tended.moved, ElementsAre(0u));
  EXPECT_EQ(shard->server(), 1u);
  ASSERT_THAT(CopiesOf(*shard), ElementsAre(0u));
  EXPECT_TRUE(shard->backups(0).in_sync()) << "the former owner has all that was answered";
  EXPECT_EQ(shard->backups(0).since(), 2u);
}

TEST(Replicas, AMoveEndsWhenItsSourceOrTargetIsLost) {
  for (const bool source : {true, false}) {
    proto::Plan plan = Started(4, 1, 1);
    proto::ShardInfo* shard = plan.mutable_shards(0);
    const uint32_t copy = shard->backups(0).server(), target = copy == 3 ? 2 : 3;
    StartMove(target, 2, shard);
    LoseServers({source ? 0 : target}, Rules(1, 3, plan), &plan);
    EXPECT_FALSE(shard->moving());
    EXPECT_EQ(shard->server(), source ? copy : 0u);
    Tend(Rules(1, 3, plan), false, &plan);
    EXPECT_THAT(shard->backups(), SizeIs(1));
  }
}

TEST(Replicas, ACancelledMoveDropsItsCopy) {
  proto::Plan plan = Started(3, 1, 1);
  proto::ShardInfo* shard = plan.mutable_shards(0);
  const uint32_t copy = shard->backups(0).server();
  StartMove(3 - copy, 2, shard);
  shard->set_moving(false);
  EXPECT_EQ(Tend(Rules(1, 3, plan), false, &plan).dropped, 1u);
  EXPECT_THAT(CopiesOf(*shard), ElementsAre(copy));
}

TEST(Replicas, CopiesLeaveADrainingServerWhenOthersAreInSync) {
  proto::Plan plan = Started(3, 12, 1);
  CopyRules rules = Rules(1, 2, plan);
  rules.draining = {2};
  const uint32_t copies = HeldBy(plan, 2).copies;
  ASSERT_GT(copies, 0u);
  EXPECT_EQ(Tend(rules, false, &plan).named, copies);
  EXPECT_EQ(HeldBy(plan, 2).copies, copies);
  EXPECT_EQ(ProtectionOf(plan, 1).bare, 0u);
  SetInSync(&plan);
  EXPECT_EQ(Tend(rules, false, &plan).dropped, copies);
  EXPECT_EQ(HeldBy(plan, 2).copies, 0u);
  EXPECT_EQ(HeldBy(plan, 2).shards, 4u);   // those take a move
}

// Random losses, joins, fills, moves, cancels and drains. After each step the promises of replicas.h hold, against what a
// shadow model knows of who holds which data.
TEST(Replicas, RandomHistoriesKeepThePromises) {
  uint64_t promotions = 0, moves = 0, failures = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    PhiloxRandom random(seed);
    const uint32_t replicas = random.Below(4);
    proto::Plan plan = Started(1 + static_cast<int>(random.Below(5)), 1 + random.Below(20), replicas,
                               1 + static_cast<int>(random.Below(3)));
    for (auto& shard : *plan.mutable_shards()) shard.set_bytes(random.Below(4) << 20);
    uint64_t version = 1;
    std::map<std::pair<uint32_t, uint32_t>, uint64_t> latest;   // shard, server: the largest since
    std::set<uint32_t> draining;
    for (int step = 0; step < 60; ++step) {
      CopyRules rules = Rules(replicas, ++version, plan);
      rules.draining = draining;
      const proto::Plan before = plan;
      std::vector<uint32_t> alive;
      for (const auto& info : plan.servers())
        if (info.alive()) alive.push_back(info.server());
      if (random.Chance(0.3)) rules.avoid.insert(alive[random.Below(alive.size())]);
      std::set<std::pair<uint32_t, uint32_t>> synced;   // by their owners, in this step
      Loss loss;
      switch (random.Below(7)) {
        case 0: {
          std::set<uint32_t> lost{alive[random.Below(alive.size())]};
          if (random.Chance(0.2)) lost.insert(alive[random.Below(alive.size())]);
          if (lost.size() == alive.size()) break;
          for (const uint32_t server : lost) draining.erase(server), rules.draining.erase(server);
          loss = LoseServers(lost, rules, &plan);
          for (const uint32_t server : lost) EXPECT_EQ(HeldBy(plan, server).copies, 0u);
          break;
        }
        case 1:
          if (plan.servers_size() < 12) AddServer(&plan, 1 + static_cast<int>(random.Below(2)));
          break;
        case 2: {   // one comes back empty
          auto* info = plan.mutable_servers(static_cast<int>(random.Below(static_cast<uint32_t>(plan.servers_size()))));
          info->set_alive(true);
          break;
        }
        case 3: {
          proto::ShardInfo* shard = plan.mutable_shards(static_cast<int>(random.Below(plan.shards_size())));
          const uint32_t to = alive[random.Below(alive.size())];
          if (to != shard->server() && draining.count(to) == 0 && !shard->moving()) StartMove(to, version, shard);
          break;
        }
        case 4:
          plan.mutable_shards(static_cast<int>(random.Below(plan.shards_size())))->set_moving(false);
          break;
        case 5:
          if (random.Chance(0.5)) draining.clear();
          else draining.insert(alive[random.Below(alive.size())]);
          rules.draining = draining;
          break;
        case 6:
          for (auto& shard : *plan.mutable_shards())
            for (auto& copy : *shard.mutable_backups())
              if (random.Chance(0.7)) copy.set_in_sync(true), synced.insert({shard.shard(), copy.server()});
          break;
      }
      if (!loss.orphans.empty()) {   // only if there was no copy in sync on a server that lives
        for (const uint32_t i : loss.orphans)
          for (const auto& copy : before.shards(static_cast<int>(i)).backups())
            EXPECT_FALSE(copy.in_sync() && plan.servers(static_cast<int>(copy.server())).alive());
        ++failures;
        break;
      }
      const bool needed = NeedsTending(rules, plan);
      const std::string untended = plan.SerializeAsString();
      const Tended tended = Tend(rules, false, &plan);
      EXPECT_EQ(needed, plan.SerializeAsString() != untended);
      EXPECT_FALSE(NeedsTending(rules, plan));
      moves += tended.moved.size();
      uint32_t takers = 0;
      for (const auto& info : plan.servers())
        takers += info.alive() && rules.avoid.count(info.server()) == 0 && draining.count(info.server()) == 0;
      for (int i = 0; i < plan.shards_size(); ++i) {
        const proto::ShardInfo &now = plan.shards(i), &was = before.shards(i);
        const std::vector<uint32_t> copies = CopiesOf(now);
        EXPECT_TRUE(plan.servers(static_cast<int>(now.server())).alive());
        EXPECT_LT(static_cast<int>(now.lane()), plan.servers(static_cast<int>(now.server())).lanes_size());
        EXPECT_EQ(std::adjacent_find(copies.begin(), copies.end()), copies.end()) << "two copies on one server";
        EXPECT_EQ(std::count(copies.begin(), copies.end(), now.server()), 0) << "a copy beside its owner";
        if (now.server() != was.server()) {
          ++promotions;
          const proto::BackupInfo* heir = FindCopy(was, now.server());
          ASSERT_NE(heir, nullptr) << "an owner out of the blue";
          EXPECT_TRUE(heir->in_sync() || synced.count({now.shard(), now.server()}) > 0);
          EXPECT_EQ(now.lane(), heir->lane());
          for (const auto& other : before.shards()) EXPECT_GT(now.term(), other.term());
        } else {
          EXPECT_EQ(now.term(), was.term());
        }
        for (const auto& copy : now.backups()) {
          EXPECT_TRUE(plan.servers(static_cast<int>(copy.server())).alive());
          const proto::BackupInfo* same = FindCopy(was, copy.server());
          if (same != nullptr && same->since() == copy.since()) {
            EXPECT_EQ(copy.in_sync(), same->in_sync() || synced.count({now.shard(), copy.server()}) > 0);
          } else {
            EXPECT_EQ(copy.in_sync(), copy.server() == was.server()) << "a new copy holds nothing, a former owner all";
            EXPECT_EQ(copy.since(), version);
          }
          uint64_t& last = latest[{now.shard(), copy.server()}];
          EXPECT_GE(copy.since(), last);
          last = copy.since();
        }
        // As many as wanted and possible, and hardly more.
        uint32_t staying = 0;
        for (const auto& copy : now.backups())
          staying += !(now.moving() && now.move_to() == copy.server()) && draining.count(copy.server()) == 0;
        EXPECT_LE(staying, replicas);
        if (staying < replicas) {
          for (const auto& info : plan.servers())
            EXPECT_TRUE(!info.alive() || rules.avoid.count(info.server()) > 0 || draining.count(info.server()) > 0 ||
                        info.server() == now.server() || FindCopy(now, info.server()) != nullptr);
        }
        // Nothing but a loss, or too few servers, takes protection away.
        const auto in_sync = [](const proto::ShardInfo& shard) {
          return std::any_of(shard.backups().begin(), shard.backups().end(), [](auto& copy) { return copy.in_sync(); });
        };
        const bool by_choice = loss.promoted.empty() && loss.copies == 0;
        EXPECT_TRUE(!in_sync(was) || in_sync(now) || !by_choice || takers <= 2) << "shard " << i;
      }
      if (testing::Test::HasFailure()) {
        ADD_FAILURE() << "step " << step << "\nbefore: " << before.ShortDebugString() << "\nafter: "
                      << plan.ShortDebugString();
        return;
      }
    }
  }
  EXPECT_GT(promotions, 1000u);
  EXPECT_GT(moves, 100u);
  EXPECT_GT(failures, 20u);
}

}  // namespace
}  // namespace sluice::scheduler
