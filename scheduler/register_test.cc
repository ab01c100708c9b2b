// Who may be which member (scheduler/register.cc).
#include <set>

#include "scheduler/core_harness.h"

namespace sluice::scheduler {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

using RegisterTest = CoreHarness;

TEST_F(RegisterTest, VersionSkewNamesBothVersions) {
  StartCore();
  proto::Register reg = WorkerReg("w", 0);
  reg.set_protocol(99);
  reg.set_version("9.9");
  const SessionId s = Connect(reg);
  EXPECT_EQ(peers_[s].closed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(peers_[s].closed.ToString(), HasSubstr("protocol 99 (release 9.9)"));
  EXPECT_THAT(peers_[s].closed.ToString(), HasSubstr("protocol 1 (release 0.1.0)"));
  EXPECT_THAT(EventKinds(), Contains("refused"));
}

TEST_F(RegisterTest, RefusesWhatCannotBe) {
  StartCore();
  const auto code = [&](proto::Register reg) { return peers_[Connect(reg)].closed.code(); };
  proto::Register reg = WorkerReg("", 0);
  EXPECT_EQ(code(reg), absl::StatusCode::kInvalidArgument);
  reg = WorkerReg(std::string(256, 'x'), 0);
  EXPECT_EQ(code(reg), absl::StatusCode::kInvalidArgument);
  reg = WorkerReg("w", 0);
  reg.set_role(static_cast<proto::Role>(7));
  EXPECT_EQ(code(reg), absl::StatusCode::kInvalidArgument);
  reg = WorkerReg("w", 0);
  reg.mutable_job()->set_name("a/b");
  EXPECT_EQ(code(reg), absl::StatusCode::kInvalidArgument);
  reg = WorkerReg("w", 0);
  reg.mutable_job()->set_workers(UINT32_MAX);
  EXPECT_EQ(code(reg), absl::StatusCode::kInvalidArgument);
  reg = WorkerReg("w", 2);
  EXPECT_EQ(code(reg), absl::StatusCode::kInvalidArgument);
  reg = ServerReg("s", 1, 0);
  EXPECT_EQ(code(reg), absl::StatusCode::kInvalidArgument);
  reg = ServerReg("s");
  reg.mutable_lanes(0)->set_port(70000);
  EXPECT_EQ(code(reg), absl::StatusCode::kInvalidArgument);
  reg = ServerReg("s");
  reg.set_max_term(UINT32_MAX);
  EXPECT_EQ(code(reg), absl::StatusCode::kInvalidArgument);
}

TEST_F(RegisterTest, ThePlanNamesHostsAndListeners) {
  job_.set_workers(1);
  StartCore();
  proto::Register server = ServerReg("s"), worker = WorkerReg("w", 0);
  server.set_host("node1");
  worker.set_host("node2");
  worker.add_lanes()->set_host("10.0.0.2");
  worker.mutable_lanes(0)->set_port(5000);
  const SessionId s = Connect(server), w = Connect(worker);
  const proto::Plan* plan = peers_[w].plan();
  ASSERT_NE(plan, nullptr);
  ASSERT_EQ(plan->servers_size(), 1);
  EXPECT_EQ(plan->servers(0).host(), "node1");
  EXPECT_EQ(plan->workers(0).host(), "node2");
  ASSERT_EQ(plan->workers(0).listeners_size(), 1);
  EXPECT_EQ(plan->workers(0).listeners(0).port(), 5000u);
  worker.set_host(std::string(256, 'x'));
  EXPECT_EQ(peers_[Connect(worker)].closed.code(), absl::StatusCode::kInvalidArgument);
  worker.set_host("node2");
  worker.mutable_lanes(0)->set_port(0);
  EXPECT_EQ(peers_[Connect(worker)].closed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(peers_[s].closed.ok());
}

TEST_F(RegisterTest, MessagesBeforeAndTwiceRegisterEndTheStream) {
  StartCore();
  core_->OnSessionOpen(50, "x");
  Heartbeat(50);
  EXPECT_EQ(peers_[50].closed.code(), absl::StatusCode::kFailedPrecondition);
  const SessionId s = Connect(ServerReg("s"));
  proto::MemberMessage message;
  *message.mutable_register_() = ServerReg("s");
  core_->OnMessage(s, message);
  EXPECT_EQ(peers_[s].closed.code(), absl::StatusCode::kFailedPrecondition);
  const SessionId t = Connect(ServerReg("t"));
  core_->OnMessage(t, {});
  EXPECT_EQ(peers_[t].closed.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RegisterTest, GivesTheLowestFreeRank) {
  job_.set_workers(3);
  StartCore();
  const SessionId fixed = Connect(WorkerReg("a", 1));
  const SessionId first = Connect(WorkerReg("b", -1));
  const SessionId second = Connect(WorkerReg("c", -1));
  EXPECT_EQ(peers_[fixed].welcome()->rank(), 1u);
  EXPECT_EQ(peers_[first].welcome()->rank(), 0u);
  EXPECT_EQ(peers_[second].welcome()->rank(), 2u);
  std::set<uint32_t> members;
  for (SessionId s : {fixed, first, second}) members.insert(peers_[s].welcome()->member());
  EXPECT_EQ(members.size(), 3u);
}

TEST_F(RegisterTest, AFullJobRefusesOneMoreAfterALeaseUnlessAPlaceComesFree) {
  StartJob();
  const SessionId late = Connect(WorkerReg("late", -1));
  Run(4 * kSecond, {server_, worker_[0], worker_[1]});
  EXPECT_TRUE(peers_[late].open);
  EXPECT_EQ(peers_[late].welcome(), nullptr);
  Run(2 * kSecond, {server_, worker_[0], worker_[1]});
  EXPECT_EQ(peers_[late].closed.code(), absl::StatusCode::kFailedPrecondition);

  const SessionId other = Connect(WorkerReg("other", -1));
  Cut(worker_[1]);
  ASSERT_NE(peers_[other].welcome(), nullptr);
  EXPECT_EQ(peers_[other].welcome()->rank(), 1u);
}

TEST_F(RegisterTest, DifferentJobConfigurationNamesTheFirstKeyAndBothValues) {
  StartCore();
  Connect(WorkerReg("a", 0));
  proto::Register reg = WorkerReg("b", 1);
  reg.mutable_job()->mutable_optimizer()->set_rate(0.5);
  reg.mutable_job()->set_allow_biased(true);
  const SessionId s = Connect(reg);
  EXPECT_EQ(peers_[s].closed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(peers_[s].closed.ToString(), HasSubstr("job.optimizer.rate: 0 and 0.5"));
  EXPECT_THAT(peers_[s].closed.ToString(), HasSubstr("worker a"));
  // A default said in words is the same.
  reg = WorkerReg("b", 1);
  reg.mutable_job()->set_codec("none");
  reg.mutable_job()->set_partition_bytes(4 << 20);
  EXPECT_NE(peers_[Connect(reg)].welcome(), nullptr);
}

TEST_F(RegisterTest, RankThatIsAliveElsewhereIsRefusedOnceItsHolderSpokeTwice) {
  StartJob();
  const SessionId twin = Connect(WorkerReg("twin", 1, 900));
  EXPECT_TRUE(peers_[twin].open);
  Heartbeat(worker_[1]);
  EXPECT_TRUE(peers_[twin].open);
  Heartbeat(worker_[0]);
  Heartbeat(server_);
  EXPECT_TRUE(peers_[twin].open);
  Heartbeat(worker_[1]);
  EXPECT_EQ(peers_[twin].closed.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(peers_[twin].closed.ToString(), HasSubstr("w1"));
  EXPECT_THAT(peers_[twin].closed.ToString(), HasSubstr("10.0.0." + std::to_string(worker_[1])));
}

TEST_F(RegisterTest, ARestartedWorkerIsLetInWhenTheOldStreamEnds) {
  StartJob();
  const uint32_t old = peers_[worker_[1]].welcome()->incarnation();
  const SessionId next = Connect(WorkerReg("w1b", 1, 7));  // its proposal is smaller: clocks fold
  EXPECT_EQ(peers_[next].welcome(), nullptr);
  Heartbeat(worker_[1]);  // was under way when the process died
  Cut(worker_[1]);
  ASSERT_NE(peers_[next].welcome(), nullptr);
  EXPECT_GT(peers_[next].welcome()->incarnation(), old);
  EXPECT_EQ(peers_[next].plan()->workers(1).incarnation(), peers_[next].welcome()->incarnation());
  EXPECT_EQ(peers_[worker_[0]].plan()->workers(1).incarnation(), peers_[next].welcome()->incarnation());
  EXPECT_EQ(peers_[server_].plan()->version(), peers_[next].plan()->version());

  // The fenced life is told so, also after a restart of the scheduler.
  proto::Register zombie = Again(worker_[1], WorkerReg("w1", 1));
  EXPECT_EQ(peers_[Connect(zombie)].closed.code(), absl::StatusCode::kAlreadyExists);
  RestartCore();
  const SessionId again = Connect(zombie);
  EXPECT_EQ(peers_[again].closed.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(peers_[again].closed.ToString(), HasSubstr("taken over by w1b"));
}

TEST_F(RegisterTest, ARestartedWorkerIsLetInWhenTheLeaseEnds) {
  StartJob();
  const SessionId next = Connect(WorkerReg("w1b", 1, 7));
  Run(4 * kSecond, {server_, worker_[0]});
  EXPECT_EQ(peers_[next].welcome(), nullptr);
  Run(2 * kSecond, {server_, worker_[0]});
  EXPECT_NE(peers_[next].welcome(), nullptr);
  EXPECT_FALSE(peers_[worker_[1]].open);
}

TEST_F(RegisterTest, TheSameLifeComesBackOverANewStreamAndNothingChanges) {
  StartJob();
  const uint64_t version = peers_[worker_[0]].plan()->version();
  const SessionId again = Connect(Again(worker_[0], WorkerReg("w0", -1)));
  ASSERT_NE(peers_[again].welcome(), nullptr);
  EXPECT_EQ(peers_[again].welcome()->rank(), 0u);
  EXPECT_EQ(peers_[again].welcome()->incarnation(), peers_[worker_[0]].welcome()->incarnation());
  EXPECT_EQ(peers_[again].plan()->version(), version);
  EXPECT_EQ(peers_[worker_[0]].closed.code(), absl::StatusCode::kCancelled);
  // Welcome was lost: the first proposal counts too.
  EXPECT_NE(peers_[Connect(WorkerReg("w0", 0))].welcome(), nullptr);
}

TEST_F(RegisterTest, ServerIdAliveElsewhere) {
  StartCore();
  const SessionId a = Connect(ServerReg("s", 1));
  const SessionId b = Connect(ServerReg("s", 2));
  Heartbeat(a);
  Heartbeat(a);
  EXPECT_EQ(peers_[b].closed.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(peers_[b].closed.ToString(), HasSubstr("node.id"));
  const SessionId c = Connect(ServerReg("s", 3));
  Cut(a);
  ASSERT_NE(peers_[c].welcome(), nullptr);
  EXPECT_EQ(peers_[c].welcome()->incarnation(), 3u);
}

TEST_F(RegisterTest, AWorkerOfAJobThatThisSchedulerDoesNotKnowIsToldSo) {
  StartCore();
  proto::Register reg = WorkerReg("w", 0);
  reg.set_plan_version(17);
  const SessionId s = Connect(reg);
  EXPECT_EQ(peers_[s].closed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(peers_[s].closed.ToString(), HasSubstr("node.state_file"));
}

TEST_F(RegisterTest, TooManyOpenJobs) {
  StartCore();
  for (int i = 0; i < 64; ++i) {
    job_.set_name("j" + std::to_string(i));
    ASSERT_NE(peers_[Connect(WorkerReg("w", 0))].welcome(), nullptr);
  }
  job_.set_name("one-more");
  EXPECT_EQ(peers_[Connect(WorkerReg("w", 0))].closed.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RegisterTest, JobsSideBySideHaveNumbersUidsAndPlansOfTheirOwn) {
  job_.set_workers(1);
  StartCore();
  const SessionId server = Connect(ServerReg("s"));
  const SessionId a = Connect(WorkerReg("a", 0));
  job_.set_name("k");
  const SessionId b = Connect(WorkerReg("b", 0));
  EXPECT_EQ(peers_[a].plan()->job(), 1u);
  EXPECT_EQ(peers_[b].plan()->job(), 2u);
  EXPECT_NE(peers_[a].plan()->uid(), peers_[b].plan()->uid());
  EXPECT_EQ(peers_[a].plan()->state(), proto::JOB_RUNNING);
  EXPECT_EQ(peers_[b].plan()->state(), proto::JOB_RUNNING);
  EXPECT_EQ(peers_[server].count(proto::SchedulerMessage::kPlan), 2u);
  Leave(a, 1);
  EXPECT_EQ(core_->GetPlanByNumber(1)->state(), proto::JOB_FINISHED);
  EXPECT_EQ(core_->GetPlanByNumber(2)->state(), proto::JOB_RUNNING);
}

}  // namespace
}  // namespace sluice::scheduler
