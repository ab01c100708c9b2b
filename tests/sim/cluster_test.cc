// The simulator itself: a seed is a run, repeatable to the bit, and the seeds reach what they are there for.
#include "tests/sim/cluster.h"

#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tests/sim/checker.h"

namespace sluice::sim {
namespace {

std::string Text(const History& history) {
  std::string text;
  for (const Event& event : history.events) text += Describe(event) + "\n";
  return text;
}

TEST(ClusterTest, OneSeedOneHistory) {
  for (const uint64_t seed : {11, 12, 13}) {
    const Outcome a = RunScenario(MakeScenario(seed)), b = RunScenario(MakeScenario(seed));
    EXPECT_EQ(Text(a.history), Text(b.history));
    EXPECT_EQ(a.network.events, b.network.events);
    EXPECT_EQ(a.took, b.took);
    EXPECT_FALSE(a.history.events.empty());
  }
}

TEST(ClusterTest, SeedsPass) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const absl::Status status = JudgeSeed(seed);
    EXPECT_TRUE(status.ok()) << "seed " << seed << ": " << status;
  }
}

TEST(ClusterTest, SeedsReachEveryCorner) {
  std::set<std::string> seen;
  uint64_t crashes = 0, cuts = 0, scheduler = 0, servers = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const Scenario s = MakeScenario(seed);
    seen.insert(proto::Mode_Name(s.job.mode()));
    seen.insert(proto::Order_Name(s.job.order()));
    seen.insert(proto::Reply_Name(s.job.reply()));
    seen.insert(s.job.codec());
    seen.insert(s.job.optimizer().kind());
    if (s.job.optimizer().clip_norm() > 0) seen.insert("clip");
    if (s.nonfinite) seen.insert("nan");
    if (s.overflow) seen.insert("overflow");
    if (s.faults.losses > 0) seen.insert("loss");
    if (s.faults.returns) seen.insert("return");
    if (s.job.backup_workers() > 0) seen.insert("backup workers");
    if (s.job.round_deadline_ms() > 0) seen.insert("deadlines of rounds");
    if (s.two_calls) seen.insert("two calls");
    if (s.broadcast) seen.insert("broadcast");
    if (s.style == OpStyle::kInPlace) seen.insert("in place");
    if (s.style == OpStyle::kPushThenPull) seen.insert("pull");
    crashes += s.faults.worker_crashes, cuts += s.faults.cuts, scheduler += s.faults.scheduler_crashes;
    servers += s.faults.server_crashes;
  }
  for (const char* corner :
       {"MODE_BSP", "MODE_SSP", "MODE_ASP", "ORDER_RANK", "ORDER_EXACT", "ORDER_FAST", "REPLY_DEFAULT",
        "REPLY_PARAMETERS", "REPLY_CHANGE", "REPLY_AGGREGATE", "none", "fp16", "bf16", "int8", "topk:0.1", "sgd", "int4",
        "onebit", "qsgd:7", "randk:0.2", "topk:0.2+int8", "threshold:auto:0.1", "lowrank:1", "lowrank:2+fp16",
        "momentum", "nesterov", "adagrad", "adam", "adamw", "lamb", "clip", "nan", "overflow", "broadcast", "in place",
        "pull", "loss", "return", "backup workers", "deadlines of rounds", "two calls"})
    EXPECT_TRUE(seen.contains(corner)) << corner;
  EXPECT_GT(crashes, 100u);
  EXPECT_GT(cuts, 100u);
  EXPECT_GT(scheduler, 50u);
  EXPECT_GT(servers, 50u);
}

// Most such runs are caught as soon as a server is lost; that one of the first few is shows that the judgement looks at all.
TEST(ClusterTest, CopiesThatOnlySayTheyHaveItAreCaught) {
  RunOptions options;
  options.lying_copies = true;
  int tried = 0;
  for (uint64_t seed = 1; seed <= 300 && tried < 8; ++seed) {
    const Scenario scenario = MakeScenario(seed);
    if (scenario.faults.server_crashes == 0 || !scenario.deterministic()) continue;
    ++tried;
    if (!JudgeSeed(seed, options).ok()) return;
  }
  ADD_FAILURE() << tried << " runs whose copies have nothing passed";
}

TEST(ClusterTest, AStuckRunSaysWhoWaits) {
  Scenario scenario = MakeScenario(1);
  scenario.node.set_servers(scenario.servers + 1);  // one that will never come
  scenario.faults = {};
  const Outcome outcome = RunScenario(scenario);
  EXPECT_FALSE(outcome.status.ok());
  EXPECT_NE(std::string(outcome.status.message()).find("worker 0"), std::string::npos) << outcome.status;
}

}  // namespace
}  // namespace sluice::sim
