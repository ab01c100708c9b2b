// Training over a network that loses, repeats, reorders and cuts, with workers killed at any moment: the parameters are
// those of the fault-free run, bit for bit.
#include <string>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "worker/core.h"
#include "worker/testing/cluster.h"

namespace sluice::worker {
namespace {

struct Job {
  std::string name, config, change_codec;
};
const Job kJobs[] = {
    {"plain", "optimizer { kind: 'sgd' }", ""},
    {"int8", "optimizer { kind: 'sgd' } codec: 'int8' codec_min_elements: 1", ""},
    {"topk", "optimizer { kind: 'sgd' } codec: 'topk:0.1' codec_min_elements: 1", ""},
    {"change", "optimizer { kind: 'sgd' } codec: 'int8' reply: REPLY_CHANGE reply_codec: 'int8' codec_min_elements: 1",
     "int8"},
};

// A trainer of two tensors: its gradient depends on its parameters, so an error in any step shows at the end.
struct Trainer {
  std::vector<float> w, v;
  uint64_t step = 0;
  std::vector<std::byte> snapshot;  // of the core, at the beginning of `step`
};

constexpr size_t kW = 150, kV = 20;
constexpr uint64_t kSteps = 6;

std::vector<float> Gradient(const std::vector<float>& x, uint32_t rank, uint64_t step) {
  PhiloxRandom random(rank * 1000 + step);
  std::vector<float> g(x.size());
  for (size_t i = 0; i < x.size(); ++i) g[i] = x[i] * 0.3f + random.Uniform() - 0.5f;
  return g;
}

class Training {
 public:
  Training(const Job& job, uint64_t seed, transport::SimFaults faults)
      : cluster_({.ranks = 2,
                  .servers = 2,
                  .job = job.config,
                  .seed = seed,
                  .faults = faults,
                  .server = {.change_codec = job.change_codec}}) {
    for (uint32_t rank : {0u, 1u}) {
      trainers_[rank].w.assign(kW, 0.1f);
      trainers_[rank].v.assign(kV, 0.2f);
      cluster_.Start(rank);
    }
    ids_ = cluster_.Register({{"w", kW}, {"v", kV}});
  }

  // One life of a rank's step; false if it was killed. Gradients and outputs live on the heap: a killed worker's are
  // gone.
  struct Step {
    std::vector<float> gw, gv;
    std::shared_ptr<Cluster::Pending> w, v;
  };

  void Begin(uint32_t rank) {
    Trainer& trainer = trainers_[rank];
    auto snapshot = cluster_.core(rank).Snapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    trainer.snapshot = *snapshot;
    saved_[rank] = trainer;
    steps_[rank] = std::make_unique<Step>();
    Step& step = *steps_[rank];
    step.gw = Gradient(trainer.w, rank, trainer.step);
    step.gv = Gradient(trainer.v, rank, trainer.step);
    step.v = cluster_.Submit(rank, {.tensor = ids_[1], .input = step.gv, .output = trainer.v});
    step.w = cluster_.Submit(rank, {.tensor = ids_[0], .input = step.gw, .output = trainer.w});
  }
  bool Ended(uint32_t rank) {
    const Step& step = *steps_[rank];
    return step.w->done && step.v->done && step.w->released && step.v->released;
  }
  void KillAndRestore(uint32_t rank) {
    cluster_.Kill(rank);
    trainers_[rank] = saved_[rank];
    cluster_.Start(rank);
    ASSERT_EQ(cluster_.RegisterOn(rank, {{"w", kW}, {"v", kV}}).size(), 2u);
    const absl::Status restored = cluster_.core(rank).Restore(trainers_[rank].snapshot);
    ASSERT_TRUE(restored.ok()) << restored;
    Begin(rank);
  }

  // kill_at: the number of the event, counted from the first step, after which `victim` is killed; 0 = never.
  void Train(uint64_t kill_at, uint32_t victim) {
    uint64_t events = 0;
    for (uint64_t step = 0; step < kSteps; ++step) {
      Begin(0);
      Begin(1);
      if (testing::Test::HasFatalFailure()) return;
      cluster_.RunUntil([&] {
        if (++events == kill_at) kill_now_ = true;
        return (Ended(0) && Ended(1)) || kill_now_;
      });
      if (std::exchange(kill_now_, false)) {
        KillAndRestore(victim);
        if (testing::Test::HasFatalFailure()) return;
        cluster_.RunUntil([&] { return Ended(0) && Ended(1); });
      }
      for (uint32_t rank : {0u, 1u}) {
        ASSERT_TRUE(steps_[rank]->w->result.status.ok()) << steps_[rank]->w->result.status;
        ASSERT_TRUE(steps_[rank]->v->result.status.ok()) << steps_[rank]->v->result.status;
        ASSERT_EQ(steps_[rank]->w->result.round, step);
        ++trainers_[rank].step;
      }
    }
    events_ = events;
  }

  std::vector<float> Result(uint32_t rank) const {
    std::vector<float> all = trainers_[rank].w;
    all.insert(all.end(), trainers_[rank].v.begin(), trainers_[rank].v.end());
    return all;
  }
  uint64_t events() const { return events_; }
  Cluster& cluster() { return cluster_; }

 private:
  Cluster cluster_;
  std::vector<uint32_t> ids_;
  Trainer trainers_[2], saved_[2];
  std::unique_ptr<Step> steps_[2];
  bool kill_now_ = false;
  uint64_t events_ = 0;
};

std::vector<float> Reference(const Job& job) {
  Training run(job, 1, {});
  run.Train(0, 0);
  EXPECT_EQ(run.Result(0), run.Result(1));
  return run.Result(0);
}

class FaultsTest : public testing::TestWithParam<Job> {};

TEST_P(FaultsTest, BadNetworkChangesNoBit) {
  const std::vector<float> expected = Reference(GetParam());
  uint64_t replays = 0, reconnects = 0;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Training run(GetParam(), seed,
                 {.drop = 0.05,
                  .duplicate = 0.05,
                  .reorder = 0.1,
                  .reset = 0.01,
                  .connect_failure = 0.1,
                  .slow_write = 0.2,
                  .by_reference = seed % 3 == 0});
    run.Train(0, 0);
    if (HasFatalFailure()) return;
    EXPECT_EQ(run.Result(0), expected);
    EXPECT_EQ(run.Result(1), expected);
    replays += run.cluster().core(0).stats().replays;
    reconnects += run.cluster().core(0).stats().reconnects;
  }
  EXPECT_GT(replays, 0u);  // the network was bad indeed
  EXPECT_GT(reconnects, 0u);
}

TEST_P(FaultsTest, KilledWorkerContinuesToTheSameBits) {
  const std::vector<float> expected = Reference(GetParam());
  Training plain(GetParam(), 1, {});
  plain.Train(0, 0);
  ASSERT_GT(plain.events(), 100u);
  for (uint64_t kill_at = 1; kill_at < plain.events(); kill_at += 1 + plain.events() / 60) {
    SCOPED_TRACE(testing::Message() << "killed at event " << kill_at);
    Training run(GetParam(), 1, {});
    run.Train(kill_at, kill_at % 2);
    if (HasFatalFailure()) return;
    EXPECT_EQ(run.Result(0), expected);
    EXPECT_EQ(run.Result(1), expected);
  }
}

TEST_P(FaultsTest, KilledOverABadNetwork) {
  const std::vector<float> expected = Reference(GetParam());
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Training run(GetParam(), seed, {.drop = 0.05, .duplicate = 0.05, .reorder = 0.1, .reset = 0.01, .slow_write = 0.2});
    run.Train(seed * 23, seed % 2);
    if (HasFatalFailure()) return;
    EXPECT_EQ(run.Result(0), expected);
    EXPECT_EQ(run.Result(1), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, FaultsTest, testing::ValuesIn(kJobs), [](const auto& info) { return info.param.name; });

TEST(RejoinTest, WithoutSnapshotAWorkerJoinsAtTheOpenRound) {
  Cluster cluster({.ranks = 2, .servers = 2, .job = "optimizer { kind: 'sgd' }"});
  cluster.Start(0);
  cluster.Start(1);
  const auto ids = cluster.Register({{"w", kW}});
  const std::vector<float> g(kW, 1.0f);
  std::vector<float> out0(kW), out1(kW);
  for (int step = 0; step < 2; ++step) {
    const auto a = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out0});
    const auto b = cluster.Submit(1, {.tensor = ids[0], .input = g, .output = out1});
    ASSERT_TRUE(cluster.Wait({a, b}));
  }
  const auto stale = cluster.core(1).Snapshot();
  const auto waits = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out0});
  cluster.Kill(1);
  cluster.RunFor(kSecond);
  cluster.Start(1);
  cluster.RegisterOn(1, {{"w", kW}});
  EXPECT_EQ(cluster.core(1).NextRound(ids[0]), 2u);
  const auto joins = cluster.Submit(1, {.tensor = ids[0], .input = g, .output = out1});
  ASSERT_TRUE(cluster.Wait({waits, joins}));
  EXPECT_EQ(joins->result.round, 2u);
  EXPECT_EQ(out0, out1);

  // A snapshot that the job has left behind by more than the open round is refused.
  for (int step = 0; step < 2; ++step) {
    const auto a = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out0});
    const auto b = cluster.Submit(1, {.tensor = ids[0], .input = g, .output = out1});
    ASSERT_TRUE(cluster.Wait({a, b}));
  }
  cluster.Start(1);
  cluster.RegisterOn(1, {{"w", kW}});
  const absl::Status old = cluster.core(1).Restore(*stale);
  EXPECT_EQ(old.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(old.message()).find("for too long"), std::string::npos) << old;
}

TEST(SnapshotTest, DamageIsFoundWhereverItIs) {
  Cluster cluster({.job = kJobs[3].config, .server = {.change_codec = "int8"}});
  cluster.Start(0);
  const auto ids = cluster.Register({{"w", 70}});
  const std::vector<float> g(70, 1.0f);
  std::vector<float> out(70);
  ASSERT_TRUE(cluster.Wait({cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out})}));
  const auto snapshot = cluster.core(0).Snapshot();
  ASSERT_TRUE(snapshot.ok());
  cluster.Start(0);
  cluster.Register({{"w", 70}});
  for (size_t i = 0; i < snapshot->size(); i += 7) {
    std::vector<std::byte> bad = *snapshot;
    bad[i] ^= std::byte{0x10};
    EXPECT_EQ(cluster.core(0).Restore(bad).code(), absl::StatusCode::kInvalidArgument) << i;
    bad = *snapshot;
    bad.resize(i);
    EXPECT_EQ(cluster.core(0).Restore(bad).code(), absl::StatusCode::kInvalidArgument) << i;
  }
  EXPECT_TRUE(cluster.core(0).Restore(*snapshot).ok());
  EXPECT_EQ(cluster.core(0).NextRound(ids[0]), 1u);
}

}  // namespace
}  // namespace sluice::worker
