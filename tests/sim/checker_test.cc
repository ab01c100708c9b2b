// A bug of each kind, planted into the history of a good run, must be found and named.
#include "tests/sim/checker.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/planted.h"

namespace sluice::sim {
namespace {

TEST_F(CheckerTest, DoubleApplyTakenTwice) {
  Insert(TheContribution(), history_.events[TheContribution()]);
  Finds("partition 1 round 2 of rank 1: the push was taken twice");
}

TEST_F(CheckerTest, DoubleApplyAddedTwice) {
  At<Round>(TheRound()).contributors.push_back(1);
  Finds("partition 1 round 2 of rank 1: the push was applied twice");
}

TEST_F(CheckerTest, DoubleApplyOfARound) {
  const Event round = history_.events[TheRound()];
  Insert(TheRound(), round);
  Finds("partition 1 round 2");
}

TEST_F(CheckerTest, DoubleApplyThatTheServerDoesNotAdmit) {
  // The record looks right, but a gradient was added twice: every parameter is a little off.
  for (float& value : At<Round>(TheRound()).value) value *= 1.01f;
  Finds("partition 1 round 2: the server's value differs from the reference: element 0");
}

TEST_F(CheckerTest, LostPushNeverTaken) {
  std::erase(At<Round>(TheRound()).contributors, 1u);
  Erase(TheContribution());
  Finds("partition 1 round 2 of rank 1: the push was sent, but never applied");
}

TEST_F(CheckerTest, LostPushTakenButNotApplied) {
  std::erase(At<Round>(TheRound()).contributors, 1u);
  Finds("partition 1 round 2 of rank 1: the push was taken, but never applied");
}

TEST_F(CheckerTest, LostPushReplacedByOtherBytes) {
  At<Contribution>(TheContribution()).payload[3] ^= std::byte{1};
  Finds("partition 1 round 2 of rank 1: the server took other bytes than the worker sent");
}

TEST_F(CheckerTest, LostRound) {
  Erase(TheRound());
  Finds("partition 1 round 2");
}

TEST_F(CheckerTest, InventedPush) {
  const size_t i =
      Find<Encoded>([](const Encoded& e) { return e.partition == 1 && e.round == 2 && e.rank == 1; });
  Erase(i);
  Finds("partition 1 round 2 of rank 1: taken, but nobody pushed it");
}

TEST_F(CheckerTest, StaleTermAccepted) {
  --At<Round>(TheRound()).term;
  Finds("partition 1 round 2 was applied under term");
}

TEST_F(CheckerTest, StaleLifeAccepted) {
  // At that server a later life of the rank was heard before.
  const Contribution taken = At<Contribution>(TheContribution());
  const size_t before = Find<Contribution>([&](const Contribution& c) {
    return c.server == taken.server && c.lane == taken.lane && c.rank == 1;
  });
  At<Contribution>(before).incarnation = 20;
  Finds("life 10 was taken after one of life 20");
}

TEST_F(CheckerTest, AppliedByAServerThatDoesNotOwnIt) {
  Round& round = At<Round>(TheRound());
  round.server = 1 - round.server;
  Finds("owns it");
}

TEST_F(CheckerTest, TornStepByItsVerdict) {
  At<Round>(TheRound()).skipped = true;
  Finds("step 2 is torn: partition 1 skipped");
}

TEST_F(CheckerTest, TornStepByItsScale) {
  At<Round>(TheRound()).scale *= 0.5;
  Finds("step 2 is torn: partition 1 applied at scale");
}

TEST_F(CheckerTest, TornStepByItsContributors) {
  // The others went on without rank 1 in one partition, and the server says so.
  std::erase(At<Round>(TheRound()).contributors, 1u);
  Erase(TheContribution());
  const size_t sent =
      Find<Encoded>([](const Encoded& e) { return e.partition == 1 && e.round == 2 && e.rank == 1; });
  Erase(sent);
  Finds("partition 1 round 2 has nothing of rank 1");
}

TEST_F(CheckerTest, WrongRate) {
  At<Round>(TheRound()).rate_bits ^= 1;
  Finds("partition 1 round 2: rate");
}

TEST_F(CheckerTest, WrongOrder) {
  std::vector<uint32_t>& ranks = At<Round>(TheRound()).contributors;
  std::swap(ranks[0], ranks[1]);
  Finds("partition 1 round 2: summed in the order 1,0");
}

TEST_F(CheckerTest, OneBitOfAResult) {
  Result& result = At<Result>(Find<Result>([](const Result& r) { return r.partition == 1 && r.round == 2; }));
  result.value.back() = std::nextafter(result.value.back(), 9.0f);
  Finds("got differs from the reference: element");
}

TEST_F(CheckerTest, OneBitOfAChange) {
  Scenario scenario = Plain();
  scenario.job.set_reply(proto::REPLY_CHANGE);
  scenario.job.set_reply_codec("int8");
  Run(scenario);
  At<Round>(TheRound()).reply.back() ^= std::byte{1};
  Finds("partition 1 round 2: the reply's bytes differ");
}

TEST_F(CheckerTest, OneBitOfAPull) {
  Scenario scenario = Plain();
  scenario.style = OpStyle::kPushThenPull;
  Run(scenario);
  At<Pulled>(Find<Pulled>([](const Pulled& p) { return p.tensor == 0 && p.round == 2; })).value[0] += 1.0f;
  Finds("pulled partition 0 after 2 rounds: element 0");
}

TEST_F(CheckerTest, AResidualThatWasLost) {
  const size_t i =
      Find<Encoded>([](const Encoded& e) { return e.partition == 1 && e.round == 2 && e.rank == 1; });
  for (float& g : At<Encoded>(i).gradient) g += 0.01f;
  Finds("partition 1 round 2 of rank 1, life 1: the payload is not the encoding of the gradient");
}

TEST_F(CheckerTest, AnAnswerBeyondTheBoundOfSsp) {
  Scenario scenario = Plain();
  scenario.steps = 12;
  scenario.job.set_mode(proto::MODE_ASP);  // nobody waits
  scenario.job.mutable_optimizer()->clear_clip_norm();
  scenario.max_compute = 3 * kMillisecond;
  int ahead = 0;  // of these runs, those in which a worker happened to run ahead
  for (scenario.seed = 1; scenario.seed <= 20; ++scenario.seed) {
    Run(scenario);
    history_.plan.mutable_config()->set_mode(proto::MODE_SSP);
    history_.plan.mutable_config()->set_staleness(1);
    if (CheckHistory(history_, rounds_).ok()) continue;
    ++ahead;
    Finds("the bound is 1");
  }
  EXPECT_GT(ahead, 0);
}

TEST_F(CheckerTest, AnotherRunThanTheOneWithoutFaults) {
  const History calm = history_;
  EXPECT_TRUE(CompareHistories(calm, history_).ok());
  At<Contribution>(TheContribution()).payload[3] ^= std::byte{1};
  EXPECT_NE(std::string(CompareHistories(calm, history_).message()).find("partition 1 round 2 of rank 1"),
            std::string::npos);
  history_ = calm;
  At<Round>(TheRound()).value[7] += 1.0f;
  EXPECT_NE(std::string(CompareHistories(calm, history_).message()).find("element 7"), std::string::npos);
  history_ = calm;
  Erase(TheRound());
  EXPECT_FALSE(CompareHistories(calm, history_).ok());
}

}  // namespace
}  // namespace sluice::sim
