// Rebalancing by measured load, on request and by itself, as the core does it.
#include "scheduler/copies_harness.h"
#include "scheduler/replicas.h"

namespace sluice::scheduler {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class RebalancingTest : public CopiesHarness {
 protected:
  void Begin(int servers, uint32_t replicas, uint32_t after_ms = 10000) {
    config_.set_rebalance_after_ms(after_ms);
    config_.set_rebalance_cooldown_ms(60000);
    Start(servers, replicas);
    counters_.resize(static_cast<size_t>(servers));
    for (uint32_t shard = 0; shard < 12; ++shard) cost_[shard] = 0.03;
  }
  // Heartbeats with what each server's shards cost, in CPU seconds a second: cost_ as owner, half of it as copy. Copies
  // come in sync meanwhile.
  void Work(TimeNs time) {
    for (TimeNs t = 0; t < time; t += 500 * kMillisecond) {
      const proto::Plan plan = Plan();
      for (size_t s = 0; s < s_.size(); ++s) {
        proto::MemberMessage message;
        proto::ServerCost* cost = message.mutable_heartbeat()->mutable_cost();
        for (const auto& shard : plan.shards()) {
          const bool owner = shard.server() == s;
          if (!owner && FindCopy(shard, static_cast<uint32_t>(s)) == nullptr) continue;
          const double spent = cost_[shard.shard()] * (owner ? 1 : 0.5) / 2;
          counters_[s].cpu += spent;
          counters_[s].bytes[shard.shard()] += spent * 1e6;
          proto::ShardCost* one = cost->add_shards();
          one->set_job(plan.job());
          one->set_job_uid(plan.uid());
          one->set_shard(shard.shard());
          one->set_bytes_in(static_cast<uint64_t>(counters_[s].bytes[shard.shard()]));
        }
        cost->add_loop_cpu_us(static_cast<uint64_t>(counters_[s].cpu * 1e6));
        core_->OnMessage(s_[s], message);
      }
      Report(true);
      for (int i = 0; i < 5; ++i) {
        clock_.Advance(100 * kMillisecond);
        for (const SessionId worker : worker_) Heartbeat(worker);
        core_->OnTick();
      }
    }
  }
  void Own(uint32_t server, uint32_t shards) {
    for (uint32_t shard = 0; shard < shards; ++shard) (void)core_->MoveShard("j", shard, "s" + std::to_string(server));
    for (int i = 0; i < 40 && core_->ListMoves("j")->moves_size() > 0; ++i) Report(true), core_->OnTick();
    ASSERT_GE(HeldBy(Plan(), server).shards, shards);
  }
  size_t Rebalances() {
    const std::vector<std::string> kinds = EventKinds();
    return static_cast<size_t>(std::count(kinds.begin(), kinds.end(), "rebalance"));
  }

  struct Counters {
    double cpu = 0;
    std::map<uint32_t, double> bytes;
  };
  std::vector<Counters> counters_;
  std::map<uint32_t, double> cost_;
};

TEST_F(RebalancingTest, OneServerThatOwnsEverythingGivesShardsAway) {
  Begin(3, 1);
  Own(0, 12);
  Work(40 * kSecond);
  EXPECT_EQ(Rebalances(), 0u) << "an operator's moves are not undone within the cool-down";
  Work(30 * kSecond);
  ASSERT_EQ(Rebalances(), 1u);
  for (uint32_t server = 0; server < 3; ++server) EXPECT_GE(HeldBy(Plan(), server).shards, 2u) << server;
  Work(300 * kSecond);
  const proto::Plan after = Plan();
  Work(300 * kSecond);
  EXPECT_EQ(Plan().version(), after.version()) << "nothing moves any more";
}

TEST_F(RebalancingTest, ABalancedJobAndOneThatIdlesAreLeftAlone) {
  Begin(3, 1);
  Work(100 * kSecond);
  EXPECT_EQ(Rebalances(), 0u);
  Own(0, 12);
  for (auto& [shard, cost] : cost_) cost = 0.001;
  Work(200 * kSecond);
  EXPECT_EQ(Rebalances(), 0u);
}

TEST_F(RebalancingTest, OffUnlessConfigured) {
  Begin(2, 0, 0);
  Own(0, 12);
  Work(200 * kSecond);
  EXPECT_EQ(Rebalances(), 0u);
}

TEST_F(RebalancingTest, ALoadThatSwingsMovesNothing) {
  Begin(2, 0);
  for (int swing = 0; swing < 20; ++swing) {
    for (auto& [shard, cost] : cost_) cost = shard % 2 == static_cast<uint32_t>(swing % 2) ? 0.1 : 0.02;
    Work(8 * kSecond);
  }
  EXPECT_EQ(Rebalances(), 0u);
}

TEST_F(RebalancingTest, AHotShardIsNotMovedBackAndForth) {
  Begin(2, 0);
  cost_[0] = 0.9;
  Work(600 * kSecond);
  const proto::Plan plan = Plan();
  EXPECT_EQ(plan.shards(0).server(), 0u);
  EXPECT_EQ(plan.shards(0).term(), 1u);
  EXPECT_EQ(HeldBy(plan, 0).shards, 1u) << "what shared its server has gone";
  EXPECT_LE(Rebalances(), 2u);
  Work(600 * kSecond);
  EXPECT_EQ(Plan().version(), plan.version());
}

TEST_F(RebalancingTest, PausedMovesADrainAndARestartHoldItBack) {
  Begin(3, 0);
  Own(0, 12);
  ASSERT_TRUE(core_->SetMovesPaused("j", true).ok());
  Work(100 * kSecond);
  EXPECT_EQ(Rebalances(), 0u);
  ASSERT_TRUE(core_->SetMovesPaused("j", false).ok());
  ASSERT_TRUE(core_->SetDraining("s2", true).ok());
  Work(100 * kSecond);
  EXPECT_EQ(Rebalances(), 0u);
  ASSERT_TRUE(core_->SetDraining("s2", false).ok());
  RestartCore();
  for (size_t i = 0; i < s_.size(); ++i) s_[i] = Connect(Again(s_[i], ServerReg("s" + std::to_string(i))));
  worker_[0] = Connect(Again(worker_[0], WorkerReg("w0", 0)));
  Work(55 * kSecond);
  EXPECT_EQ(Rebalances(), 0u);
  Work(20 * kSecond);
  EXPECT_EQ(Rebalances(), 1u);
  EXPECT_GT(HeldBy(Plan(), 2).shards, 0u);
}

TEST_F(RebalancingTest, ARequestWeighsByLoadOnceItIsMeasured) {
  Begin(2, 0, 0);
  for (auto& [shard, cost] : cost_) cost = shard % 2 == 0 ? 0.1 : 0.01;   // server 0 works ten times as much
  const auto early = core_->Rebalance("j", true);
  ASSERT_TRUE(early.ok()) << early.status();
  EXPECT_FALSE(early->by_load());
  EXPECT_EQ(early->moves_size(), 0);
  Work(20 * kSecond);
  const auto answer = core_->Rebalance("j", true);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->by_load());
  ASSERT_GT(answer->moves_size(), 0);
  EXPECT_THAT(answer->moves(0).reason(), HasSubstr("% above the mean, s1 at 6 % (CPU 6 %"));
  EXPECT_NEAR(answer->servers(0).load_before(), 0.6, 0.02);
  EXPECT_NEAR(answer->servers(1).load_before(), 0.06, 0.01);
  EXPECT_LT(answer->servers(0).load_after(), 0.4);
  EXPECT_GT(answer->servers(0).in_before(), answer->servers(0).in_after());
  EXPECT_THAT(EventKinds(), Not(Contains("rebalance")));
}

}  // namespace
}  // namespace sluice::scheduler
