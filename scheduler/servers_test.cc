// Losses, restarts and joins of servers while a job runs, and what the plan makes of them.
#include <functional>

#include "scheduler/copies_harness.h"
#include "scheduler/replicas.h"

namespace sluice::scheduler {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class ServersTest : public CopiesHarness {
 protected:
  proto::JobStatus Status() { return core_->GetCluster().jobs(0); }
  std::string LastText(const std::string& kind) {
    std::string text;
    const proto::EventList list = core_->ListEvents(0, 0);
    for (const auto& event : list.events())
      if (event.kind() == kind) text = event.text();
    return text;
  }
};

TEST_F(ServersTest, AJobStartsWithItsCopiesInSync) {
  Start(3, 1);
  const proto::Plan plan = Plan();
  for (const auto& shard : plan.shards()) {
    ASSERT_EQ(shard.backups_size(), 1);
    EXPECT_TRUE(shard.backups(0).in_sync());
    EXPECT_EQ(shard.backups(0).since(), plan.version());
  }
  EXPECT_TRUE(Status().is_protected());
  EXPECT_EQ(Status().protection(), "protected: every shard has 1 copy in sync");
  EXPECT_THAT(EventKinds(), Not(Contains("job_unprotected")));
}

TEST_F(ServersTest, ALostServersShardsGoToTheirCopiesInOnePlan) {
  Start(3, 1);
  const proto::Plan before = Plan();
  Cut(s_[1]);
  Run(1200 * kMillisecond, Others(1));   // its stream ended: no need to wait for the lease
  const proto::Plan plan = Plan();
  EXPECT_EQ(plan.state(), proto::JOB_RUNNING);
  EXPECT_EQ(plan.version(), before.version() + 1);
  EXPECT_FALSE(plan.servers(1).alive());
  for (int i = 0; i < plan.shards_size(); ++i) {
    const auto &shard = plan.shards(i), &was = before.shards(i);
    EXPECT_NE(shard.server(), 1u);
    EXPECT_EQ(shard.term(), was.term() + (was.server() == 1));
    ASSERT_EQ(shard.backups_size(), 1);
    const bool touched = was.server() == 1 || was.backups(0).server() == 1;
    EXPECT_EQ(shard.backups(0).in_sync(), !touched);
    EXPECT_EQ(shard.backups(0).since(), touched ? plan.version() : before.version());
  }
  EXPECT_EQ(peers_[worker_[0]].plan()->version(), plan.version());
  EXPECT_EQ(peers_[s_[0]].plan()->version(), plan.version());
  EXPECT_THAT(LastText("server_lost"), HasSubstr("2 shards go to s0, 2 shards go to s2, 8 copies are to be filled"));
  EXPECT_THAT(LastText("job_unprotected"), HasSubstr("server s1 was lost: 8 of 12 shards have no copy in sync"));
  EXPECT_THAT(Status().protection(), HasSubstr("8 copies are being filled"));

  Run(2 * kSecond, Others(1));
  Report(false, 40, 60);
  EXPECT_EQ(Status().copies_bytes_left(), 8u * 60);
  EXPECT_EQ(core_->ListShards("j")->shards(1).copies(0).bytes_sent(), 40u);
  EXPECT_EQ(Plan().version(), plan.version());   // progress is no plan
  Report(true);
  EXPECT_TRUE(Status().is_protected());
  EXPECT_EQ(Status().copies_bytes_left(), 0u);
  EXPECT_LE(Plan().version(), plan.version() + 2);   // one for each owner's heartbeat
  EXPECT_THAT(LastText("job_protected"), HasSubstr("every shard has 1 copy in sync again, 2."));
  EXPECT_THAT(LastText("job_protected"), HasSubstr("after server s1 was lost"));
}

TEST_F(ServersTest, AServerThatStandsStillIsLostAfterTheLeaseAndComesBackEmpty) {
  Start(3, 1);
  Run(4900 * kMillisecond, Others(2));
  EXPECT_TRUE(Plan().servers(2).alive());
  Run(300 * kMillisecond, Others(2));
  EXPECT_FALSE(Plan().servers(2).alive());
  EXPECT_FALSE(peers_[s_[2]].open);
  EXPECT_THAT(LastText("server_lost"), HasSubstr("nothing heard for 5.1 s"));
  s_[2] = Connect(Again(s_[2], ServerReg("s2")));   // the same process, with what it thinks it owns
  const proto::Plan plan = Plan();
  EXPECT_TRUE(plan.servers(2).alive());
  EXPECT_EQ(plan.servers_size(), 3);
  EXPECT_EQ(HeldBy(plan, 2).shards, 0u);
  EXPECT_EQ(peers_[s_[2]].plan()->version(), plan.version());
}

TEST_F(ServersTest, AJobThatFormsDoesNotSlowTheDetectionForAnother) {
  Start(3, 1);
  job_.set_name("k");
  job_.set_workers(2);
  worker_.push_back(Connect(WorkerReg("v0", 0)));
  Cut(s_[1]);
  Run(1200 * kMillisecond, Others(1));
  EXPECT_FALSE(Plan().servers(1).alive());
}

TEST_F(ServersTest, ABrokenStreamAloneChangesNothing) {
  Start(2, 1);
  const uint64_t version = Plan().version();
  Cut(s_[1]);
  Run(800 * kMillisecond, Others(1));
  s_[1] = Connect(Again(s_[1], ServerReg("s1")));
  Run(3 * kSecond, Everybody());
  EXPECT_EQ(Plan().version(), version);
}

TEST_F(ServersTest, ALossJustAfterTheJobsStartCostsNoLease) {
  Start(3, 1, 12, 0);
  Cut(s_[1]);
  Run(1200 * kMillisecond, Others(1));
  EXPECT_FALSE(Plan().servers(1).alive());
  EXPECT_EQ(Plan().state(), proto::JOB_RUNNING);
}

TEST_F(ServersTest, ALossJustAfterTheSchedulersRestartCostsALeaseOnlyIfSomebodyIsMissing) {
  for (const bool everybody : {true, false}) {
    SCOPED_TRACE(everybody);
    s_.clear();
    worker_.clear();
    store_ = MemoryStore();
    Start(3, 1);
    std::vector<proto::Register> again;
    for (size_t i = 0; i < 3; ++i) again.push_back(Again(s_[i], ServerReg("s" + std::to_string(i))));
    const auto worker = Again(worker_[0], WorkerReg("w0", 0));
    RestartCore();
    for (size_t i = 0; i < 3; ++i) s_[i] = Connect(again[i]);
    if (everybody) worker_[0] = Connect(worker);
    Cut(s_[1]);
    const std::vector<SessionId> alive = {s_[0], s_[2]};
    Run(1200 * kMillisecond, alive);
    EXPECT_EQ(Plan().servers(1).alive(), !everybody);   // the missing worker may know a newer term
    Run(4 * kSecond, alive);
    EXPECT_FALSE(Plan().servers(1).alive());
  }
}

TEST_F(ServersTest, AServerThatCameBackWhileTheSchedulerStoodStillIsNotLost) {
  Start(3, 1);
  Cut(s_[1]);
  clock_.Advance(7 * kSecond);   // its new stream waits unread
  core_->OnTick();
  s_[1] = Connect(Again(s_[1], ServerReg("s1")));
  Run(2 * kSecond, Everybody());
  EXPECT_TRUE(Plan().servers(1).alive());
  EXPECT_TRUE(Status().is_protected());
  EXPECT_THAT(EventKinds(), Not(Contains("server_lost")));
}

TEST_F(ServersTest, TheLeaseDecidesWhereAWrongGuessWouldCost) {
  Start(2, 1);
  Cut(s_[0]);
  Cut(s_[1]);   // as if this machine's network were down
  Run(4 * kSecond, worker_);
  EXPECT_TRUE(Plan().servers(0).alive() && Plan().servers(1).alive());
  for (size_t i = 0; i < 2; ++i) s_[i] = Connect(Again(s_[i], ServerReg("s" + std::to_string(i))));
  Run(3 * kSecond, Everybody());
  EXPECT_EQ(Plan().state(), proto::JOB_RUNNING);
  EXPECT_TRUE(Status().is_protected());
}

TEST_F(ServersTest, ALossBeyondTheCopiesEndsTheJobAndSaysWhy) {
  Start(3, 1);
  Cut(s_[1]);
  Run(1200 * kMillisecond, Others(1));
  Cut(s_[2]);   // before the copies are filled
  Run(1200 * kMillisecond, Others(2));
  EXPECT_EQ(Plan().state(), proto::JOB_RUNNING);   // it may come back with its stream
  Run(4 * kSecond, Others(2));
  EXPECT_EQ(Plan().state(), proto::JOB_FAILED);
  EXPECT_THAT(Plan().why(), HasSubstr("server s2 (127.0.0.1:1, 10.0.0.3) was lost: nothing heard for 5."));
  EXPECT_THAT(Plan().why(), HasSubstr("had no copy in sync on another server (job.replicas is 1)"));
  EXPECT_THAT(Plan().why(), HasSubstr("shards "));
}

TEST_F(ServersTest, TwoServersLostAtOnceWithTwoCopiesAreOnePlan) {
  Start(4, 2);
  const uint64_t version = Plan().version();
  Run(6 * kSecond, {s_[0], s_[2], worker_[0]});
  EXPECT_EQ(Plan().state(), proto::JOB_RUNNING);
  EXPECT_EQ(Plan().version(), version + 1);
  EXPECT_EQ(HeldBy(Plan(), 0).shards + HeldBy(Plan(), 2).shards, 12u);
  // Two are left, so one copy is all that can be: those that survived are in sync.
  EXPECT_EQ(Status().servers_alive(), 2u);
}

TEST_F(ServersTest, ARestartedServerLosesItsShardsAtOnceAndIsFilledAgain) {
  Start(2, 1);
  const proto::Plan before = Plan();
  Cut(s_[0]);
  s_[0] = Connect(ServerReg("s0", 101, 2));
  const proto::Plan plan = Plan();
  EXPECT_EQ(plan.version(), before.version() + 1);
  EXPECT_TRUE(plan.servers(0).alive());
  EXPECT_EQ(plan.servers(0).incarnation(), 101u);
  EXPECT_EQ(plan.servers(0).lanes_size(), 2);
  EXPECT_EQ(plan.coordinator_server(), 1u);
  EXPECT_EQ(HeldBy(plan, 1).shards, 12u);
  EXPECT_EQ(HeldBy(plan, 0).copies, 12u);
  std::map<uint32_t, int> lanes;
  for (const auto& shard : plan.shards()) {
    EXPECT_FALSE(shard.backups(0).in_sync());
    EXPECT_GT(shard.backups(0).since(), before.version());
    ++lanes[shard.backups(0).lane()];
  }
  EXPECT_EQ(lanes[0], 6);
  EXPECT_EQ(lanes[1], 6);
  EXPECT_EQ(peers_[s_[0]].plan()->version(), plan.version());
  Report(true);
  EXPECT_TRUE(Status().is_protected());
  // Now the other: nothing is ever without an owner.
  Cut(s_[1]);
  s_[1] = Connect(ServerReg("s1", 101));
  EXPECT_EQ(Plan().state(), proto::JOB_RUNNING);
  EXPECT_EQ(HeldBy(Plan(), 0).shards, 12u);
}

TEST_F(ServersTest, AnotherServerJoinsARunningJob) {
  Start(1, 1);
  EXPECT_THAT(Status().protection(), HasSubstr("there is no other server: start one"));
  EXPECT_THAT(EventKinds(), Contains("job_unprotected"));
  s_.push_back(Connect(ServerReg("x")));
  const proto::Plan plan = Plan();
  ASSERT_EQ(plan.servers_size(), 2);
  EXPECT_EQ(plan.servers(1).id(), "x");
  EXPECT_EQ(HeldBy(plan, 1).copies, 12u);
  EXPECT_EQ(peers_[s_[1]].plan()->version(), plan.version());
  EXPECT_THAT(LastText("server_joined"), HasSubstr("server x is number 1 of the plan; it is to hold 12 copies"));
  Report(true);
  EXPECT_THAT(EventKinds(), Contains("job_protected"));
}

TEST_F(ServersTest, WhatAnOwnerSaysCountsOnlyIfAllOfItMatches) {
  Start(3, 1);
  Cut(s_[2]);
  Run(1200 * kMillisecond, Others(2));
  const proto::Plan plan = Plan();
  const auto it = std::find_if(plan.shards().begin(), plan.shards().end(), [](const auto& shard) {
    return shard.server() == 0 && !shard.backups(0).in_sync();
  });
  ASSERT_NE(it, plan.shards().end());
  const proto::ReplicaState right = State(plan, *it, it->backups(0), true);
  const auto say = [&](SessionId session, const std::function<void(proto::ReplicaState*)>& spoil) {
    proto::MemberMessage message;
    *message.mutable_heartbeat()->add_replicas() = right;
    spoil(message.mutable_heartbeat()->mutable_replicas(0));
    core_->OnMessage(session, message);
    return Plan().shards(static_cast<int>(it->shard())).backups(0).in_sync();
  };
  EXPECT_FALSE(say(s_[1], [](auto*) {})) << "not the owner";
  EXPECT_FALSE(say(worker_[0], [](auto*) {})) << "a worker";
  EXPECT_FALSE(say(s_[0], [](auto* s) { s->set_job(7); }));
  EXPECT_FALSE(say(s_[0], [](auto* s) { s->set_job_uid(7); }));
  EXPECT_FALSE(say(s_[0], [](auto* s) { s->set_shard(1000000); }));
  EXPECT_FALSE(say(s_[0], [](auto* s) { s->set_term(s->term() + 1); }));
  EXPECT_FALSE(say(s_[0], [](auto* s) { s->set_server(77); }));
  EXPECT_FALSE(say(s_[0], [](auto* s) { s->set_since(s->since() - 1); })) << "an earlier copy on that server";
  EXPECT_FALSE(say(s_[0], [](auto* s) { s->set_in_sync(false); }));
  EXPECT_TRUE(say(s_[0], [](auto*) {}));
}

TEST_F(ServersTest, ALossThatCannotBeWrittenIsTakenUpAgain) {
  Start(2, 1);
  const proto::Plan before = Plan();
  store_.set_failure(absl::ResourceExhaustedError("full"));
  Cut(s_[1]);
  Run(2 * kSecond, Others(1));
  EXPECT_EQ(Plan().SerializeAsString(), before.SerializeAsString());
  store_.set_failure(absl::OkStatus());
  Run(200 * kMillisecond, Others(1));
  EXPECT_EQ(Plan().version(), before.version() + 1);
  EXPECT_EQ(HeldBy(Plan(), 0).shards, 12u);
}

TEST_F(ServersTest, ARestartedSchedulerGoesOnFromItsStateFile) {
  Start(3, 1);
  Cut(s_[1]);
  Run(1200 * kMillisecond, Others(1));
  const proto::Plan plan = Plan();
  std::vector<proto::Register> again;
  for (size_t i : {0u, 2u}) again.push_back(Again(s_[i], ServerReg("s" + std::to_string(i))));
  const auto worker = Again(worker_[0], WorkerReg("w0", 0));
  RestartCore();
  EXPECT_EQ(Plan().SerializeAsString(), plan.SerializeAsString());
  EXPECT_GT(Status().unprotected_ms(), 0u);
  // Servers die while it is away: known after one lease, not before.
  s_[0] = Connect(again[0]);
  worker_[0] = Connect(worker);
  Run(4 * kSecond, {s_[0], worker_[0]});
  EXPECT_EQ(Plan().version(), plan.version());
  s_[2] = Connect(again[1]);
  Report(true);
  EXPECT_TRUE(Status().is_protected());
}

TEST_F(ServersTest, TensorsAreAnsweredWithoutTheLostServerAndWithTheOneThatJoined) {
  Start(2, 1);
  Tensors(worker_[0], 1, {Spec("t", {8})});
  Ack(s_[0]);
  EXPECT_EQ(peers_[worker_[0]].done(1), nullptr);
  Cut(s_[1]);
  Run(1200 * kMillisecond, Others(1));
  EXPECT_NE(peers_[worker_[0]].done(1), nullptr) << "nobody is missing any more";
  s_[1] = Connect(ServerReg("x"));
  Tensors(worker_[0], 2, {Spec("u", {8})});
  Ack(s_[0]);
  EXPECT_EQ(peers_[worker_[0]].done(2), nullptr);
  Ack(s_[1]);
  EXPECT_NE(peers_[worker_[0]].done(2), nullptr);
}

TEST_F(ServersTest, RescaleAsksTheNewOwnersAnew) {
  job_.set_on_worker_loss(proto::LOSS_RESCALE);
  config_.set_servers(3);
  config_.set_shards(3);
  job_.set_replicas(1);
  job_.set_workers(2);
  StartCore();
  for (int i = 0; i < 3; ++i) s_.push_back(Connect(ServerReg("s" + std::to_string(i))));
  for (int i = 0; i < 2; ++i) worker_.push_back(Connect(WorkerReg("w" + std::to_string(i), i)));
  Tensors(worker_[0], 1, {Spec("t", {8})});
  const auto asked = [&](size_t i) {
    uint32_t request = 0;
    for (const auto& message : peers_[s_[i]].received)
      if (message.has_report()) request = message.report().request();
    return request;
  };
  const auto answer = [&](size_t i) {
    proto::MemberMessage message;
    message.mutable_heartbeat()->set_report_request(asked(i));
    message.mutable_heartbeat()->add_partitions()->set_open_round(5);
    core_->OnMessage(s_[i], message);
  };
  std::vector<SessionId> alive{worker_[0], s_[0], s_[1], s_[2]};
  Run(5200 * kMillisecond, alive);
  const uint32_t first = asked(0);
  ASSERT_NE(first, 0u);
  answer(0);
  Cut(s_[1]);
  Run(1200 * kMillisecond, {worker_[0], s_[0], s_[2]});
  EXPECT_GT(asked(0), first);
  EXPECT_EQ(asked(2), asked(0));
  answer(0);
  EXPECT_EQ(Plan().workers(1).out_from_round_size(), 0);
  answer(2);
  ASSERT_EQ(Plan().workers(1).out_from_round_size(), 1);
  EXPECT_EQ(Plan().workers(1).out_from_round(0), 5u);
}

}  // namespace
}  // namespace sluice::scheduler
