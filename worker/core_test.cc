#include "worker/core.h"

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/residual.h"
#include "worker/testing/cluster.h"

namespace sluice::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> Values(size_t n, uint64_t seed) {
  PhiloxRandom random(seed, 7);
  std::vector<float> values(n);
  for (float& v : values) v = random.Uniform() - 0.5f;
  return values;
}

std::vector<float> Parameters(Cluster& cluster, uint32_t tensor) {
  std::map<uint32_t, std::vector<float>> parts;
  for (const auto& server : cluster.servers) {
    for (const auto& [index, part] : server->parts) {
      if (part.tensor == tensor) parts[index] = part.x;
    }
  }
  std::vector<float> all;
  for (const auto& [index, x] : parts) all.insert(all.end(), x.begin(), x.end());
  return all;
}

TEST(CoreTest, PushPullGivesEverybodyTheNewParameters) {
  Cluster cluster({.ranks = 2, .servers = 2, .job = "optimizer { kind: 'sgd' }"});
  cluster.Start(0);
  cluster.Start(1);
  const auto ids = cluster.Register({{"w", 200}, {"b", 3}});
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(cluster.core(0).rate(), 0.5f);
  std::vector<float> expected(200, 0.0f);
  for (uint64_t step = 0; step < 3; ++step) {
    const std::vector<float> g0 = Values(200, step), g1 = Values(200, 100 + step);
    std::vector<float> out0(200), out1 = g1;  // rank 1 in place
    const auto op0 = cluster.Submit(0, {.tensor = ids[0], .input = g0, .output = out0});
    const auto op1 = cluster.Submit(1, {.tensor = ids[0], .input = out1, .output = out1});
    ASSERT_TRUE(cluster.Wait({op0, op1}));
    EXPECT_TRUE(op0->result.status.ok()) << op0->result.status;
    EXPECT_EQ(op0->result.round, step);
    EXPECT_EQ(op0->result.contributors, 2u);
    EXPECT_EQ(op0->result.next_rate, 0.5f);
    for (size_t i = 0; i < 200; ++i) expected[i] -= 0.5f * ((g0[i] + g1[i]) / 2);
    EXPECT_EQ(out0, expected);
    EXPECT_EQ(out1, expected);
  }
  EXPECT_EQ(cluster.core(0).NextRound(ids[0]), 3u);
  EXPECT_EQ(cluster.core(0).NextRound(ids[1]), 0u);
  EXPECT_EQ(cluster.core(0).stats().max_round, 2u);
  EXPECT_GT(cluster.core(0).stats().bytes_out_push, 3 * 200 * sizeof(float));
  EXPECT_EQ(cluster.core(0).stats().transport, "sim");
}

TEST(CoreTest, OperationsOnOneTensorRunInOrder) {
  Cluster cluster({.job = "optimizer { kind: 'sgd' }"});
  cluster.Start(0);
  const auto ids = cluster.Register({{"w", 100}});
  const std::vector<float> g(100, 1.0f);
  std::vector<float> a(100), b(100), c(100);
  const auto first = cluster.Submit(0, {.kind = OpKind::kPush, .tensor = ids[0], .input = g});
  const auto pull = cluster.Submit(0, {.kind = OpKind::kPull, .tensor = ids[0], .output = a});
  const auto second = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = b});
  EXPECT_EQ(cluster.core(0).NextRound(ids[0]), 2u);
  ASSERT_TRUE(cluster.Wait({first, pull, second}));
  EXPECT_THAT(a, testing::Each(-0.5f));
  EXPECT_THAT(b, testing::Each(-1.0f));
  EXPECT_EQ(second->result.round, 1u);
}

TEST(CoreTest, BroadcastReplacesTheParametersByTheRootsValues) {
  for (const char* change : {"", "fp16"}) {
    ClusterOptions options{.ranks = 2, .job = "optimizer { kind: 'sgd' } codec_min_elements: 1"};
    if (*change != '\0') options.job += " reply: REPLY_CHANGE";
    options.server.change_codec = change;
    Cluster cluster(options);
    cluster.Start(0);
    cluster.Start(1);
    const auto ids = cluster.Register({{"w", 130}});
    std::vector<float> v0 = Values(130, 1), v1 = Values(130, 2);
    const std::vector<float> root = v1;
    const auto op0 =
        cluster.Submit(0, {.kind = OpKind::kBroadcast, .tensor = ids[0], .input = v0, .output = v0, .root = 1});
    const auto op1 =
        cluster.Submit(1, {.kind = OpKind::kBroadcast, .tensor = ids[0], .input = v1, .output = v1, .root = 1});
    ASSERT_TRUE(cluster.Wait({op0, op1}));
    EXPECT_EQ(v0, root);
    EXPECT_EQ(v1, root);
    EXPECT_EQ(Parameters(cluster, ids[0]), root);
  }
}

// What the worker sends over several rounds, against a loop with one residual and the rule of worker/residual.h.
TEST(CoreTest, ErrorFeedbackFollowsTheRate) {
  const auto rate = [](uint64_t round) { return round == 2 ? 0.0f : 0.5f / static_cast<float>(1 + round); };
  ClusterOptions options{.job = "optimizer { kind: 'sgd' } codec: 'topk:0.1' codec_min_elements: 1",
                         .partition_elements = 1000};
  options.server.rate = rate;
  Cluster cluster(options);
  struct Observer : WorkerObserver {
    void OnEncoded(uint32_t, uint64_t, uint16_t, std::span<const float>, ConstBytes payload) override {
      payloads.emplace_back(payload.begin(), payload.end());
    }
    std::vector<std::vector<std::byte>> payloads;
  } observer;
  cluster.Start(0, &observer);
  const auto ids = cluster.Register({{"w", 300}});
  auto codec = *compression::MakeCodec("topk:0.1");
  std::vector<float> residual(300, 0.0f);
  float kept = 0;
  for (uint64_t step = 0; step < 6; ++step) {
    const std::vector<float> g = Values(300, step);
    std::vector<float> out(300);
    const auto op = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out});
    ASSERT_TRUE(cluster.Wait({op}));
    std::vector<float> next(300);
    std::vector<std::byte> bytes(codec->MaxEncodedBytes(300));
    compression::EncodeInput input{.gradient = g, .residual = residual, .residual_out = next};
    // In plain words: 0.5 -> 0.25 doubles, a rate of zero changes nothing, 0.25 -> 0.125 doubles again.
    input.residual_scale = step == 0 || rate(step) == 0 ? 1.0f : kept / rate(step);
    bytes.resize(*codec->Encode(input, bytes));
    EXPECT_EQ(observer.payloads.back(), bytes) << step;
    residual = next;
    if (rate(step) > 0) kept = rate(step);
  }
}

TEST(ResidualTest, ScaleIsClampedAndNeverThroughZero) {
  EXPECT_EQ(ResidualScale(1.0f, 0.5f), 2.0f);
  EXPECT_EQ(ResidualScale(1.0f, 0.001f), 10.0f);
  EXPECT_EQ(ResidualScale(0.001f, 1.0f), 0.1f);
  EXPECT_EQ(ResidualScale(0.0f, 1.0f), 1.0f);
  EXPECT_EQ(ResidualScale(1.0f, 0.0f), 1.0f);
  EXPECT_EQ(ResidualScale(std::nanf(""), 1.0f), 1.0f);
  EXPECT_EQ(ResidualRate(0.5f, 0.0f), 0.5f);
  EXPECT_EQ(ResidualRate(0.5f, 0.25f), 0.25f);
}

TEST(CoreTest, NonfiniteIsRefusedBeforeAnythingIsSent) {
  Cluster cluster({.job = "optimizer { kind: 'sgd' }"});
  cluster.Start(0);
  const auto ids = cluster.Register({{"fc1/w", 500}});
  std::vector<float> g = Values(500, 1), out(500);
  const std::vector<float> good = g;
  g[321] = std::numeric_limits<float>::quiet_NaN();
  const auto refused = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out});
  ASSERT_TRUE(cluster.Wait({refused}));
  EXPECT_EQ(refused->result.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused->result.status.message()), HasSubstr("fc1/w"));
  EXPECT_THAT(std::string(refused->result.status.message()), HasSubstr("element 321"));
  EXPECT_EQ(cluster.servers[0]->pushes_seen, 0u);
  EXPECT_EQ(cluster.core(0).stats().refused_nonfinite, 1u);
  const auto again = cluster.Submit(0, {.tensor = ids[0], .input = good, .output = out});
  ASSERT_TRUE(cluster.Wait({again}));
  EXPECT_TRUE(again->result.status.ok());
  EXPECT_EQ(again->result.round, 0u);  // the refused one used none up
}

// Policy skip: the flag goes out, the step is skipped for both, and the residuals are those of before.
TEST(CoreTest, SkippedStepKeepsTheOldResidual) {
  Cluster cluster(
      {.ranks = 2,
       .job = "optimizer { kind: 'sgd' } codec: 'int8' codec_min_elements: 1 on_nonfinite: NONFINITE_SKIP"});
  cluster.Start(0);
  cluster.Start(1);
  const auto ids = cluster.Register({{"w", 200}});
  std::vector<float> out0(200), out1(200);
  const auto step = [&](std::vector<float> g0, std::vector<float> g1) {
    const auto op0 = cluster.Submit(0, {.tensor = ids[0], .input = g0, .output = out0});
    const auto op1 = cluster.Submit(1, {.tensor = ids[0], .input = g1, .output = out1});
    EXPECT_TRUE(cluster.Wait({op0, op1}));
    return op0->result.skipped && op1->result.skipped;
  };
  EXPECT_FALSE(step(Values(200, 1), Values(200, 2)));
  const std::vector<float> before = Parameters(cluster, ids[0]);
  std::vector<float> bad = Values(200, 4);
  bad[7] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(step(Values(200, 3), bad));
  EXPECT_EQ(Parameters(cluster, ids[0]), before);
  EXPECT_EQ(out0, before);
  // What comes next is what it would have been without the bad step.
  EXPECT_FALSE(step(Values(200, 5), Values(200, 6)));
  const std::vector<float> after = Parameters(cluster, ids[0]);

  Cluster without({.ranks = 2, .job = "optimizer { kind: 'sgd' } codec: 'int8' codec_min_elements: 1"});
  without.Start(0);
  without.Start(1);
  without.Register({{"w", 200}});
  for (const uint64_t seed : {uint64_t{1}, uint64_t{5}}) {
    const std::vector<float> g0 = Values(200, seed), g1 = Values(200, seed + 1);
    const auto op0 = without.Submit(0, {.tensor = ids[0], .input = g0, .output = out0});
    const auto op1 = without.Submit(1, {.tensor = ids[0], .input = g1, .output = out1});
    ASSERT_TRUE(without.Wait({op0, op1}));
  }
  EXPECT_EQ(after, Parameters(without, ids[0]));
}

TEST(CoreTest, RejectedPushGoesBackIntoTheResidual) {
  ClusterOptions options{.job = "optimizer { kind: 'sgd' } codec: 'topk:0.02' codec_min_elements: 1",
                         .partition_elements = 1000};
  Cluster cluster(options);
  struct Observer : WorkerObserver {
    void OnEncoded(uint32_t, uint64_t, uint16_t, std::span<const float>, ConstBytes payload) override {
      last.assign(payload.begin(), payload.end());
    }
    std::vector<std::byte> last;
  } observer;
  cluster.Start(0, &observer);
  const auto ids = cluster.Register({{"w", 100}});
  cluster.servers[0]->reject.insert({0, 0});
  std::vector<float> g(100, 0.0f), out(100);
  g[10] = 4;
  g[20] = 2;
  g[30] = 1;
  const auto first = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out});
  ASSERT_TRUE(cluster.Wait({first}));
  EXPECT_TRUE(first->result.skipped);
  // Nothing was lost: with a gradient of zeros the same two elements go again.
  const std::vector<std::byte> sent = observer.last;
  const std::vector<float> zeros(100, 0.0f);
  const auto second = cluster.Submit(0, {.tensor = ids[0], .input = zeros, .output = out});
  ASSERT_TRUE(cluster.Wait({second}));
  EXPECT_FALSE(second->result.skipped);
  EXPECT_EQ(observer.last, sent);
  EXPECT_EQ(out[10], -2.0f);
}

TEST(CoreTest, DeadlineAndCancelEndTheWaitAndNotThePush) {
  Cluster cluster({.ranks = 2, .job = "optimizer { kind: 'sgd' }"});
  cluster.Start(0);
  cluster.Start(1);
  const auto ids = cluster.Register({{"w", 300}, {"v", 300}});
  const std::vector<float> g = Values(300, 1);
  std::vector<float> out(300), out_v(300), out1(300), out1_v(300);
  const auto late =
      cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out, .deadline = cluster.clock.Now() + kSecond});
  const uint64_t number = cluster.core(0).Submit(
      {.tensor = ids[1], .input = g, .output = out_v},
      [&](const OpResult& result) { EXPECT_EQ(result.status.code(), absl::StatusCode::kCancelled); }, nullptr);
  cluster.RunFor(100 * kMillisecond);
  EXPECT_FALSE(late->done);
  cluster.core(0).Cancel(number);
  EXPECT_FALSE(cluster.core(0).Snapshot().ok());
  cluster.RunFor(2 * kSecond);
  ASSERT_TRUE(late->done);
  EXPECT_FALSE(late->released);
  EXPECT_EQ(late->result.status.code(), absl::StatusCode::kDeadlineExceeded);
  const std::string text(late->result.status.message());
  EXPECT_THAT(text, HasSubstr("tensor w"));
  EXPECT_THAT(text, HasSubstr("waits for other workers"));
  // Rank 1 comes at last: both rounds close, with rank 0's gradients in them.
  const auto a = cluster.Submit(1, {.tensor = ids[0], .input = g, .output = out1});
  const auto b = cluster.Submit(1, {.tensor = ids[1], .input = g, .output = out1_v});
  ASSERT_TRUE(cluster.Wait({a, b}));
  cluster.RunUntil([&] { return late->released; });
  EXPECT_EQ(late->calls, 1);
  EXPECT_EQ(a->result.contributors, 2u);
  EXPECT_EQ(b->result.contributors, 2u);
  EXPECT_EQ(out, out1);
}

TEST(CoreTest, MisuseIsRefused) {
  Cluster cluster({.job = ""});
  cluster.Start(0);
  const auto ids = cluster.Register({{"w", 10}});
  std::vector<float> g(10), small(9), out(19);
  const auto expect = [&](OpRequest request, absl::StatusCode code, const char* text) {
    const auto op = cluster.Submit(0, request);
    ASSERT_TRUE(cluster.Wait({op}));
    EXPECT_EQ(op->result.status.code(), code);
    EXPECT_THAT(std::string(op->result.status.message()), HasSubstr(text));
  };
  expect({.tensor = 17, .input = g, .output = g}, absl::StatusCode::kNotFound, "not registered");
  expect({.tensor = ids[0], .input = small, .output = g}, absl::StatusCode::kInvalidArgument,
         "the input has 9 elements, the tensor 10");
  expect({.tensor = ids[0], .input = g, .output = small}, absl::StatusCode::kInvalidArgument, "the output has 9");
  expect({.tensor = ids[0], .input = std::span(out).first(10), .output = std::span(out).subspan(9, 10)},
         absl::StatusCode::kInvalidArgument, "overlap");
  absl::Status registered;
  proto::TensorSpec spec;
  spec.set_name("w");
  spec.add_shape(11);
  bool answered = false;
  cluster.core(0).RegisterTensors({spec}, [&](auto result) {
    registered = result.status();
    answered = true;
  });
  cluster.RunUntil([&] { return answered; });
  EXPECT_EQ(registered.code(), absl::StatusCode::kInvalidArgument) << registered;
}

TEST(CoreTest, RetriesPassAndTermsAreFollowed) {
  Cluster cluster({.job = "optimizer { kind: 'sgd' }", .data = "resend_ms: 5000 eager_bytes: 64"});
  cluster.Start(0);
  const auto ids = cluster.Register({{"w", 100}});
  const std::vector<float> g(100, 1.0f);
  std::vector<float> out(100);
  cluster.servers[0]->retry_busy = 3;
  const auto busy = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out});
  ASSERT_TRUE(cluster.Wait({busy}));
  EXPECT_TRUE(busy->result.status.ok());
  EXPECT_GE(cluster.core(0).stats().replays, 1u);
  // The server has a newer term; the plan follows later.
  for (auto& [index, part] : cluster.servers[0]->parts) part.term = 2;
  const auto moved = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out});
  cluster.RunFor(kSecond);
  EXPECT_FALSE(moved->done);
  cluster.plan.mutable_shards(0)->set_term(2);
  cluster.BumpPlan();
  ASSERT_TRUE(cluster.Wait({moved}));
  EXPECT_THAT(out, testing::Each(-1.0f));
}

TEST(CoreTest, WhatTheOwnerRefusesForGoodEndsTheWorker) {
  Cluster cluster({.job = "optimizer { kind: 'sgd' }"});
  cluster.Start(0);
  const auto ids = cluster.Register({{"w", 100}, {"v", 10}});
  const std::vector<float> g(100, 1.0f);
  std::vector<float> out(100);
  cluster.servers[0]->refuse = absl::FailedPreconditionError("rank 1 broadcasts it");
  const auto first = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out});
  const auto queued = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out});
  ASSERT_TRUE(cluster.Wait({first, queued}));
  EXPECT_EQ(first->result.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(first->result.status.message()), HasSubstr("tensor w, partition 0, round 0"));
  EXPECT_THAT(std::string(first->result.status.message()), HasSubstr("rank 1 broadcasts it"));
  EXPECT_EQ(queued->result.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(first->calls + queued->calls, 2);
  const auto later =
      cluster.Submit(0, {.tensor = ids[1], .input = std::span(g).first(10), .output = std::span(out).first(10)});
  ASSERT_TRUE(cluster.Wait({later}));
  EXPECT_EQ(later->result.status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CoreTest, TakenOverRankEnds) {
  Cluster cluster({.job = "optimizer { kind: 'sgd' }"});
  cluster.Start(0);
  const auto ids = cluster.Register({{"w", 100}});
  cluster.servers[0]->silent = true;
  const std::vector<float> g(100, 1.0f);
  std::vector<float> out(100);
  const auto op = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out});
  cluster.RunFor(kSecond);
  cluster.plan.mutable_workers(0)->set_incarnation(77);
  cluster.BumpPlan();
  ASSERT_TRUE(cluster.Wait({op}));
  EXPECT_EQ(op->result.status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(op->result.status.message()), HasSubstr("taken over"));
}

TEST(CoreTest, UrgentOperationsGoFirst) {
  Cluster cluster({.job = "optimizer { kind: 'sgd' }"});
  struct Observer : WorkerObserver {
    void OnEncoded(uint32_t partition, uint64_t, uint16_t, std::span<const float>, ConstBytes) override {
      order.push_back(partition);
    }
    std::vector<uint32_t> order;
  } observer;
  cluster.Start(0, &observer);
  const auto ids = cluster.Register({{"first", 64}, {"second", 64}, {"third", 64}});
  const std::vector<float> g(64, 1.0f);
  std::vector<float> a(64), b(64), c(64);
  // As a backward pass gives them: the last layer's gradient comes first.
  const auto op2 = cluster.Submit(0, {.tensor = ids[2], .input = g, .output = c});
  const auto op1 = cluster.Submit(0, {.tensor = ids[1], .input = g, .output = b, .priority = 9});
  const auto op0 = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = a});
  ASSERT_TRUE(cluster.Wait({op0, op1, op2}));
  EXPECT_THAT(observer.order, ElementsAre(0, 2, 1));
}

TEST(CoreTest, AnObserverSeesEveryStageOfEveryPush) {
  // Eager and fused, and announced and granted; with a codec.
  for (const char* data : {"resend_ms: 1000 eager_bytes: 65536", "resend_ms: 1000 eager_bytes: 64"}) {
    Cluster cluster({.job = "optimizer { kind: 'sgd' } codec: 'int8' codec_min_elements: 1", .data = data});
    using Stage = WorkerObserver::Stage;
    struct Observer : WorkerObserver {
      void OnStage(Stage stage, uint32_t tensor, uint32_t partition, uint64_t round, TimeNs begin,
                   TimeNs end) override {
        EXPECT_EQ(tensor, 0u);
        EXPECT_LE(begin, end);
        const bool fresh = stages[{partition, round}].emplace(stage, std::pair(begin, end)).second;
        EXPECT_TRUE(fresh) << "stage " << static_cast<int>(stage) << " twice";
      }
      std::map<std::pair<uint32_t, uint64_t>, std::map<Stage, std::pair<TimeNs, TimeNs>>> stages;
    } observer;
    cluster.Start(0, &observer);
    const auto ids = cluster.Register({{"w", 3000}});
    const std::vector<float> g = Values(3000, 1);
    std::vector<float> out(3000);
    for (int step = 0; step < 2; ++step) {
      const auto op = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out});
      ASSERT_TRUE(cluster.Wait({op}));
    }
    cluster.RunFor(kSecond);
    const size_t partitions = cluster.plan.tensors(0).partition_elements_size();
    EXPECT_GT(partitions, 1u);
    EXPECT_EQ(observer.stages.size(), partitions * 2);
    for (auto& [push, stages] : observer.stages) {
      for (const Stage stage : {Stage::kQueue, Stage::kEncode, Stage::kSend, Stage::kWait, Stage::kDecode}) {
        EXPECT_TRUE(stages.contains(stage)) << data << ": partition " << push.first << " round " << push.second
                                            << " stage " << static_cast<int>(stage);
      }
      EXPECT_LE(stages[Stage::kEncode].second, stages[Stage::kSend].first);
      EXPECT_LE(stages[Stage::kWait].first, stages[Stage::kSend].first);
    }
  }
}

TEST(CoreTest, WaitsSayForWhom) {
  Cluster cluster(
      {.ranks = 2, .job = "optimizer { kind: 'sgd' }", .data = "resend_ms: 50 eager_bytes: 64 stall_report_ms: 3000"});
  auto& worker = cluster.Start(0);
  cluster.Start(1);
  const auto ids = cluster.Register({{"fc1/w", 100}});
  EXPECT_EQ(cluster.core(0).Waiting(), "");
  cluster.plan.mutable_workers(1)->set_alive(false);
  cluster.plan.mutable_workers(1)->set_address("gpu7:4711");
  cluster.Kill(1);
  cluster.BumpPlan();
  const std::vector<float> g(100, 1.0f);
  std::vector<float> out(100);
  const auto op = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out});
  cluster.RunFor(2 * kSecond);
  const std::string waiting = cluster.core(0).Waiting();
  EXPECT_THAT(waiting, HasSubstr("round 0 of tensor fc1/w"));
  EXPECT_THAT(waiting, HasSubstr("server s0 lane 0"));
  EXPECT_THAT(waiting, HasSubstr("waits for other workers"));
  EXPECT_THAT(waiting, HasSubstr("rank 1 (gpu7:4711)"));
  EXPECT_TRUE(worker.reports.empty());
  cluster.RunFor(2 * kSecond);
  ASSERT_EQ(worker.reports.size(), 1u);
  EXPECT_THAT(worker.reports[0], HasSubstr("fc1/w"));
  cluster.network.Cut(cluster.workers[0]->endpoint->name(), "s0", 60 * kSecond);
  cluster.RunFor(3 * kSecond);
  EXPECT_THAT(cluster.core(0).Waiting(), HasSubstr("is sluice-server s0 running"));
}

TEST(CoreTest, NotReadyInTimeSaysWhatIsMissing) {
  Cluster cluster({.ranks = 2, .job = ""});
  cluster.plan.set_state(proto::JOB_FORMING);
  cluster.plan.set_why("1 of 2 workers registered: rank 1 is missing");
  cluster.plan.mutable_workers(1)->set_alive(false);
  cluster.Start(0, nullptr, /*wait=*/false);
  cluster.RunFor(10 * kSecond);
  EXPECT_THAT(cluster.core(0).Waiting(), HasSubstr("not seen yet: rank 1; start it"));
  EXPECT_THAT(cluster.core(0).Waiting(), testing::Not(HasSubstr("lost")));
  EXPECT_THAT(cluster.core(0).Waiting(), HasSubstr("rank 1 is missing"));
  bool failed = false;
  cluster.RunUntil([&] {
    for (const std::string& report : cluster.workers[0]->reports) failed |= report.find("gave up") != std::string::npos;
    return failed;
  });
  EXPECT_LE(cluster.clock.Now(), 62 * kSecond);
}

TEST(CoreTest, BarriersAreCounted) {
  Cluster cluster({.job = ""});
  cluster.Start(0);
  cluster.Register({{"w", 4}});
  for (int i = 0; i < 3; ++i) {
    bool passed = false;
    cluster.core(0).Barrier("epoch", [&](absl::Status status) { passed = status.ok(); });
    cluster.RunUntil([&] { return passed; });
  }
  EXPECT_THAT(cluster.barriers["epoch"], ElementsAre(0, 1, 2));
  // The next life goes on counting.
  const auto snapshot = cluster.core(0).Snapshot();
  ASSERT_TRUE(snapshot.ok());
  cluster.Start(0);
  cluster.Register({{"w", 4}});
  ASSERT_TRUE(cluster.core(0).Restore(*snapshot).ok());
  bool passed = false;
  cluster.core(0).Barrier("epoch", [&](absl::Status status) { passed = status.ok(); });
  cluster.RunUntil([&] { return passed; });
  EXPECT_EQ(cluster.barriers["epoch"].back(), 3u);
}

}  // namespace
}  // namespace sluice::worker
