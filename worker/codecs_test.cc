// Codecs over the rounds of a worker's life: choices by plan, warm-up, momentum correction, clipping, statistics, snapshots.
#include <cmath>
#include <map>

#include "base/philox.h"
#include "compression/momentum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/codec_stats.h"
#include "worker/testing/cluster.h"

namespace sluice::worker {
namespace {

constexpr size_t kElements = 200;

std::vector<float> Values(size_t n, uint64_t seed) {
  PhiloxRandom random(seed, 7);
  std::vector<float> values(n);
  for (float& v : values) v = random.Uniform() - 0.5f;
  return values;
}

struct Observer : WorkerObserver {
  void OnEncoded(uint32_t, uint64_t round, uint16_t codec, std::span<const float>, ConstBytes payload) override {
    codecs[round] = static_cast<compression::CodecId>(codec);
    payloads[round].assign(payload.begin(), payload.end());
  }
  std::map<uint64_t, compression::CodecId> codecs;
  std::map<uint64_t, std::vector<std::byte>> payloads;
};

void Choose(Cluster& cluster, uint64_t from_round, const std::string& codec) {
  proto::CodecChoice* choice = cluster.plan.add_codec_choices();
  choice->set_from_round(from_round);
  choice->set_codec(codec);
  cluster.BumpPlan();
  cluster.RunFor(kSecond / 10);
}

std::vector<float> Step(Cluster& cluster, uint32_t tensor, const std::vector<float>& gradient) {
  std::vector<float> out(gradient.size());
  const auto op = cluster.Submit(0, {.tensor = tensor, .input = gradient, .output = out});
  EXPECT_TRUE(cluster.Wait({op}));
  EXPECT_TRUE(op->result.status.ok()) << op->result.status;
  return out;
}

ClusterOptions Job(const std::string& job) {
  return {.job = "optimizer { kind: 'sgd' } codec_min_elements: 1 " + job, .partition_elements = 1000};
}

TEST(CodecsTest, ThePlansChoicesTakeOverAtTheirRoundAndNothingIsLost) {
  Cluster cluster(Job("codec: 'auto'"));
  Observer observer;
  cluster.Start(0, &observer);
  const auto ids = cluster.Register({{"w", kElements}});
  std::vector<double> applied(kElements, 0.0);
  std::vector<float> out;
  for (uint64_t round = 0; round < 12; ++round) {
    if (round == 1) Choose(cluster, 3, "topk:0.05");
    if (round == 5) Choose(cluster, 6, "int4");
    if (round == 9) Choose(cluster, 10, "none");
    const std::vector<float> g = Values(kElements, round);
    for (size_t i = 0; i < kElements; ++i) applied[i] -= 0.5 * g[i];
    out = Step(cluster, ids[0], g);
    if (round == 8) {   // something is owed
      double owed = 0;
      for (size_t i = 0; i < kElements; ++i) owed += std::abs(applied[i] - out[i]);
      EXPECT_GT(owed, 0.1);
    }
  }
  using compression::CodecId;
  for (uint64_t round = 0; round < 12; ++round)
    EXPECT_EQ(observer.codecs[round], round < 3   ? CodecId::kNone
                                      : round < 6 ? CodecId::kTopK
                                      : round < 10 ? CodecId::kInt4
                                                   : CodecId::kNone) << round;
  // "none" has paid all that the residual held.
  for (size_t i = 0; i < kElements; ++i) EXPECT_NEAR(out[i], applied[i], 1e-5);
}

TEST(CodecsTest, AWorkerThatComesBackFollowsTheChoicesFromItsSnapshotOn) {
  const auto run = [](uint64_t killed_before) {
    Cluster cluster(Job("codec: 'auto'"));
    auto observer = std::make_unique<Observer>();
    cluster.Start(0, observer.get());
    auto ids = cluster.Register({{"w", kElements}});
    std::vector<float> out;
    for (uint64_t round = 0; round < 10; ++round) {
      if (round == 1) Choose(cluster, 2, "threshold:auto:0.1");
      if (round == 4) Choose(cluster, 6, "topk:0.05+int8");
      if (round == killed_before) {
        const auto snapshot = cluster.core(0).Snapshot();
        EXPECT_TRUE(snapshot.ok()) << snapshot.status();
        cluster.Start(0, observer.get());
        ids = cluster.RegisterOn(0, {{"w", kElements}});
        EXPECT_TRUE(cluster.core(0).Restore(*snapshot).ok());
      }
      out = Step(cluster, ids[0], Values(kElements, round));
    }
    return std::make_pair(out, observer->payloads);
  };
  const auto straight = run(UINT64_MAX);
  for (const uint64_t round : {1u, 3u, 5u, 6u, 8u}) EXPECT_EQ(run(round), straight) << round;
}

TEST(CodecsTest, AnUnknownChoiceIsReportedAndTheCodecStays) {
  Cluster cluster(Job("codec: 'auto'"));
  Observer observer;
  cluster.Start(0, &observer);
  const auto ids = cluster.Register({{"w", kElements}});
  Choose(cluster, 1, "gzip:9");
  Step(cluster, ids[0], Values(kElements, 0));
  Step(cluster, ids[0], Values(kElements, 1));
  EXPECT_EQ(observer.codecs[1], compression::CodecId::kNone);
  EXPECT_THAT(cluster.workers[0]->reports, testing::Contains(testing::HasSubstr("tensor w keeps its codec")));
}

TEST(CodecsTest, WarmUpSendsMoreAtFirst) {
  Cluster cluster(Job("codec: 'topk:0.01' codec_warmup_rounds: 5"));
  Observer observer;
  cluster.Start(0, &observer);
  const auto ids = cluster.Register({{"w", 1000}});
  for (uint64_t round = 0; round < 8; ++round) Step(cluster, ids[0], Values(1000, round));
  for (uint64_t round = 1; round < 6; ++round)
    EXPECT_LT(observer.payloads[round].size(), observer.payloads[round - 1].size()) << round;
  EXPECT_EQ(observer.payloads[5].size() / 4, observer.payloads[7].size() / 4);
}

TEST(CodecsTest, MomentumCorrectionReachesTensorsThatAreExempt) {
  Cluster cluster(Job("codec: 'topk:0.01' momentum_correction: 0.9 codec_rules: 'b=none'"));
  cluster.Start(0);
  const auto ids = cluster.Register({{"b", 10}});
  std::vector<float> x(10, 0.0f), velocity(10, 0.0f), out;
  for (uint64_t round = 0; round < 5; ++round) {
    const std::vector<float> g = Values(10, round);
    out = Step(cluster, ids[0], g);
    for (size_t i = 0; i < 10; ++i) {
      velocity[i] = 0.9f * velocity[i] + g[i];
      x[i] -= 0.5f * velocity[i];
    }
  }
  EXPECT_EQ(out, x);
}

TEST(CodecsTest, EachTensorsGradientIsClippedByItselfBeforeTheResidual) {
  for (const char* codec : {"none", "topk:0.5"}) {
    Cluster cluster({.job = "optimizer { kind: 'sgd' } codec_min_elements: 1 local_clip_norm: 2 codec: '" +
                            std::string(codec) + "'",
                     .partition_elements = 64});   // several partitions: the norm is the tensor's
    cluster.Start(0);
    const auto ids = cluster.Register({{"w", kElements}});
    const std::vector<float> large = Values(kElements, 1), small(kElements, 1e-3f);
    double norm = 0;
    for (const float g : large) norm += double{g} * g;
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 2);
    Step(cluster, ids[0], large);
    Step(cluster, ids[0], small);
    std::vector<float> out;
    for (int flush = 0; flush < 30; ++flush) out = Step(cluster, ids[0], std::vector<float>(kElements, 0.0f));
    for (size_t i = 0; i < kElements; ++i)
      EXPECT_NEAR(out[i], -0.5 * (large[i] * 2 / norm + 1e-3), 2e-3 * std::abs(out[i]) + 1e-6) << codec;
  }
}

TEST(CodecsTest, EveryFewRoundsATensorIsMeasuredWhole) {
  Cluster cluster({.job = "optimizer { kind: 'sgd' } codec_min_elements: 1 codec_stats_rounds: 3 codec: 'topk:0.1'",
                   .partition_elements = 64});
  cluster.Start(0);
  const auto ids = cluster.Register({{"w", kElements}});
  const CodecStats& stats = cluster.core(0).codec_stats();
  Step(cluster, ids[0], Values(kElements, 0));
  EXPECT_TRUE(stats.latest().empty());
  double residual = 0, gradient = 0;
  std::vector<float> out = Step(cluster, ids[0], Values(kElements, 1));
  ASSERT_TRUE(stats.latest().contains(ids[0]));
  const proto::TensorCodecState& state = stats.latest().at(ids[0]);
  EXPECT_EQ(state.round(), 1u);
  EXPECT_EQ(state.codec(), "topk:0.1");
  EXPECT_EQ(state.raw_bytes(), kElements * sizeof(float));
  EXPECT_LT(state.wire_bytes(), state.raw_bytes() / 4);
  for (size_t i = 0; i < kElements; ++i) {
    const double g0 = Values(kElements, 0)[i], g1 = Values(kElements, 1)[i];
    const double owed = g0 + g1 + 2 * double{out[i]};   // rate 0.5
    residual += owed * owed;
    gradient += g1 * g1;
  }
  EXPECT_NEAR(state.residual_ratio(), std::sqrt(residual / gradient), 1e-3);
  EXPECT_GT(state.relative_error(), 0.5);
  EXPECT_LT(state.relative_error(), 1);
  for (uint64_t round = 2; round < 5; ++round) Step(cluster, ids[0], Values(kElements, round));
  EXPECT_EQ(stats.latest().at(ids[0]).round(), 4u);
}

TEST(CodecStats, FreshOnesAreTakenInTurn) {
  CodecStats stats;
  for (uint32_t tensor = 0; tensor < 3; ++tensor) stats.Add(tensor, 1, 1, "int8", 4, 1, {});
  const auto next = [&] {
    const auto taken = stats.TakeFresh(1);
    return taken.empty() ? -1 : static_cast<int>(taken[0].tensor());
  };
  EXPECT_EQ(next(), 0);
  stats.Add(0, 1, 2, "int8", 4, 1, {});   // measured again: behind those that wait
  EXPECT_EQ(next(), 1);
  EXPECT_EQ(next(), 2);
  EXPECT_EQ(next(), 0);
  EXPECT_EQ(next(), -1);
}

}  // namespace
}  // namespace sluice::worker
