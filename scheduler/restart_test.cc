// What is written, what a restarted scheduler goes on with, what happens when writing fails.
#include "scheduler/core_harness.h"

namespace sluice::scheduler {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using RestartTest = CoreHarness;

TEST_F(RestartTest, MembersComeBackAndTheDataPlaneSeesNoChange) {
  StartJob();
  Tensors(worker_[0], 1, {Spec("a", {100})});
  Ack(server_);
  Barrier(worker_[0], 2, "b", 0);
  Barrier(worker_[1], 2, "b", 0);
  const proto::Plan before = *peers_[worker_[0]].plan();
  const auto s = Again(server_, ServerReg("s0"));
  const auto w0 = Again(worker_[0], WorkerReg("w0", 0)), w1 = Again(worker_[1], WorkerReg("w1", 1));
  RestartCore();
  const SessionId s2 = Connect(s), a = Connect(w0), b = Connect(w1);
  for (SessionId session : {s2, a, b}) {
    ASSERT_NE(peers_[session].welcome(), nullptr);
    ASSERT_NE(peers_[session].plan(), nullptr);
    EXPECT_EQ(peers_[session].plan()->SerializeAsString(), before.SerializeAsString());
  }
  EXPECT_EQ(peers_[a].welcome()->incarnation(), w0.incarnation());
  // Repeats of what was answered before, and new requests.
  Tensors(a, 1, {Spec("a", {100})});
  Ack(s2);
  EXPECT_THAT(peers_[a].done(1)->tensors(), ElementsAre(0));
  Barrier(a, 2, "b", 0);
  EXPECT_EQ(peers_[a].done(2)->code(), 0);
  Leave(a, 3);
  Leave(b, 3);
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_FINISHED);
  EXPECT_EQ(core_->GetPlan("j")->uid(), before.uid());
}

TEST_F(RestartTest, MembersThatWereNotHeardYetAreShownSoAndFinishedOnesAsFinished) {
  StartJob();
  Leave(worker_[1], 3);
  const auto w0 = Again(worker_[0], WorkerReg("w0", 0));
  Run(kSecond);
  EXPECT_FALSE(core_->ListWorkers("j")->workers(0).unheard());
  RestartCore();
  Run(kSecond);
  EXPECT_TRUE(core_->ListWorkers("j")->workers(0).unheard());
  EXPECT_FALSE(core_->ListWorkers("j")->workers(0).finished());
  EXPECT_TRUE(core_->ListWorkers("j")->workers(1).finished());
  const proto::Cluster cluster = core_->GetCluster();
  for (const proto::MemberStatus& member : cluster.members())
    EXPECT_TRUE(member.unheard() || member.finished()) << member.id();
  Connect(w0);
  EXPECT_FALSE(core_->ListWorkers("j")->workers(0).unheard());
}

TEST_F(RestartTest, NobodyIsLostForOneLeaseAfterTheStart) {
  StartJob();
  RestartCore();
  Run(4900 * kMillisecond);
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_RUNNING);
  EXPECT_TRUE(core_->GetPlan("j")->workers(1).alive());
  Run(kSecond);
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_FAILED);  // its server did not come back
}

TEST_F(RestartTest, AStrangerWaitsForTheHolderOfARankFromBefore) {
  StartJob();
  const auto s = Again(server_, ServerReg("s0"));
  const auto w0 = Again(worker_[0], WorkerReg("w0", 0));
  RestartCore();
  const SessionId s2 = Connect(s);
  const SessionId stranger = Connect(WorkerReg("x", 0, 9999));
  const SessionId other = Connect(WorkerReg("y", 1, 9999));
  EXPECT_EQ(peers_[stranger].welcome(), nullptr);
  const SessionId back = Connect(w0);
  ASSERT_NE(peers_[back].welcome(), nullptr);
  Heartbeat(back);
  Heartbeat(back);
  EXPECT_EQ(peers_[stranger].closed.code(), absl::StatusCode::kAlreadyExists);
  Run(6 * kSecond, {s2, back});
  EXPECT_NE(peers_[other].welcome(), nullptr);  // the holder of rank 1 never came
}

TEST_F(RestartTest, TheRankOfAWorkerThatWasLostBeforeTheRestartIsFree) {
  StartJob();
  const auto s = Again(server_, ServerReg("s0"));
  const auto w0 = Again(worker_[0], WorkerReg("w0", 0));
  Run(6 * kSecond, {server_, worker_[0]});
  ASSERT_FALSE(core_->GetPlan("j")->workers(1).alive());
  RestartCore();
  Connect(s);
  Connect(w0);
  const SessionId again = Connect(WorkerReg("w1", 1, 9999));
  ASSERT_NE(peers_[again].welcome(), nullptr);
  EXPECT_TRUE(core_->GetPlan("j")->workers(1).alive());
}

TEST_F(RestartTest, VersionsAndTermsGoBeyondWhatMembersReport) {
  StartJob();
  auto s = Again(server_, ServerReg("s0"));
  s.set_plan_version(1000);
  s.set_max_term(7);
  RestartCore();
  const SessionId s2 = Connect(s);
  EXPECT_GT(peers_[s2].plan()->version(), 1000u);
  for (const auto& shard : peers_[s2].plan()->shards()) EXPECT_EQ(shard.term(), 8u);
}

TEST_F(RestartTest, AnEndedJobOfAnEarlierLifeDoesNotEndThisOne) {
  config_.set_exit_when_done(true);
  StartJob();
  Leave(worker_[0], 1);
  Leave(worker_[1], 1);
  EXPECT_TRUE(core_->AllJobsEnded());
  const auto s = Again(server_, ServerReg("s0"));
  RestartCore();
  EXPECT_FALSE(core_->AllJobsEnded());
  const SessionId s2 = Connect(s);  // unless somebody still waits for its end
  EXPECT_EQ(peers_[s2].count(proto::SchedulerMessage::kShutdown), 1u);
  EXPECT_TRUE(core_->AllJobsEnded());
}

TEST_F(RestartTest, EventsAreKeptAndNumbersNeverComeTwice) {
  StartJob();
  Run(kSecond, {server_, worker_[0], worker_[1]});
  const proto::EventList before = core_->ListEvents(0, 0);
  RestartCore();
  const proto::EventList after = core_->ListEvents(0, 0);
  ASSERT_GT(after.events_size(), before.events_size());
  for (int i = 0; i < before.events_size(); ++i)
    EXPECT_EQ(after.events(i).SerializeAsString(), before.events(i).SerializeAsString());
  EXPECT_GT(after.events(before.events_size()).number(), before.events(before.events_size() - 1).number());
  EXPECT_EQ(core_->ListEvents(before.events(before.events_size() - 1).number(), 1).events_size(), 1);
}

TEST_F(RestartTest, TheLogIsBounded) {
  StartCore();
  for (int i = 0; i < 3000; ++i) Connect(WorkerReg("", 0));
  EXPECT_EQ(core_->ListEvents(0, 1 << 30).events_size(), 2000);
  core_->OnTick();
  EXPECT_LE(store_.records().size(), 2001u);
}

TEST_F(RestartTest, AFullDiskRefusesNewMembersAndLosesNobody) {
  StartJob();
  store_.set_failure(absl::ResourceExhaustedError("state file /x/state.db: disk is full"));
  job_.set_name("k");
  const SessionId late = Connect(WorkerReg("x", 0));
  EXPECT_EQ(peers_[late].closed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(peers_[late].closed.ToString(), HasSubstr("/x/state.db"));
  Run(8 * kSecond, {server_, worker_[0]});
  EXPECT_TRUE(core_->GetPlan("j")->workers(1).alive());  // could not be written, so it is not so
  EXPECT_EQ(core_->GetCluster().jobs_size(), 1);
  EXPECT_THAT(core_->GetCluster().jobs(0).why(), HasSubstr("/x/state.db"));

  store_.set_failure(absl::OkStatus());
  Run(kSecond, {server_, worker_[0]});
  EXPECT_FALSE(core_->GetPlan("j")->workers(1).alive());
  EXPECT_THAT(core_->GetCluster().jobs(0).why(), Not(HasSubstr("/x/state.db")));
  EXPECT_NE(peers_[Connect(WorkerReg("x", 0))].welcome(), nullptr);
}

// It ran for ever: both workers had been told of the full disk and were gone, and nobody said again that they finished.
TEST_F(RestartTest, AJobThatFinishesWhileTheDiskIsFullEndsOnceThereIsRoom) {
  job_.set_on_worker_loss(proto::LOSS_FAIL);  // silence must not be taken for a loss
  StartJob();
  store_.set_failure(absl::ResourceExhaustedError("state file /x/state.db: disk is full"));
  Leave(worker_[0], 1);
  Leave(worker_[1], 1);
  Cut(worker_[1]);  // gives up waiting
  Run(20 * kSecond, {server_, worker_[0]});
  EXPECT_EQ(peers_[worker_[0]].done(1), nullptr);
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_RUNNING);

  store_.set_failure(absl::OkStatus());
  Run(200 * kMillisecond, {server_, worker_[0]});
  ASSERT_NE(peers_[worker_[0]].done(1), nullptr);
  EXPECT_EQ(peers_[worker_[0]].done(1)->code(), 0);
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_FINISHED);
  EXPECT_THAT(EventKinds(), Contains("state_recovered"));
}

TEST_F(RestartTest, ALeaveThatWaitsForTheDiskDoesNotEndTheLifeThatFollows) {
  StartJob();
  store_.set_failure(absl::ResourceExhaustedError("full"));
  Leave(worker_[1], 1);
  Cut(worker_[1]);
  store_.set_failure(absl::OkStatus());
  const SessionId next = Connect(WorkerReg("w1 again", 1));
  ASSERT_NE(peers_[next].welcome(), nullptr);
  Run(kSecond, {server_, worker_[0], next});
  EXPECT_FALSE(core_->GetPlan("j")->workers(1).finished());
}

TEST_F(RestartTest, TensorsAndBarriersWaitForAFullDiskAndGoOnByThemselves) {
  StartJob();
  store_.set_failure(absl::ResourceExhaustedError("full"));
  Tensors(worker_[0], 1, {Spec("a", {4})});
  Barrier(worker_[0], 2, "b", 0);
  Barrier(worker_[1], 2, "b", 0);
  Run(kSecond, {server_, worker_[0], worker_[1]});
  EXPECT_EQ(peers_[worker_[0]].done(1), nullptr);
  EXPECT_EQ(peers_[worker_[0]].done(2), nullptr);
  const uint64_t version = core_->GetPlan("j")->version();

  store_.set_failure(absl::OkStatus());
  Run(200 * kMillisecond, {server_, worker_[0], worker_[1]});
  Ack(server_);
  ASSERT_NE(peers_[worker_[0]].done(1), nullptr);
  EXPECT_THAT(peers_[worker_[0]].done(1)->tensors(), ElementsAre(0));
  for (const SessionId worker : worker_) {
    ASSERT_NE(peers_[worker].done(2), nullptr);
    EXPECT_EQ(peers_[worker].done(2)->code(), 0);
  }
  EXPECT_EQ(core_->GetPlan("j")->version(), version + 1);  // failed attempts used none up
}

TEST_F(RestartTest, RegistrationsThatAFullDiskTurnsAwayLeaveNoEventsAndUseUpNoNumbers) {
  StartCore();
  store_.set_failure(absl::ResourceExhaustedError("full"));
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(peers_[Connect(WorkerReg("w0", 0))].closed.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(peers_[Connect(ServerReg("s0"))].closed.code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_THAT(EventKinds(), ElementsAre("scheduler_started", "state_error"));

  store_.set_failure(absl::OkStatus());
  const SessionId worker = Connect(WorkerReg("w0", 0));
  ASSERT_NE(peers_[worker].plan(), nullptr);
  EXPECT_EQ(peers_[worker].plan()->job(), 1u);
  EXPECT_EQ(peers_[worker].welcome()->member(), 1u);
  EXPECT_THAT(EventKinds(), ElementsAre("scheduler_started", "state_error", "state_recovered", "job_created",
                                        "worker_registered"));
}

TEST_F(RestartTest, NothingIsSentThatWasNotWritten) {
  StartJob();
  const size_t plans = peers_[worker_[1]].count(proto::SchedulerMessage::kPlan);
  store_.set_failure(absl::UnavailableError("no"));
  Tensors(worker_[0], 1, {Spec("a", {4})});
  Run(kSecond, {server_, worker_[0], worker_[1]});
  EXPECT_EQ(peers_[worker_[1]].count(proto::SchedulerMessage::kPlan), plans);
  EXPECT_EQ(core_->GetPlan("j")->tensors_size(), 0);
}

TEST_F(RestartTest, AnEndedJobKeepsItsLastRound) {
  StartJob();
  for (const uint64_t round : {41, 42}) {
    proto::MemberMessage message;
    message.mutable_heartbeat()->set_round(round);
    core_->OnMessage(worker_[round % 2], message);
  }
  Leave(worker_[0], 1);
  Leave(worker_[1], 1);
  for (const SessionId worker : worker_) Cut(worker);
  EXPECT_EQ(core_->GetCluster().jobs(0).round(), 42u);
  RestartCore();
  EXPECT_EQ(core_->GetCluster().jobs(0).state(), proto::JOB_FINISHED);
  EXPECT_EQ(core_->GetCluster().jobs(0).round(), 42u);
  EXPECT_EQ(core_->ListWorkers("")->job(), "j");
}

TEST_F(RestartTest, AnAbortedJobStaysAborted) {
  StartJob();
  Run(6 * kSecond, {server_});   // both workers are gone
  ASSERT_TRUE(core_->AbortJob("j", "nobody comes back").ok());
  const proto::Plan plan = *core_->GetPlan("j");
  RestartCore();
  EXPECT_EQ(core_->GetPlan("j")->SerializeAsString(), plan.SerializeAsString());
  EXPECT_THAT(EventKinds(), Contains("job_failed"));
  EXPECT_EQ(core_->AbortJob("j", "").status().code(), absl::StatusCode::kFailedPrecondition);
  // A server that was away at the time is told when it comes, and so is a worker that comes back after all.
  const SessionId server = Connect(Again(server_, ServerReg("s0")));
  ASSERT_NE(peers_[server].plan(), nullptr);
  EXPECT_EQ(peers_[server].plan()->state(), proto::JOB_FAILED);
  const SessionId worker = Connect(Again(worker_[0], WorkerReg("w0", 0)));
  ASSERT_NE(peers_[worker].plan(), nullptr);
  EXPECT_EQ(peers_[worker].plan()->why(), "aborted by an operator: nobody comes back");
}

TEST_F(RestartTest, AnAbortAfterARestartReachesWhoComesBack) {
  StartJob();
  RestartCore();
  ASSERT_TRUE(core_->AbortJob("j", "").ok());
  EXPECT_TRUE(core_->AllJobsEnded());
  const SessionId worker = Connect(Again(worker_[0], WorkerReg("w0", 0)));
  ASSERT_NE(peers_[worker].plan(), nullptr);
  EXPECT_EQ(peers_[worker].plan()->state(), proto::JOB_FAILED);
}

TEST_F(RestartTest, AnAbortThatCannotBeWrittenChangesNothing) {
  StartJob();
  store_.set_failure(absl::ResourceExhaustedError("disk full"));
  const absl::Status status = core_->AbortJob("j", "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.ToString(), HasSubstr("disk full"));
  EXPECT_EQ(core_->GetPlan("j")->state(), proto::JOB_RUNNING);
  EXPECT_EQ(peers_[worker_[0]].plan()->state(), proto::JOB_RUNNING);
  store_.set_failure(absl::OkStatus());
  EXPECT_TRUE(core_->AbortJob("j", "").ok());
  EXPECT_EQ(peers_[worker_[0]].plan()->state(), proto::JOB_FAILED);
}

TEST_F(RestartTest, UnreadableRecordsAreNamed) {
  StartJob();
  std::string key;
  for (const auto& [k, v] : store_.records())
    if (k.rfind("job/", 0) == 0) key = k;
  store_.records()[key] = "garbage";
  auto core =
      SchedulerCore::Create(config_, &store_, &clock_, [] { return 0; }, 1, {[](auto, auto&) {}, [](auto, auto&) {}});
  EXPECT_EQ(core.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(core.status().ToString(), HasSubstr(key));
}

TEST_F(RestartTest, AStoreThatCannotBeWrittenIsFoundAtStart) {
  store_.set_failure(absl::ResourceExhaustedError("full"));
  auto core =
      SchedulerCore::Create(config_, &store_, &clock_, [] { return 0; }, 1, {[](auto, auto&) {}, [](auto, auto&) {}});
  EXPECT_EQ(core.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(RestartTest, ViewsFindJobsByNameOrSayWhichThereAre) {
  StartCore();
  EXPECT_EQ(core_->GetPlan("").status().code(), absl::StatusCode::kNotFound);
  job_.set_workers(1);
  Connect(ServerReg("s"));
  const SessionId a = Connect(WorkerReg("a", 0));
  EXPECT_EQ(core_->ListShards("")->shards_size(), 16);
  EXPECT_EQ(core_->ListShards("")->shards(0).server_id(), "s");
  EXPECT_EQ(core_->ListWorkers("j")->workers(0).id(), "a");
  EXPECT_EQ(core_->GetJobConfig("j")->codec(), "none");
  job_.set_name("k");
  Connect(WorkerReg("b", 0));
  EXPECT_EQ(core_->GetPlan("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(core_->GetPlan("").status().ToString(), HasSubstr("j, k"));
  EXPECT_THAT(core_->GetPlan("q").status().ToString(), HasSubstr("j, k"));
  Leave(a, 1);
  EXPECT_EQ(core_->GetPlan("")->config().name(), "k");  // the one that has not ended
  EXPECT_EQ(core_->GetPlanByNumber(9).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(core_->GetCluster().jobs_size(), 2);
}

}  // namespace
}  // namespace sluice::scheduler
