// Operators' requests: every rule and every refusal, and what becomes of a request over losses and restarts.
#include "scheduler/copies_harness.h"
#include "scheduler/replicas.h"

namespace sluice::scheduler {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class MoveRequestsTest : public CopiesHarness {
 protected:
  // Until nothing moves any more; the number of rounds of reports.
  int Finish() {
    int rounds = 0;
    while (rounds < 100) {
      const std::string before = Plan().SerializeAsString();
      Report(true);
      Run(200 * kMillisecond, Everybody());
      if (Plan().SerializeAsString() == before) break;
      ++rounds;
    }
    return rounds;
  }
};

void ExpectStatus(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST_F(MoveRequestsTest, AShardMovesWhenItsCopyIsInSync) {
  Start(3, 1);
  const auto answer = core_->MoveShard("j", 0, "s2");
  ASSERT_TRUE(answer.ok()) << answer.status();
  // The copy of shard 0 lies on s1 or s2; either way there is one to fill first.
  ASSERT_EQ(answer->moves_size(), 1);
  EXPECT_EQ(answer->moves(0).from(), "s0");
  EXPECT_EQ(answer->moves(0).to(), "s2");
  EXPECT_TRUE(Plan().shards(0).moving());
  EXPECT_EQ(Plan().shards(0).server(), 0u);
  Report(true);
  const proto::Plan plan = Plan();
  EXPECT_EQ(plan.shards(0).server(), 2u);
  EXPECT_EQ(plan.shards(0).term(), 2u);
  EXPECT_FALSE(plan.shards(0).moving());
  EXPECT_EQ(core_->ListMoves("j")->moves_size(), 0);
  EXPECT_TRUE(core_->GetCluster().jobs(0).is_protected());
  EXPECT_THAT(EventKinds(), Contains("shard_moved"));
  EXPECT_EQ(peers_[worker_[0]].plan()->shards(0).server(), 2u);
}

TEST_F(MoveRequestsTest, ProgressHasBytesRateAndTimeLeft) {
  Start(4, 1);
  const std::string to = Plan().shards(0).backups(0).server() == 3 ? "s2" : "s3";   // where it has no copy
  ASSERT_TRUE(core_->MoveShard("", 0, to).ok());
  EXPECT_EQ(core_->ListMoves("j")->moves(0).state(), "filling");
  EXPECT_EQ(core_->ListMoves("j")->moves(0).eta_ms(), 0u);
  Report(false, 1000, 9000);
  clock_.Advance(500 * kMillisecond);
  Report(false, 2000, 8000);
  const proto::MoveStatus move = core_->ListMoves("j")->moves(0);
  EXPECT_EQ(move.bytes_sent(), 2000u);
  EXPECT_EQ(move.bytes_left(), 8000u);
  EXPECT_EQ(move.bytes_per_second(), 2000u);
  EXPECT_EQ(move.eta_ms(), 4000u);
  EXPECT_EQ(core_->GetCluster().jobs(0).copies_bytes_left(), 8000u);
  ASSERT_TRUE(core_->CancelMoves("j").ok());
  EXPECT_EQ(core_->GetCluster().jobs(0).copies_bytes_left(), 0u) << "of a copy that is gone";
}

TEST_F(MoveRequestsTest, RefusalsSayWhatToDo) {
  StartCore();
  ExpectStatus(core_->MoveShard("", 0, "s0").status(), absl::StatusCode::kNotFound, "there is no job yet");
  ExpectStatus(core_->SetDraining("s0", true).status(), absl::StatusCode::kNotFound, "none has registered");
  const SessionId w = Connect(WorkerReg("w", 0));
  ExpectStatus(core_->Rebalance("j", true).status(), absl::StatusCode::kFailedPrecondition, "it has no shards yet");
  Leave(w, 1);
  peers_.clear();
  store_.records().clear();
  next_session_ = 100;
  Start(3, 1);
  ExpectStatus(core_->MoveShard("j", 12, "s0").status(), absl::StatusCode::kNotFound, "its shards are 0 to 11");
  ExpectStatus(core_->MoveShard("j", 0, "x").status(), absl::StatusCode::kNotFound, "known: s0, s1, s2");
  ExpectStatus(core_->MoveShard("j", 0, "s0").status(), absl::StatusCode::kAlreadyExists, "owned by s0 already");
  ExpectStatus(core_->MoveShard("k", 0, "s0").status(), absl::StatusCode::kNotFound, "there is no job \"k\"");
  ExpectStatus(core_->GetDrain("x").status(), absl::StatusCode::kNotFound, "known: s0, s1, s2");
  ASSERT_TRUE(core_->MoveShard("j", 0, "s2").ok());
  ExpectStatus(core_->MoveShard("j", 0, "s1").status(), absl::StatusCode::kFailedPrecondition, "on its way to s2");
  ASSERT_TRUE(core_->SetDraining("s1", true).ok());
  ExpectStatus(core_->MoveShard("j", 3, "s1").status(), absl::StatusCode::kFailedPrecondition, "undrain s1");
  Cut(s_[2]);
  ExpectStatus(core_->MoveShard("j", 3, "s2").status(), absl::StatusCode::kFailedPrecondition, "s2 is lost or has no");
  ExpectStatus(core_->SetDraining("s2", true).status(), absl::StatusCode::kFailedPrecondition, "has no stream");
  ExpectStatus(core_->SetDraining("s0", true).status(), absl::StatusCode::kFailedPrecondition, "nowhere to go");
  ASSERT_TRUE(core_->AbortJob("j", "").ok());
  ExpectStatus(core_->MoveShard("j", 3, "s0").status(), absl::StatusCode::kFailedPrecondition, "it has ended, aborted");
  EXPECT_EQ(core_->ListMoves("j")->moves_size(), 0);
}

TEST_F(MoveRequestsTest, NothingChangesIfItCannotBeWritten) {
  Start(3, 1);
  const std::string before = Plan().SerializeAsString();
  store_.set_failure(absl::ResourceExhaustedError("full"));
  ExpectStatus(core_->MoveShard("j", 0, "s2").status(), absl::StatusCode::kUnavailable, "full; try again");
  ExpectStatus(core_->SetDraining("s0", true).status(), absl::StatusCode::kUnavailable, "nothing has changed");
  ExpectStatus(core_->SetMovesPaused("j", true).status(), absl::StatusCode::kUnavailable, "nothing has changed");
  store_.set_failure(absl::OkStatus());
  Run(200 * kMillisecond, Everybody());
  EXPECT_EQ(Plan().SerializeAsString(), before);
  EXPECT_FALSE(core_->GetDrain("s0")->draining());
}

TEST_F(MoveRequestsTest, ADrainEmptiesAServerAllItsSmallShardsAtATime) {
  Start(3, 1);
  const auto answer = core_->SetDraining("s0", true);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->draining());
  EXPECT_EQ(answer->shards(), 4u);
  EXPECT_THAT(answer->text(), HasSubstr("4 shards and "));
  int moving = 0;
  const proto::Plan begun = Plan();
  for (const auto& shard : begun.shards()) moving += shard.moving();
  EXPECT_EQ(moving, 4);
  EXPECT_EQ(core_->ListMoves("j")->moves_size(), 4);
  EXPECT_NE(begun.coordinator_server(), 0u);
  EXPECT_EQ(core_->CancelMoves("j")->moves_size(), 4) << "a drain ends by undrain";
  EXPECT_GE(Finish(), 1);
  const auto drained = core_->GetDrain("s0");
  EXPECT_TRUE(drained->empty());
  EXPECT_EQ(drained->text(), "holds nothing any more: it may be stopped");
  EXPECT_THAT(EventKinds(), Contains("server_drained"));
  EXPECT_TRUE(core_->GetCluster().jobs(0).is_protected());
  // Stopped: nobody misses it. A new life takes copies again.
  const uint64_t terms = Plan().shards(0).term();
  Cut(s_[0]);
  Run(2 * kSecond, Everybody());
  EXPECT_EQ(Plan().state(), proto::JOB_RUNNING);
  EXPECT_EQ(Plan().shards(0).term(), terms);
  s_[0] = Connect(ServerReg("s0", 101));
  EXPECT_FALSE(core_->GetDrain("s0")->draining());
}

TEST_F(MoveRequestsTest, UndrainStopsADrainAndCancelEndsMoves) {
  Start(3, 1);
  ASSERT_TRUE(core_->SetDraining("s0", true).ok());
  ASSERT_TRUE(core_->SetDraining("s0", false).ok());
  EXPECT_EQ(core_->CancelMoves("j")->moves_size(), 0);
  Finish();
  EXPECT_EQ(HeldBy(Plan(), 0).shards, 4u);
  EXPECT_TRUE(core_->GetCluster().jobs(0).is_protected());
  const proto::Plan plan = Plan();
  for (const auto& shard : plan.shards()) EXPECT_EQ(shard.backups_size(), 1) << "the copies of the moves are gone";
}

TEST_F(MoveRequestsTest, PausedMovesBeginWhenTheyAreResumed) {
  Start(3, 1);
  EXPECT_TRUE(core_->SetMovesPaused("j", true)->paused());
  const auto asked = core_->MoveShard("j", 0, "s1");
  EXPECT_EQ(asked->moves(0).state(), "queued");
  EXPECT_FALSE(Plan().shards(0).moving());
  RestartCore();   // it is on record
  EXPECT_TRUE(core_->ListMoves("j")->paused());
  EXPECT_EQ(core_->ListMoves("j")->moves_size(), 1);
  for (size_t i = 0; i < s_.size(); ++i) s_[i] = Connect(Again(s_[i], ServerReg("s" + std::to_string(i))));
  worker_[0] = Connect(Again(worker_[0], WorkerReg("w0", 0)));
  Run(200 * kMillisecond, Everybody());
  EXPECT_FALSE(Plan().shards(0).moving());
  ASSERT_TRUE(core_->SetMovesPaused("j", false).ok());
  Finish();
  EXPECT_EQ(Plan().shards(0).server(), 1u);
}

TEST_F(MoveRequestsTest, RebalanceGivesAServerThatJoinedItsShare) {
  Start(2, 1);
  s_.push_back(Connect(ServerReg("s2")));
  const auto dry = core_->Rebalance("j", true);
  ASSERT_TRUE(dry.ok()) << dry.status();
  EXPECT_EQ(dry->moves_size(), 4);
  EXPECT_EQ(core_->ListMoves("j")->moves_size(), 0);
  const auto answer = core_->Rebalance("j", false);
  EXPECT_EQ(answer->moves_size(), 4);
  for (const auto& move : answer->moves()) EXPECT_EQ(move.to(), "s2");
  EXPECT_EQ(core_->Rebalance("j", false)->moves_size(), 0) << "it is on its way";
  Finish();
  for (uint32_t server = 0; server < 3; ++server) EXPECT_EQ(HeldBy(Plan(), server).shards, 4u);
  EXPECT_TRUE(core_->GetCluster().jobs(0).is_protected());
}

TEST_F(MoveRequestsTest, AMoveEndsWithItsTarget) {
  Start(4, 2);
  ASSERT_TRUE(core_->MoveShard("j", 0, "s3").ok());
  Cut(s_[3]);
  Run(1200 * kMillisecond, Everybody());
  EXPECT_EQ(core_->ListMoves("j")->moves_size(), 0);
  EXPECT_FALSE(Plan().shards(0).moving());
  EXPECT_EQ(Plan().shards(0).server(), 0u);
}

TEST_F(MoveRequestsTest, ANewJobIsNotPlacedOnADrainingServer) {
  StartCore();
  Connect(ServerReg("s0"));
  Connect(ServerReg("s1"));
  ASSERT_TRUE(core_->SetDraining("s0", true).ok());
  job_.set_workers(1);
  Connect(WorkerReg("w", 0));
  const proto::Plan plan = Plan();
  ASSERT_EQ(plan.state(), proto::JOB_RUNNING);
  for (const auto& shard : plan.shards()) EXPECT_EQ(plan.servers(static_cast<int>(shard.server())).id(), "s1");
}

}  // namespace
}  // namespace sluice::scheduler
