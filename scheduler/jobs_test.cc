// A job's life, losses under each rule, requests (scheduler/jobs.cc, members.cc, rescale.cc, requests.cc).
#include "scheduler/core_harness.h"

namespace sluice::scheduler {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using JobsTest = CoreHarness;

TEST_F(JobsTest, StartsWhenAllWorkersAndServersAreThere) {
  config_.set_servers(2);
  StartCore();
  const SessionId w0 = Connect(WorkerReg("w0", 0));
  EXPECT_EQ(peers_[w0].plan()->state(), proto::JOB_FORMING);
  const SessionId s0 = Connect(ServerReg("b", 100, 2));
  Connect(WorkerReg("w1", 1));
  Run(kSecond, {});
  EXPECT_EQ(peers_[w0].plan()->state(), proto::JOB_FORMING);
  EXPECT_THAT(peers_[w0].plan()->why(), HasSubstr("1 of 2 servers"));
  EXPECT_EQ(peers_[s0].plan(), nullptr);
  Connect(ServerReg("a", 100, 1));
  const proto::Plan plan = *peers_[w0].plan();
  EXPECT_EQ(plan.state(), proto::JOB_RUNNING);
  EXPECT_EQ(plan.why(), "");
  ASSERT_EQ(plan.servers_size(), 2);
  EXPECT_EQ(plan.servers(0).id(), "a");
  EXPECT_EQ(plan.servers(1).lanes_size(), 2);
  EXPECT_EQ(plan.shards_size(), 48);  // 16 for each of three lanes
  EXPECT_EQ(plan.shards(0).term(), 1u);
  EXPECT_EQ(peers_[s0].plan()->version(), plan.version());
}

TEST_F(JobsTest, SaysWhichRanksAreMissing) {
  job_.set_workers(4);
  StartCore();
  Connect(ServerReg("s"));
  const SessionId w = Connect(WorkerReg("w", 1));
  EXPECT_THAT(peers_[w].plan()->why(), HasSubstr("waiting for 3 of 4 workers (ranks 0, 2, 3)"));
}

TEST_F(JobsTest, AWorkerLostBeforeTheStartFreesItsRankAndAJobWithoutWorkersEnds) {
  StartCore();
  const SessionId s = Connect(ServerReg("s"));
  const SessionId w0 = Connect(WorkerReg("w0", 0));
  Run(6 * kSecond, {s});
  EXPECT_FALSE(peers_[w0].open);
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_FAILED);
  const SessionId again = Connect(WorkerReg("x", -1));  // a new job of that name
  EXPECT_EQ(peers_[again].plan()->job(), 2u);
  EXPECT_EQ(peers_[again].plan()->state(), proto::JOB_FORMING);
}

TEST_F(JobsTest, RuleWaitNamesTheLostRankAndGoesOnWhenItComesBack) {
  StartJob();
  Run(4 * kSecond, {server_, worker_[0]});
  EXPECT_TRUE(peers_[worker_[0]].plan()->workers(1).alive());
  Run(2 * kSecond, {server_, worker_[0]});
  const proto::Plan& plan = *peers_[worker_[0]].plan();
  EXPECT_FALSE(plan.workers(1).alive());
  EXPECT_EQ(plan.state(), proto::JOB_RUNNING);
  EXPECT_THAT(plan.why(), HasSubstr("waiting for rank 1 (w1, 10.0.0.3)"));
  EXPECT_THAT(plan.why(), HasSubstr("same rank"));
  EXPECT_EQ(peers_[worker_[1]].closed.code(), absl::StatusCode::kUnavailable);  // come again
  EXPECT_THAT(core_->GetCluster().jobs(0).why(), HasSubstr("last heard"));

  const SessionId again = Connect(Again(worker_[1], WorkerReg("w1", 1)));
  EXPECT_EQ(peers_[again].welcome()->incarnation(), peers_[worker_[1]].welcome()->incarnation());
  EXPECT_TRUE(peers_[worker_[0]].plan()->workers(1).alive());
  EXPECT_EQ(peers_[worker_[0]].plan()->why(), "");
}

TEST_F(JobsTest, RuleFailEndsTheJobNamingTheRank) {
  job_.set_on_worker_loss(proto::LOSS_FAIL);
  StartJob();
  Run(6 * kSecond, {server_, worker_[0]});
  EXPECT_EQ(peers_[worker_[0]].plan()->state(), proto::JOB_FAILED);
  EXPECT_THAT(peers_[worker_[0]].plan()->why(), HasSubstr("rank 1 (w1, 10.0.0.3) was lost"));
  EXPECT_EQ(peers_[server_].plan()->state(), proto::JOB_FAILED);
}

TEST_F(JobsTest, AnOperatorEndsAJobWhoseWorkersAreGoneForGood) {
  StartJob();
  Barrier(worker_[0], 5, "b", 0);
  Run(6 * kSecond, {server_, worker_[0]});   // rule "wait": rank 1 is waited for, and never comes
  ASSERT_EQ(core_->GetPlan("j")->state(), proto::JOB_RUNNING);
  const uint64_t version = core_->GetPlan("j")->version();

  const auto aborted = core_->AbortJob("j", "the machine is sold");
  ASSERT_TRUE(aborted.ok()) << aborted.status();
  EXPECT_EQ(aborted->state(), proto::JOB_FAILED);
  EXPECT_EQ(aborted->name(), "j");
  EXPECT_EQ(aborted->job(), 1u);
  EXPECT_EQ(aborted->workers_alive(), 1u);
  EXPECT_EQ(aborted->why(), "aborted by an operator: the machine is sold");
  for (const SessionId member : {server_, worker_[0]}) {
    EXPECT_EQ(peers_[member].plan()->state(), proto::JOB_FAILED);
    EXPECT_GT(peers_[member].plan()->version(), version);
    EXPECT_THAT(peers_[member].plan()->why(), HasSubstr("sold"));
  }
  ASSERT_NE(peers_[worker_[0]].done(5), nullptr);   // what it waited for will not come
  EXPECT_THAT(peers_[worker_[0]].done(5)->message(), HasSubstr("sold"));
  EXPECT_THAT(EventKinds(), Contains("job_failed"));
  EXPECT_TRUE(core_->AllJobsEnded());

  const SessionId again = Connect(WorkerReg("x", -1));   // the name is free for a new job
  EXPECT_EQ(peers_[again].plan()->job(), 2u);
}

TEST_F(JobsTest, AJobIsAbortedByNameOrNumberWhileItForms) {
  StartCore();
  job_.set_name("2");
  Connect(WorkerReg("w", 0));
  job_.set_name("k");
  const SessionId k = Connect(WorkerReg("w", 0));
  ASSERT_EQ(core_->AbortJob("2", "")->job(), 1u) << "a name goes before a number";
  EXPECT_EQ(core_->GetPlan("k")->state(), proto::JOB_FORMING);
  ASSERT_EQ(core_->AbortJob("k", "")->job(), 2u);
  EXPECT_EQ(peers_[k].plan()->why(), "aborted by an operator");
  job_.set_name("l");
  Connect(WorkerReg("w", 0));
  EXPECT_EQ(core_->AbortJob("3", "")->name(), "l");
}

TEST_F(JobsTest, WhatCannotBeAbortedIsSaid) {
  StartCore();
  EXPECT_THAT(core_->AbortJob("j", "").status().ToString(), HasSubstr("no job has been started"));
  StartJob();
  EXPECT_EQ(core_->AbortJob("", "").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core_->AbortJob("j", std::string(2000, 'x')).status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* name : {"q", "7", "-1", "99999999999", "1x"}) {
    EXPECT_EQ(core_->AbortJob(name, "").status().code(), absl::StatusCode::kNotFound) << name;
    EXPECT_THAT(core_->AbortJob(name, "").status().ToString(), HasSubstr("known: j")) << name;
  }
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_RUNNING);
  Leave(worker_[0], 1);
  Leave(worker_[1], 1);
  for (const char* name : {"j", "1"}) {
    const absl::Status ended = core_->AbortJob(name, "").status();
    EXPECT_EQ(ended.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(ended.ToString(), HasSubstr("job \"j\" (number 1) has finished already: 2 workers finished"));
  }
}

TEST_F(JobsTest, AStalledSchedulerBlamesNobody) {
  StartJob();
  clock_.Advance(60 * kSecond);  // this process was suspended; heartbeats wait in its queues
  core_->OnTick();
  EXPECT_TRUE(peers_[worker_[0]].open);
  Run(4 * kSecond, {server_, worker_[0], worker_[1]});
  EXPECT_TRUE(peers_[worker_[0]].plan()->workers(1).alive());
}

class RescaleTest : public CoreHarness {
 protected:
  RescaleTest() {
    job_.set_on_worker_loss(proto::LOSS_RESCALE);
    job_.set_workers(3);
    job_.set_partition_bytes(1024);
    config_.set_servers(2);
  }
  void StartWithTensors() {
    StartCore();
    for (const char* id : {"s0", "s1"}) servers_.push_back(Connect(ServerReg(id)));
    for (int i = 0; i < 3; ++i) worker_.push_back(Connect(WorkerReg("w" + std::to_string(i), i)));
    Tensors(worker_[0], 1, {Spec("t", {1024})});
    for (SessionId s : servers_) Ack(s);
    ASSERT_EQ(peers_[worker_[0]].done(1)->code(), 0);
  }
  const proto::ReportState* Asked(SessionId server) {
    const auto& received = peers_[server].received;
    for (auto it = received.rbegin(); it != received.rend(); ++it)
      if (it->has_report()) return &it->report();
    return nullptr;
  }
  void Report(SessionId server, std::vector<std::tuple<uint32_t, uint64_t, std::string>> states) {
    proto::MemberMessage message;
    message.mutable_heartbeat()->set_report_request(Asked(server)->request());
    for (const auto& [partition, round, bitmap] : states) {
      auto* state = message.mutable_heartbeat()->add_partitions();
      state->set_partition(partition);
      state->set_open_round(round);
      state->set_contributed(bitmap);
    }
    core_->OnMessage(server, message);
  }
  std::vector<SessionId> servers_;
};

TEST_F(RescaleTest, TheLostRankIsOutFromTheRoundThatItMissedPartitionByPartition) {
  StartWithTensors();
  const uint32_t incarnation = peers_[worker_[2]].welcome()->incarnation();
  Run(6 * kSecond, {servers_[0], servers_[1], worker_[0], worker_[1]});
  const proto::Plan* plan = peers_[servers_[0]].plan();
  EXPECT_FALSE(plan->workers(2).alive());
  EXPECT_GT(plan->workers(2).incarnation(), incarnation);  // its last pushes are refused from here on
  EXPECT_EQ(plan->workers(2).out_from_round_size(), 0);
  ASSERT_NE(Asked(servers_[0]), nullptr);
  EXPECT_EQ(Asked(servers_[0])->job(), 1u);
  Report(servers_[0], {{0, 7, "\x04"}, {2, 7, "\x03"}});
  EXPECT_EQ(peers_[servers_[0]].plan()->workers(2).out_from_round_size(), 0);
  Report(servers_[1], {{1, 7, std::string()}, {3, 8, "\x04"}, {99, 1, ""}});
  plan = peers_[worker_[0]].plan();
  EXPECT_THAT(plan->workers(2).out_from_round(), ElementsAre(8, 7, 7, 9));
  EXPECT_EQ(plan->state(), proto::JOB_RUNNING);
  EXPECT_THAT(EventKinds(), Contains("worker_out"));

  // It counts no more: barriers, the end of the job, tensors to come; and it may not return.
  Barrier(worker_[0], 10, "b", 0);
  Barrier(worker_[1], 10, "b", 0);
  EXPECT_EQ(peers_[worker_[0]].done(10)->code(), 0);
  Tensors(worker_[0], 11, {Spec("u", {1})});
  EXPECT_THAT(peers_[worker_[0]].plan()->workers(2).out_from_round(), ElementsAre(8, 7, 7, 9, 0));
  const SessionId back = Connect(WorkerReg("w2", 2, 5000));
  EXPECT_EQ(peers_[back].closed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(peers_[back].closed.ToString(), HasSubstr("replies are aggregates"));
  EXPECT_EQ(peers_[Connect(Again(worker_[2], WorkerReg("w2", 2)))].closed.code(),
            absl::StatusCode::kFailedPrecondition);
  Leave(worker_[0], 20);
  Leave(worker_[1], 20);
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_FINISHED);
}

TEST_F(RescaleTest, ANewProcessTakesTheRankThatIsOutAndJoins) {
  job_.mutable_optimizer()->set_kind("sgd");
  StartWithTensors();
  Leave(worker_[2], 5, true, "x");
  core_->OnSessionClosed(worker_[2]);
  EXPECT_EQ(peers_[Connect(WorkerReg("w2", 2, 5000))].closed.code(), absl::StatusCode::kUnavailable);   // not yet
  Report(servers_[0], {{0, 3, ""}, {2, 3, ""}});
  Report(servers_[1], {{1, 3, ""}, {3, 3, "\x04"}});
  const SessionId back = Connect(WorkerReg("w2", 2, 5000));
  ASSERT_NE(peers_[back].welcome(), nullptr) << peers_[back].closed;
  const proto::WorkerInfo info = peers_[servers_[0]].plan()->workers(2);
  EXPECT_TRUE(info.alive());
  EXPECT_EQ(info.joining(), peers_[back].welcome()->incarnation());
  EXPECT_THAT(info.out_from_round(), ElementsAre(3, 3, 3, 4));
  EXPECT_THAT(EventKinds(), Contains("worker_rejoins"));
  // Barriers do not wait for it; the job's end does. New tensors are its as anybody's.
  Barrier(worker_[0], 10, "b", 0);
  Barrier(worker_[1], 10, "b", 0);
  EXPECT_EQ(peers_[worker_[0]].done(10)->code(), 0);
  Tensors(worker_[0], 11, {Spec("u", {1})});
  EXPECT_EQ(peers_[servers_[0]].plan()->workers(2).out_from_round_size(), 4);
  Leave(worker_[0], 20);
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_RUNNING);
  // Lost again: until the states are there it stays what it is, then it is out as any other.
  Leave(back, 6, true, "y");
  EXPECT_NE(peers_[servers_[0]].plan()->workers(2).joining(), 0u);
  Report(servers_[0], {{0, 7, ""}, {2, 7, ""}});
  Report(servers_[1], {{1, 7, ""}, {3, 7, ""}});
  EXPECT_EQ(core_->GetPlan("j")->workers(2).joining(), 0u);
  EXPECT_THAT(core_->GetPlan("j")->workers(2).out_from_round(), ElementsAre(7, 7, 7, 7, 0));
  Leave(worker_[1], 20);
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_FINISHED);
}

TEST_F(RescaleTest, AJobWithTensorsThatAreNotPushedInEveryStepTakesNobodyBack) {
  job_.mutable_optimizer()->set_kind("sgd");
  StartWithTensors();
  proto::TensorSpec counts = Spec("counts", {1});
  counts.set_occasional(true);
  Tensors(worker_[0], 11, {counts});
  Leave(worker_[2], 5, true, "x");
  core_->OnSessionClosed(worker_[2]);
  Report(servers_[0], {{0, 3, ""}, {2, 3, ""}, {4, 0, ""}});
  Report(servers_[1], {{1, 3, ""}, {3, 3, ""}, {4, 0, ""}});
  const SessionId back = Connect(WorkerReg("w2", 2, 5000));
  EXPECT_EQ(peers_[back].closed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(peers_[back].closed.ToString(), HasSubstr("tensor counts is not pushed in every step"));
}

TEST_F(RescaleTest, ASecondLossAsksAgainForBoth) {
  StartWithTensors();
  Leave(worker_[2], 5, true, "out of memory");
  const uint32_t first = Asked(servers_[0])->request();
  Report(servers_[0], {{0, 3, ""}, {2, 3, ""}});
  Leave(worker_[1], 5, true, "too");
  EXPECT_GT(Asked(servers_[0])->request(), first);
  Report(servers_[0], {{0, 3, ""}, {2, 3, ""}});
  Report(servers_[1], {{1, 3, "\x02"}, {3, 3, "\x04"}});
  EXPECT_THAT(peers_[worker_[0]].plan()->workers(1).out_from_round(), ElementsAre(3, 4, 3, 3));
  EXPECT_THAT(peers_[worker_[0]].plan()->workers(2).out_from_round(), ElementsAre(3, 3, 3, 4));
}

TEST_F(RescaleTest, TheQuestionSurvivesARestartOfTheScheduler) {
  StartWithTensors();
  Leave(worker_[2], 5, true, "x");
  const auto s0 = Again(servers_[0], ServerReg("s0")), s1 = Again(servers_[1], ServerReg("s1"));
  RestartCore();
  servers_ = {Connect(s0), Connect(s1)};
  core_->OnTick();
  ASSERT_NE(Asked(servers_[0]), nullptr);
  Report(servers_[0], {{0, 1, ""}, {2, 1, ""}});
  Report(servers_[1], {{1, 1, ""}, {3, 1, ""}});
  EXPECT_THAT(core_->GetPlan("j")->workers(2).out_from_round(), ElementsAre(1, 1, 1, 1));
}

TEST_F(RescaleTest, LosingEverybodyFailsTheJob) {
  StartWithTensors();
  for (SessionId w : worker_) Leave(w, 5, true, "x");
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_FAILED);
}

TEST_F(JobsTest, FailedLeaveFailsTheJobWithRankAndReason) {
  StartJob();
  Leave(worker_[1], 9, true, "gradient of w1 is not finite");
  EXPECT_EQ(peers_[worker_[1]].done(9)->code(), 0);
  EXPECT_EQ(peers_[worker_[0]].plan()->state(), proto::JOB_FAILED);
  EXPECT_THAT(peers_[worker_[0]].plan()->why(),
              HasSubstr("rank 1 (w1, 10.0.0.3) failed: gradient of w1 is not finite"));
  Barrier(worker_[0], 3, "b", 0);
  EXPECT_EQ(peers_[worker_[0]].done(3)->code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(peers_[worker_[0]].done(3)->message(), HasSubstr("not finite"));
}

TEST_F(JobsTest, FinishesWhenAllHaveLeftAndShutsServersDownIfAsked) {
  config_.set_exit_when_done(true);
  StartJob();
  EXPECT_FALSE(core_->AllJobsEnded());
  Leave(worker_[0], 1);
  EXPECT_TRUE(peers_[worker_[1]].plan()->workers(0).finished());
  Run(8 * kSecond, {server_, worker_[1]});  // the lease of one that has finished means nothing
  EXPECT_EQ(peers_[worker_[1]].plan()->state(), proto::JOB_RUNNING);
  Cut(worker_[0]);
  const SessionId again = Connect(Again(worker_[0], WorkerReg("w0", 0)));  // the answer was lost
  Leave(again, 1);
  EXPECT_EQ(peers_[again].done(1)->code(), 0);
  EXPECT_EQ(peers_[Connect(WorkerReg("new", 0, 999))].closed.code(), absl::StatusCode::kFailedPrecondition);
  Leave(worker_[1], 1);
  EXPECT_EQ(peers_[worker_[1]].done(1)->code(), 0);
  EXPECT_EQ(peers_[server_].plan()->state(), proto::JOB_FINISHED);
  EXPECT_EQ(peers_[server_].count(proto::SchedulerMessage::kShutdown), 1u);
  EXPECT_TRUE(core_->AllJobsEnded());
}

TEST_F(JobsTest, LeavingBeforeTheStartFreesTheRank) {
  StartCore();
  const SessionId w = Connect(WorkerReg("w0", 0));
  Connect(WorkerReg("w1", 1));
  Leave(w, 1);
  EXPECT_EQ(peers_[w].done(1)->code(), 0);
  EXPECT_EQ(peers_[Connect(WorkerReg("x", -1))].welcome()->rank(), 0u);
}

TEST_F(JobsTest, LostServerFailsItsJobsAfterTheLease) {
  StartJob();
  Cut(server_);
  Run(4 * kSecond, {worker_[0], worker_[1]});
  EXPECT_EQ(peers_[worker_[0]].plan()->state(), proto::JOB_RUNNING);
  Run(2 * kSecond, {worker_[0], worker_[1]});
  EXPECT_EQ(peers_[worker_[0]].plan()->state(), proto::JOB_FAILED);
  EXPECT_THAT(peers_[worker_[0]].plan()->why(), HasSubstr("server s0"));
  EXPECT_THAT(peers_[worker_[0]].plan()->why(), HasSubstr("job.replicas is 0"));
  EXPECT_EQ(core_->GetCluster().members_size(), 0);
}

TEST_F(JobsTest, AServerThatComesBackWithItsMemoryChangesNothing) {
  StartJob();
  Cut(server_);
  const uint64_t version = peers_[worker_[0]].plan()->version();
  const SessionId again = Connect(Again(server_, ServerReg("s0")));
  EXPECT_EQ(peers_[again].plan()->version(), version);
  EXPECT_EQ(peers_[worker_[0]].plan()->version(), version);
}

TEST_F(JobsTest, ARestartedServerFailsTheJobWhoseShardsItLost) {
  StartJob();
  Cut(server_);
  const SessionId again = Connect(ServerReg("s0", 101));
  EXPECT_NE(peers_[again].welcome(), nullptr);
  EXPECT_EQ(peers_[worker_[0]].plan()->state(), proto::JOB_FAILED);
  EXPECT_THAT(peers_[worker_[0]].plan()->why(), HasSubstr("server s0 (127.0.0.1:1) restarted and lost its shards"));
}

TEST_F(JobsTest, TensorsGetIdsByNameOncePerJobAndAnswersWaitForTheServers) {
  StartJob();
  Tensors(worker_[0], 1, {Spec("a", {4}), Spec("b", {2, 3})});
  EXPECT_EQ(peers_[worker_[0]].done(1), nullptr);
  Tensors(worker_[1], 1, {Spec("b", {2, 3})});
  Ack(server_);
  ASSERT_NE(peers_[worker_[0]].done(1), nullptr);
  EXPECT_THAT(peers_[worker_[0]].done(1)->tensors(), ElementsAre(0, 1));
  EXPECT_THAT(peers_[worker_[1]].done(1)->tensors(), ElementsAre(1));
  Tensors(worker_[1], 2, {Spec("c", {1}), Spec("a", {4}), Spec("c", {1})});
  EXPECT_EQ(peers_[worker_[1]].done(2), nullptr);
  Ack(server_);
  EXPECT_THAT(peers_[worker_[1]].done(2)->tensors(), ElementsAre(2, 0, 2));
  Tensors(worker_[1], 2, {Spec("c", {1}), Spec("a", {4}), Spec("c", {1})});  // a repeat
  EXPECT_EQ(core_->GetPlan("j")->tensors_size(), 3);
}

TEST_F(JobsTest, TensorsRegisteredBeforeTheStartWaitForIt) {
  StartCore();
  const SessionId w0 = Connect(WorkerReg("w0", 0));
  Tensors(w0, 1, {Spec("a", {4})});
  Connect(WorkerReg("w1", 1));
  const SessionId s = Connect(ServerReg("s"));
  EXPECT_EQ(peers_[w0].plan()->tensors_size(), 1);
  Ack(s);
  EXPECT_THAT(peers_[w0].done(1)->tensors(), ElementsAre(0));
}

TEST_F(JobsTest, DifferentSpecsNameTensorShapesAndRanksAndAddNothing) {
  StartJob();
  Tensors(worker_[0], 1, {Spec("fc1", {784, 128})});
  Tensors(worker_[1], 1, {Spec("new", {1}), Spec("fc1", {784, 64})});
  ASSERT_NE(peers_[worker_[1]].done(1), nullptr);
  EXPECT_EQ(peers_[worker_[1]].done(1)->code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  for (const char* part : {"\"fc1\"", "784x128 fp32", "rank 0", "784x64 fp32", "rank 1"})
    EXPECT_THAT(peers_[worker_[1]].done(1)->message(), HasSubstr(part));
  EXPECT_EQ(core_->GetPlan("j")->tensors_size(), 1);
  Tensors(worker_[1], 2, {Spec("x", {1}), Spec("x", {2})});
  EXPECT_EQ(peers_[worker_[1]].done(2)->code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  Tensors(worker_[1], 3, {Spec("huge", {uint64_t{1} << 33, uint64_t{1} << 33})});
  EXPECT_EQ(peers_[worker_[1]].done(3)->code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  auto wrong = Spec("half", {2});
  wrong.set_dtype("fp16");
  Tensors(worker_[1], 4, {wrong});
  EXPECT_THAT(peers_[worker_[1]].done(4)->message(), HasSubstr("fp16"));
}

TEST_F(JobsTest, BarriersReleaseByNameAndSequenceAndRepeatsPassAtOnce) {
  StartJob();
  Barrier(worker_[0], 1, "b", 0);
  EXPECT_EQ(peers_[worker_[0]].done(1), nullptr);
  Barrier(worker_[1], 7, "other", 0);
  EXPECT_EQ(peers_[worker_[0]].done(1), nullptr);
  Barrier(worker_[1], 8, "b", 0);
  EXPECT_EQ(peers_[worker_[0]].done(1)->code(), 0);
  EXPECT_EQ(peers_[worker_[1]].done(8)->code(), 0);
  Barrier(worker_[0], 2, "b", 1);
  EXPECT_EQ(peers_[worker_[0]].done(2), nullptr);
  // A worker that starts again from the beginning passes what was released.
  Cut(worker_[1]);
  const SessionId again = Connect(WorkerReg("w1b", 1, 999));
  Barrier(again, 1, "b", 0);
  EXPECT_EQ(peers_[again].done(1)->code(), 0);
  EXPECT_EQ(peers_[worker_[0]].done(2), nullptr);
  Barrier(again, 2, "b", 1);
  EXPECT_EQ(peers_[worker_[0]].done(2)->code(), 0);
  EXPECT_EQ(peers_[again].done(2)->code(), 0);
}

TEST_F(JobsTest, BarriersWaitForLostRanksUnderRuleWaitAndNotForFinishedOnes) {
  StartJob();
  Barrier(worker_[0], 1, "b", 0);
  Run(6 * kSecond, {server_, worker_[0]});
  EXPECT_FALSE(peers_[worker_[0]].plan()->workers(1).alive());
  EXPECT_EQ(peers_[worker_[0]].done(1), nullptr);
  const SessionId again = Connect(Again(worker_[1], WorkerReg("w1", 1)));
  Leave(again, 1);
  EXPECT_EQ(peers_[worker_[0]].done(1)->code(), 0);
}

TEST_F(JobsTest, ServersAskForNothingOfAWorker) {
  StartJob();
  Barrier(server_, 1, "b", 0);
  Tensors(server_, 2, {});
  Leave(server_, 3);
  for (uint64_t request : {1, 2, 3})
    EXPECT_EQ(peers_[server_].done(request)->code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace sluice::scheduler
