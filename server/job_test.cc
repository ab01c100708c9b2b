// What a job does when its plan changes: membership, ends, configurations that cannot be.

#include "server/testing/core_harness.h"

namespace sluice::server {
namespace {

using transport::kFlagRejected;

// --- membership

TEST(JobTest, RescaleClosesTheRoundWithoutTheLostRank) {
  CoreHarness s;
  proto::Plan plan = OnePartition("workers: 3 on_worker_loss: LOSS_RESCALE");
  s.Start(plan);
  s.Send({.rank = 0, .values = {1, 1, 1, 1}});
  s.Send({.rank = 2, .values = {3, 3, 3, 3}});
  EXPECT_TRUE(s.Take(0).empty());
  EXPECT_NE(s.core->stats().waiting_for.find("has 2 of 3 contributions and waits for rank 1 (host-b:1)"),
            std::string::npos) << s.core->stats().waiting_for;
  plan.set_version(2);
  plan.mutable_workers(1)->set_alive(false);
  plan.mutable_workers(1)->add_out_from_round(0);
  s.core->OnPlan(plan);
  const SentFrame reply = s.TakeOne(0);
  EXPECT_EQ(reply.Floats(), (std::vector<float>{2, 2, 2, 2}));
  EXPECT_EQ(reply.header.aux, 2u);
  EXPECT_EQ(s.observed.rounds[0].record.contributors, (std::vector<uint32_t>{0, 2}));
  // The lost rank comes back to life: its push of the closed round was dropped, the open one is not for it.
  s.Take(1);
  s.Send({.rank = 1, .values = {9, 9, 9, 9}});
  EXPECT_TRUE(s.TakeOne(1).header.has(kFlagRejected));
  s.Send({.rank = 1, .round = 1, .values = {9, 9, 9, 9}});
  EXPECT_EQ(s.TakeOne(1).header.status, static_cast<uint16_t>(absl::StatusCode::kAborted));
}

// Of the round alone. kFlagAdmit: it is named, and answered at once; else the answer comes when it is open.
FrameHeader BarePull(uint32_t rank, uint64_t round, uint16_t flags) {
  FrameHeader h = CoreHarness::HeaderOf(
      {.rank = rank, .round = round, .flags = static_cast<uint16_t>(transport::kFlagNoReply | flags)});
  h.type = FrameType::kPull;
  h.aux64 = round;
  return h;
}

// Rank 1 of three was declared out of round 0 and is back; rank 0 and 2 have closed round 0 without it.
proto::Plan Rejoined(CoreHarness* s) {
  proto::Plan plan = OnePartition("workers: 3 on_worker_loss: LOSS_RESCALE optimizer { kind: 'sgd' rate: 1 }");
  plan.mutable_workers(1)->add_out_from_round(0);
  plan.mutable_workers(1)->set_joining(10);
  s->Start(plan);
  for (const uint32_t rank : {0u, 2u}) s->Send({.rank = rank, .values = {1, 1, 1, 1}});
  s->TakeOne(0);
  s->TakeOne(2);
  return plan;
}

TEST(JobTest, AReturningRankCountsFromTheRoundThatItNamesAndNobodyWaitsBefore) {
  CoreHarness s;
  Rejoined(&s);
  s.Deliver(2, BarePull(1, 2, transport::kFlagAdmit), {});
  EXPECT_EQ(s.TakeOne(1).header.round, 1u);
  s.Deliver(2, BarePull(1, 2, 0), {});   // round 1 goes on without it
  EXPECT_TRUE(s.Take(1).empty());
  for (const uint32_t rank : {0u, 2u}) s.Send({.rank = rank, .round = 1, .values = {1, 1, 1, 1}});
  EXPECT_EQ(s.observed.rounds.back().record.contributors, (std::vector<uint32_t>{0, 2}));
  const SentFrame value = s.TakeOne(1);   // round 2 is open, and it is told at once
  EXPECT_EQ(value.header.type, FrameType::kValue);
  EXPECT_EQ(value.header.round, 2u);
  EXPECT_EQ(value.header.total_bytes, 0u);
  for (const uint32_t rank : {0u, 2u}) s.Send({.rank = rank, .round = 2, .values = {1, 1, 1, 1}});
  EXPECT_EQ(s.observed.rounds.size(), 2u);   // waits for rank 1
  s.Send({.rank = 1, .round = 2, .values = {4, 4, 4, 4}});
  EXPECT_EQ(s.observed.rounds.back().record.contributors, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(s.TakeOne(1).Floats(), (std::vector<float>{-4, -4, -4, -4}));
}

TEST(JobTest, AReturningRankThatNamesALaterRoundIsWaitedForThereOnly) {
  CoreHarness s;
  Rejoined(&s);
  s.Deliver(2, BarePull(1, 2, transport::kFlagAdmit), {});
  for (const uint64_t round : {1, 2})
    for (const uint32_t rank : {0u, 2u}) s.Send({.rank = rank, .round = round, .values = {1, 1, 1, 1}});
  EXPECT_EQ(s.observed.rounds.size(), 2u);   // round 2 waits
  s.Take(1);
  s.Deliver(2, BarePull(1, 4, transport::kFlagAdmit), {});
  EXPECT_EQ(s.observed.rounds.size(), 3u);
  EXPECT_EQ(s.TakeOne(1).header.round, 3u);
  s.Deliver(2, BarePull(1, 2, transport::kFlagAdmit), {});   // a repeat that comes late
  for (const uint32_t rank : {0u, 2u}) s.Send({.rank = rank, .round = 3, .values = {1, 1, 1, 1}});
  EXPECT_EQ(s.observed.rounds.size(), 4u);
  for (const uint32_t rank : {0u, 2u}) s.Send({.rank = rank, .round = 4, .values = {1, 1, 1, 1}});
  EXPECT_EQ(s.observed.rounds.size(), 4u);   // waits for rank 1
}

TEST(JobTest, AReturningRankThatComesTooLateIsRejectedAndCountsFromThenOn) {
  CoreHarness s;
  Rejoined(&s);
  s.Send({.rank = 0, .round = 1, .values = {1, 1, 1, 1}});
  s.Send({.rank = 1, .round = 1, .values = {9, 9, 9, 9}});   // begun: what is summed in order of rank stays so
  EXPECT_EQ(s.TakeOne(1).header.aux, static_cast<uint32_t>(transport::RetryReason::kBusy));
  s.Send({.rank = 2, .round = 1, .values = {1, 1, 1, 1}});
  s.Send({.rank = 1, .round = 1, .values = {9, 9, 9, 9}, .attempt = 2});
  const SentFrame answer = s.TakeOne(1);
  EXPECT_TRUE(answer.header.has(kFlagRejected));
  EXPECT_EQ(answer.Floats(), (std::vector<float>{-2, -2, -2, -2}));
  EXPECT_EQ(s.core->stats().rejected, 1u);
  for (const uint32_t rank : {0u, 2u}) s.Send({.rank = rank, .round = 2, .values = {1, 1, 1, 1}});
  EXPECT_EQ(s.observed.rounds.size(), 2u);   // waits for rank 1
}

TEST(JobTest, AReturningRankIsLetInWhenTheOthersHaveLeft) {
  CoreHarness s;
  proto::Plan plan = Rejoined(&s);
  s.Deliver(2, BarePull(1, 2, 0), {});
  EXPECT_TRUE(s.Take(1).empty());
  plan.set_version(2);
  plan.mutable_workers(0)->set_finished(true);
  plan.mutable_workers(2)->set_finished(true);
  s.core->OnPlan(plan);
  s.core->OnTurnEnd();
  EXPECT_EQ(s.TakeOne(1).header.round, 1u);   // nobody would ever close round 1 for it
  s.Send({.rank = 1, .round = 1, .values = {2, 2, 2, 2}});
  EXPECT_EQ(s.TakeOne(1).Floats(), (std::vector<float>{-3, -3, -3, -3}));
}

TEST(JobTest, FinishedRanksAreNotWaitedFor) {
  CoreHarness s;
  proto::Plan plan = OnePartition("workers: 2");
  s.Start(plan);
  s.Send({.rank = 0, .values = {1, 1, 1, 1}});
  plan.set_version(2);
  plan.mutable_workers(1)->set_finished(true);
  s.core->OnPlan(plan);
  EXPECT_EQ(s.TakeOne(0).Floats(), (std::vector<float>{1, 1, 1, 1}));
}

TEST(JobTest, ReportsRoundAndContributors) {
  CoreHarness s;
  s.Start(PlanBuilder("workers: 9").Server("s0").Tensor("w", {1, 1}).plan);
  s.Send({.rank = 8, .partition = 1, .values = {1}});
  proto::Heartbeat heartbeat;
  s.core->ReportState(1, &heartbeat);
  ASSERT_EQ(heartbeat.partitions_size(), 2);
  EXPECT_EQ(heartbeat.partitions(1).partition(), 1u);
  EXPECT_EQ(heartbeat.partitions(1).contributed(), std::string("\0\1", 2));
  EXPECT_EQ(heartbeat.partitions(0).contributed(), std::string(2, '\0'));
}

// --- plans

TEST(JobTest, CostsCountPayloadBothWaysByShard) {
  CoreHarness s;
  PlanBuilder builder("workers: 2");
  builder.Server("s0").Server("s1");
  builder.plan.mutable_shards(1)->set_server(0);   // both shards are here; partitions 0 and 2 are of the first
  builder.Tensor("w", {4, 8, 4});
  s.Start(builder.plan);
  for (const uint32_t rank : {0u, 1u}) {
    s.Send({.rank = rank, .partition = 0, .values = {1, 1, 1, 1}});
    s.Send({.rank = rank, .partition = 2, .values = {1, 1, 1, 1}});
    s.Send({.rank = rank, .partition = 1, .values = std::vector<float>(8, 1)});
  }
  s.core->OnTurnEnd();
  std::vector<proto::ShardCost> costs = s.core->costs();
  ASSERT_EQ(costs.size(), 2u);
  EXPECT_EQ(costs[0].job_uid(), 77u);
  for (const auto& cost : costs) {
    EXPECT_EQ(cost.bytes_in(), 2 * 8 * sizeof(float)) << cost.shard();
    EXPECT_EQ(cost.bytes_out(), 2 * 8 * sizeof(float)) << cost.shard();
  }
  builder.plan.mutable_shards(1)->set_server(1);   // it has gone
  builder.plan.set_version(2);
  s.core->OnPlan(builder.plan);
  costs = s.core->costs();
  ASSERT_EQ(costs.size(), 1u);
  EXPECT_EQ(costs[0].shard(), 0u);
}

TEST(JobTest, EndedJobsFreeTheirMemoryAndStayEnded) {
  CoreHarness s;
  proto::Plan plan = OnePartition("workers: 1 optimizer { kind: 'adam' }", 1000);
  s.Start(plan);
  EXPECT_GE(s.core->stats().state_bytes, 12000u);
  plan.set_version(2);
  plan.set_state(proto::JOB_FINISHED);
  s.core->OnPlan(plan);
  EXPECT_EQ(s.core->stats().state_bytes, 0u);
  plan.set_version(1);
  plan.set_state(proto::JOB_RUNNING);
  s.core->OnPlan(plan);
  EXPECT_EQ(s.core->stats().state_bytes, 0u);
}

TEST(JobTest, AnotherUidIsAnotherJobAndItsOldWorkersAreSentAway) {
  CoreHarness s;
  proto::Plan plan = OnePartition("workers: 1 optimizer { kind: 'sgd' rate: 1 }", 1);
  s.Start(plan);
  s.Send({.values = {1}});
  s.Take(0);
  plan.set_uid(78);
  s.core->OnPlan(plan);   // the same number and version
  EXPECT_TRUE(s.endpoint.closed.contains(1));
  proto::Heartbeat heartbeat;
  s.core->ReportState(1, &heartbeat);
  EXPECT_EQ(heartbeat.partitions(0).open_round(), 0u);
}

TEST(JobTest, ImpossibleConfigurationIsAnsweredWithTheReason) {
  CoreHarness s;
  s.Start(OnePartition("workers: 1 reply: REPLY_CHANGE"));
  s.Send({.values = {1, 1, 1, 1}});
  const SentFrame error = s.TakeOne(0);
  EXPECT_EQ(error.header.status, static_cast<uint16_t>(absl::StatusCode::kFailedPrecondition));
  EXPECT_NE(error.Text().find("job.reply=change needs an optimizer"), std::string::npos) << error.Text();
  EXPECT_NE(s.core->stats().waiting_for.find("cannot run here"), std::string::npos);
}

TEST(JobTest, PartitionBeyondThePoolIsRefusedByName) {
  proto::DataConfig data;
  data.set_pool_bytes(1 << 16);
  CoreHarness s("s0", 0, data);
  s.Start(OnePartition("workers: 1", 8192));
  s.Send({.values = std::vector<float>(8192)});
  EXPECT_NE(s.TakeOne(0).Text().find("raise its data.pool_bytes"), std::string::npos);
}

}  // namespace
}  // namespace sluice::server
