// SSP and ASP: applied on arrival, answers that wait for the slowest, broadcasts, membership.

#include <bit>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/testing/core_harness.h"

namespace sluice::server {
namespace {

using transport::kFlagAssign;
using transport::kFlagEmpty;
using transport::kFlagNonfinite;
using transport::kFlagRejected;
using transport::kFlagSkipped;

proto::Plan AsyncPlan(const std::string& job) {
  return PlanBuilder(absl::StrCat(job, " optimizer { kind: 'sgd' rate: 1 }")).Server("s0").Tensor("w", {1}).plan;
}

TEST(AsyncTest, AspAppliesAndAnswersAtOnce) {
  CoreHarness s;
  s.Start(AsyncPlan("workers: 2 mode: MODE_ASP"));
  for (uint64_t round = 0; round < 5; ++round) {
    s.Send({.rank = 0, .round = round, .values = {1}});
    const SentFrame reply = s.TakeOne(0);
    EXPECT_EQ(reply.header.round, round);
    EXPECT_EQ(reply.header.aux, 1u);
    EXPECT_EQ(reply.Floats(), (std::vector<float>{-1.0f - static_cast<float>(round)}));
  }
  s.Send({.rank = 1, .round = 0, .values = {10}});
  EXPECT_EQ(s.TakeOne(1).Floats(), (std::vector<float>{-15}));
  ASSERT_EQ(s.observed.rounds.size(), 6u);
  EXPECT_EQ(s.observed.rounds[5].record.round, 0u);
  EXPECT_EQ(s.observed.rounds[5].record.contributors, (std::vector<uint32_t>{1}));
}

TEST(AsyncTest, SspHoldsTheAnswerUntilTheSlowestIsWithinTheBound) {
  CoreHarness s;
  s.Start(AsyncPlan("workers: 2 mode: MODE_SSP staleness: 2"));
  for (uint64_t round = 0; round < 2; ++round) {
    s.Send({.rank = 0, .round = round, .values = {1}});
    EXPECT_EQ(s.TakeOne(0).header.type, FrameType::kReply) << round;
  }
  s.Send({.rank = 0, .round = 2, .values = {1}});   // its next round is 3, the slowest's 0
  EXPECT_TRUE(s.Take(0).empty());
  EXPECT_EQ(s.observed.rounds.size(), 3u);          // applied all the same
  EXPECT_NE(s.core->stats().waiting_for.find("for the slowest, rank 1 (host-b:1), whose next round is 0"),
            std::string::npos) << s.core->stats().waiting_for;
  s.Send({.rank = 0, .round = 2, .values = {1}, .attempt = 2});
  EXPECT_EQ(s.TakeOne(0).header.type, FrameType::kState);
  s.Send({.rank = 1, .round = 0, .values = {1}});
  EXPECT_EQ(s.TakeOne(1).Floats(), (std::vector<float>{-4}));
  const SentFrame late = s.TakeOne(0);
  EXPECT_EQ(late.header.round, 2u);
  EXPECT_EQ(late.Floats(), (std::vector<float>{-4}));   // as they are now
}

TEST(AsyncTest, RepeatIsAnsweredWithCurrentParametersAndNotApplied) {
  CoreHarness s;
  s.Start(AsyncPlan("workers: 2 mode: MODE_ASP"));
  s.Send({.rank = 0, .values = {1}});
  s.Send({.rank = 1, .values = {1}});
  const SentFrame first = s.TakeOne(0);
  s.Send({.rank = 0, .values = {1}});
  const SentFrame again = s.TakeOne(0);
  EXPECT_EQ(again.Floats(), (std::vector<float>{-2}));
  EXPECT_NE(again.header.attempt, first.header.attempt);   // its stripes must not be put together with the first one's
  EXPECT_EQ(again.header.flags, 0);
  s.Send({.rank = 0, .round = 2, .values = {1}});
  EXPECT_EQ(s.TakeOne(0).header.aux, static_cast<uint32_t>(transport::RetryReason::kBusy));
  EXPECT_EQ(s.observed.rounds.size(), 2u);
}

TEST(AsyncTest, BroadcastGathersAllRanksEachAtItsOwnRound) {
  CoreHarness s;
  s.Start(AsyncPlan("workers: 2 mode: MODE_ASP"));
  s.Send({.rank = 0, .values = {1}});
  s.Take(0);
  s.Send({.rank = 0, .round = 1, .values = {7}, .flags = kFlagAssign});
  EXPECT_TRUE(s.Take(0).empty());
  s.Send({.rank = 1, .values = {1}});   // still on its way to the broadcast
  EXPECT_EQ(s.TakeOne(1).Floats(), (std::vector<float>{-2}));
  s.Send({.rank = 1, .round = 1, .flags = kFlagEmpty});
  for (uint32_t rank : {0u, 1u}) {
    const SentFrame reply = s.TakeOne(rank);
    EXPECT_EQ(reply.Floats(), (std::vector<float>{7}));
    EXPECT_EQ(reply.header.round, 1u);
    EXPECT_EQ(reply.header.aux, 2u);
  }
  EXPECT_TRUE(s.observed.rounds.back().record.assigned);
}

TEST(AsyncTest, NonfinitePushSkipsAlone) {
  CoreHarness s;
  s.Start(AsyncPlan("workers: 1 mode: MODE_ASP"));
  s.Send({.flags = kFlagNonfinite});
  const SentFrame reply = s.TakeOne(0);
  EXPECT_TRUE(reply.header.has(kFlagSkipped));
  EXPECT_EQ(reply.Floats(), (std::vector<float>{0}));
}

TEST(AsyncTest, PullGoesByTheRanksOwnRounds) {
  CoreHarness s;
  s.Start(AsyncPlan("workers: 2 mode: MODE_ASP"));
  FrameHeader pull = CoreHarness::HeaderOf({.rank = 1, .round = 1});
  pull.type = FrameType::kPull;
  s.Deliver(2, pull, {});
  s.Send({.rank = 0, .values = {1}});
  EXPECT_TRUE(s.Take(1).empty());
  s.Send({.rank = 1, .values = {1}});
  const auto frames = s.Take(1);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[1].header.type, FrameType::kValue);
  EXPECT_EQ(frames[1].header.round, 1u);
  EXPECT_EQ(frames[1].Floats(), (std::vector<float>{-2}));
}

TEST(AsyncTest, ALostRankFreezesNobodyAndReturnsAtTheSlowestRound) {
  CoreHarness s;
  proto::Plan plan = AsyncPlan("workers: 3 mode: MODE_SSP staleness: 1 on_worker_loss: LOSS_RESCALE");
  s.Start(plan);
  for (uint32_t rank : {0u, 1u}) {
    for (uint64_t round = 0; round < 2; ++round) s.Send({.rank = rank, .round = round, .values = {1}});
  }
  s.Take(0);
  EXPECT_EQ(s.Take(1).size(), 1u);   // round 1 waits for rank 2
  plan.set_version(2);
  plan.mutable_workers(2)->set_alive(false);
  plan.mutable_workers(2)->add_out_from_round(0);
  s.core->OnPlan(plan);
  EXPECT_EQ(s.TakeOne(1).header.round, 1u);
  s.Send({.rank = 2, .values = {1}});
  EXPECT_EQ(s.TakeOne(2).header.status, static_cast<uint16_t>(absl::StatusCode::kAborted));
  plan.set_version(3);
  plan.mutable_workers(2)->set_alive(true);
  plan.mutable_workers(2)->set_joining(10);
  s.core->OnPlan(plan);
  s.Send({.rank = 2, .values = {1}});   // a push from before: too late
  EXPECT_TRUE(s.TakeOne(2).header.has(kFlagRejected));
  s.Send({.rank = 2, .round = 2, .values = {1}});
  EXPECT_EQ(s.Take(2).size(), 1u);
  EXPECT_EQ(s.observed.rounds.size(), 5u);
}

TEST(AsyncTest, RefusesWhatNeedsAWholeRound) {
  const std::pair<const char*, const char*> cases[] = {
      {"optimizer { kind: 'sgd' clip_norm: 1 }", "job.optimizer.clip_norm does not go with job.mode=asp"},
      {"optimizer { kind: 'sgd' } on_nonfinite: NONFINITE_SKIP", "job.on_nonfinite=skip does not go"},
      {"optimizer { kind: 'lamb' }", "job.optimizer.kind=lamb does not go"},
      {"optimizer { kind: 'sgd' } reply: REPLY_CHANGE", "job.reply=change does not go"},
      {"", "it needs job.optimizer.kind"},
  };
  for (const auto& [config, reason] : cases) {
    CoreHarness s;
    s.Start(PlanBuilder(absl::StrCat("workers: 1 mode: MODE_ASP ", config)).Server("s0").Tensor("w", {1}).plan);
    s.Send({.values = {1}});
    const SentFrame error = s.TakeOne(0);
    EXPECT_EQ(error.header.status, static_cast<uint16_t>(absl::StatusCode::kFailedPrecondition));
    EXPECT_NE(error.Text().find(reason), std::string::npos) << error.Text();
  }
}

}  // namespace
}  // namespace sluice::server
