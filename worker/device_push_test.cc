// Pushes from GPU memory, on the emulator: the same bytes as from host memory, whatever happens to the rounds.
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/testing/cluster.h"
#include "worker/testing/emulated_device.h"

namespace sluice::worker {
namespace {

using testing::HasSubstr;

constexpr size_t kElements = 300;  // partitions of 130, 130 and 40
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Values(uint64_t seed) {
  PhiloxRandom random(seed, 7);
  std::vector<float> values(kElements);
  for (float& v : values) v = (random.Uniform() - 0.5f) * (random.Below(8) == 0 ? 8.0f : 1.0f);
  values[3] = -0.0f;
  return values;
}

struct Observer : WorkerObserver {
  void OnEncoded(uint32_t partition, uint64_t round, uint16_t codec, std::span<const float>,
                 ConstBytes payload) override {
    sent[{round, partition}] = {codec, {payload.begin(), payload.end()}};
  }
  std::map<std::pair<uint64_t, uint32_t>, std::pair<uint16_t, std::vector<std::byte>>> sent;
};

ClusterOptions Job(const std::string& job) {
  ClusterOptions options;
  options.job = "optimizer { kind: 'sgd' } codec_min_elements: 1 " + job;
  options.partition_elements = 130;
  options.server.rate = [](uint64_t round) { return round % 4 == 2 ? 0.0f : 0.5f / static_cast<float>(1 + round); };
  return options;
}

// One worker with one tensor, pushed from either memory.
struct Trainer {
  explicit Trainer(ClusterOptions options, bool on_device = true) : cluster(std::move(options)) {
    cluster.Start(0, &observer);
    tensor = cluster.Register({{"w", kElements}})[0];
    if (on_device) device = NewDevice();
  }
  std::shared_ptr<EmulatedDevice> NewDevice() {
    return std::make_shared<EmulatedDevice>(
        [this](std::function<void()> fn) { cluster.network.Schedule(kMillisecond, std::move(fn)); });
  }

  // The gradient is there only when the caller's stream comes to it.
  struct Op {
    std::vector<float> gradient, out;
    std::shared_ptr<Cluster::Pending> pending;
  };
  std::unique_ptr<Op> Submit(const std::vector<float>& gradient, bool wants_out = true, TimeNs deadline = 0) {
    auto op = std::make_unique<Op>();
    op->out.assign(wants_out ? kElements : 0, 77.0f);
    OpRequest request{.kind = wants_out ? OpKind::kPushPull : OpKind::kPush, .tensor = tensor};
    request.deadline = deadline;
    if (device == nullptr) {
      op->gradient = gradient;
      request.input = op->gradient;
      request.output = op->out;
    } else {
      op->gradient.assign(gradient.size(), -1e9f);
      CallersStream stream;
      stream.work.push_back([op = op.get(), gradient] { op->gradient = gradient; });
      request.device =
          std::make_shared<DeviceBuffers>(DeviceBuffers{device, *device->Record(&stream), op->gradient, op->out});
    }
    op->pending = cluster.Submit(0, request);
    return op;
  }
  OpResult Step(const std::vector<float>& gradient, bool wants_out = true) {
    const auto op = Submit(gradient, wants_out);
    EXPECT_TRUE(cluster.Wait({op->pending}));
    outs.push_back(op->out);
    return op->pending->result;
  }
  std::vector<std::byte> Snapshot() {
    const auto snapshot = cluster.core(0).Snapshot();
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return snapshot.ok() ? *snapshot : std::vector<std::byte>();
  }

  Observer observer;
  Cluster cluster;
  uint32_t tensor = 0;
  std::shared_ptr<EmulatedDevice> device;
  std::vector<std::vector<float>> outs;
};

void ExpectSame(Trainer& a, Trainer& b, const std::string& what) {
  EXPECT_EQ(a.observer.sent, b.observer.sent) << what;
  ASSERT_EQ(a.outs.size(), b.outs.size());
  for (size_t i = 0; i < a.outs.size(); ++i) EXPECT_EQ(a.outs[i], b.outs[i]) << what << ", operation " << i;
  // The CPU's topk keeps a threshold to begin from, which changes no bytes.
  if (what.find("topk") == std::string::npos) {
    EXPECT_EQ(a.Snapshot(), b.Snapshot()) << what;
  }
}

class EveryCodec : public testing::TestWithParam<const char*> {};

TEST_P(EveryCodec, SendsTheSameBytesAsFromHostMemory) {
  const auto run = [](bool on_device) {
    auto run = std::make_unique<Trainer>(
        Job("on_nonfinite: NONFINITE_SKIP allow_biased: true codec: '" + std::string(GetParam()) + "'"), on_device);
    for (uint64_t round = 0; round < 9; ++round) {
      std::vector<float> gradient = Values(round);
      if (round == 3) gradient[200] = kNan;  // skipped
      if (round == 5) run->cluster.servers[0]->reject.insert({0, round});
      const OpResult result = run->Step(gradient, round != 6);
      EXPECT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.skipped, round == 3 || round == 5) << round;
    }
    return run;
  };
  const auto host = run(false), device = run(true);
  EXPECT_EQ(host->observer.sent.size(), 9u * 3);
  ExpectSame(*device, *host, GetParam());
}

INSTANTIATE_TEST_SUITE_P(DevicePush, EveryCodec,
                         testing::Values("none", "fp16", "bf16", "mxfp8", "int8", "int4", "int8:stochastic",
                                         "int4:stochastic", "onebit", "terngrad", "qsgd:7", "topk:0.05",
                                         "topk:0.1+int8", "randk:0.1", "threshold:0.4", "threshold:auto:0.1"));

TEST(DevicePush, WithoutErrorFeedbackToo) {
  for (const char* codec : {"int8", "topk:0.05"}) {
    const auto run = [&](bool on_device) {
      auto run = std::make_unique<Trainer>(
          Job("no_error_feedback: true allow_biased: true codec: '" + std::string(codec) + "'"), on_device);
      for (uint64_t round = 0; round < 3; ++round) EXPECT_TRUE(run->Step(Values(round)).status.ok());
      return run;
    };
    ExpectSame(*run(true), *run(false), codec);
  }
}

TEST(DevicePush, CodecsThatChangeByRoundTakeTheResidualOver) {
  const auto run = [](bool on_device) {
    auto run = std::make_unique<Trainer>(Job("codec: 'auto'"), on_device);
    const struct {
      uint64_t from;
      const char* codec;
    } choices[] = {{2, "threshold:auto:0.1"}, {4, "int4"}, {5, "topk:0.05+fp16"}, {7, "none"}};
    for (const auto& choice : choices) {
      proto::CodecChoice* chosen = run->cluster.plan.add_codec_choices();
      chosen->set_tensor(run->tensor);
      chosen->set_from_round(choice.from);
      chosen->set_codec(choice.codec);
    }
    run->cluster.BumpPlan();
    run->cluster.servers[0]->reject.insert({0, 7});  // "none" that paid a residual
    for (uint64_t round = 0; round < 10; ++round) EXPECT_TRUE(run->Step(Values(round)).status.ok());
    return run;
  };
  ExpectSame(*run(true), *run(false), "auto");
}

TEST(DevicePush, RepliesThatAreChangesPassThroughTheReplica) {
  const auto run = [](bool on_device) {
    ClusterOptions options = Job("codec: 'int8' reply: REPLY_CHANGE reply_codec: 'fp16'");
    options.server.change_codec = "fp16";
    auto run = std::make_unique<Trainer>(std::move(options), on_device);
    for (uint64_t round = 0; round < 4; ++round) EXPECT_TRUE(run->Step(Values(round)).status.ok());
    return run;
  };
  ExpectSame(*run(true), *run(false), "change");
}

TEST(DevicePush, ANanIsRefusedAndHasChangedNothing) {
  Trainer device(Job("codec: 'threshold:auto:0.1'")), host(Job("codec: 'threshold:auto:0.1'"), false);
  for (Trainer* run : {&device, &host}) {
    EXPECT_TRUE(run->Step(Values(0)).status.ok());
    std::vector<float> bad = Values(1);
    bad[131] = kNan;
    const OpResult refused = run->Step(bad);
    EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status.message()), HasSubstr("push_pull of tensor w: element 131 is n"));
    EXPECT_EQ(run->cluster.core(0).NextRound(run->tensor), 1u);
    EXPECT_EQ(run->cluster.core(0).stats().refused_nonfinite, 1u);
    EXPECT_TRUE(run->Step(Values(2)).status.ok());
  }
  ExpectSame(device, host, "after a refusal");
}

TEST(DevicePush, OperationsInTheQueueTakeTheirTurns) {
  Trainer device(Job("codec: 'int4'")), host(Job("codec: 'int4'"), false);
  for (Trainer* run : {&device, &host}) {
    std::vector<std::unique_ptr<Trainer::Op>> ops;
    for (uint64_t i = 0; i < 3; ++i) ops.push_back(run->Submit(Values(i)));
    if (run->device != nullptr) {
      EXPECT_EQ(run->device->encodes, 0u);
    }
    for (const auto& op : ops) EXPECT_TRUE(run->cluster.Wait({op->pending}));
    for (const auto& op : ops) run->outs.push_back(op->out);
  }
  ExpectSame(device, host, "three in the queue");
}

TEST(DevicePush, CancellingOrADeadlineOnlyEndsTheWait) {
  for (const bool cancel : {true, false}) {
    Trainer device(Job("codec: 'int8'")), host(Job("codec: 'int8'"), false);
    device.device->Hold();
    const auto op = device.Submit(Values(0), true, cancel ? 0 : device.cluster.clock.Now() + kSecond);
    device.cluster.RunFor(kSecond / 2);
    if (cancel) {
      device.cluster.core(0).Cancel(1);
    } else {
      device.cluster.RunFor(kSecond);
      EXPECT_THAT(std::string(op->pending->result.status.message()), HasSubstr("gpu 0 (emulated) still works on it"));
    }
    ASSERT_TRUE(op->pending->done);
    EXPECT_EQ(op->pending->result.status.code(),
              cancel ? absl::StatusCode::kCancelled : absl::StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(op->pending->released);
    EXPECT_THAT(device.cluster.core(0).Waiting(), HasSubstr("gpu 0 (emulated) works on it"));
    device.device->LetGo();
    EXPECT_TRUE(device.cluster.RunUntil([&] { return op->pending->released; }));
    device.outs.push_back(op->out);
    EXPECT_TRUE(host.Step(Values(0)).status.ok());
    EXPECT_TRUE(device.Step(Values(1)).status.ok());
    EXPECT_TRUE(host.Step(Values(1)).status.ok());
    ExpectSame(device, host, "after the wait was ended");
  }
}

TEST(DevicePush, ADeviceThatFailsFailsTheOperationAndTheRoundIsStillToBePushed) {
  Trainer device(Job("codec: 'int8'")), host(Job("codec: 'int8'"), false);
  EXPECT_TRUE(device.Step(Values(0)).status.ok());
  device.device->fail_next = "an illegal memory access";
  const OpResult failed = device.Step(Values(1));
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kInternal);
  for (const char* part : {"push_pull of tensor w, round 1", "gpu 0 (emulated)", "an illegal memory access"})
    EXPECT_THAT(std::string(failed.status.message()), HasSubstr(part));
  device.device->out_of_memory = true;  // what is there is enough
  device.outs.pop_back();
  EXPECT_TRUE(device.Step(Values(1)).status.ok());
  for (uint64_t round = 0; round < 2; ++round) EXPECT_TRUE(host.Step(Values(round)).status.ok());
  ExpectSame(device, host, "after a failure");
}

TEST(DevicePush, AFailureAfterTheRoundWasAppliedSaysSo) {
  Trainer device(Job("codec: 'int8'"));
  const auto op = device.Submit(Values(0));
  EXPECT_TRUE(device.cluster.RunUntil([&] { return device.observer.sent.size() == 3; }));
  device.device->fail_next = "the copy failed";
  EXPECT_TRUE(device.cluster.Wait({op->pending}));
  EXPECT_EQ(op->pending->result.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(op->pending->result.status.message()), HasSubstr("the round was applied"));
  EXPECT_EQ(device.cluster.core(0).NextRound(device.tensor), 1u);
}

TEST(DevicePush, NoMemoryIsAnErrorOfTheOperation) {
  Trainer device(Job("codec: 'int8'"));
  device.device->out_of_memory = true;
  const OpResult failed = device.Step(Values(0));
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(failed.status.message()), HasSubstr("gpu 0 (emulated)"));
  device.device->out_of_memory = false;
  EXPECT_TRUE(device.Step(Values(0)).status.ok());
}

TEST(DevicePush, WhatCannotBeIsRefusedWithTheReason) {
  {
    Trainer device(Job("codec: 'lowrank:2'"));
    const absl::Status status = device.Step(Values(0)).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("codec lowrank:2 is not encoded in GPU memory"));
    device.device = nullptr;
    EXPECT_TRUE(device.Step(Values(0)).status.ok());  // from host memory, as it says
  }
  for (const char* job : {"local_clip_norm: 1", "momentum_correction: 0.9"}) {
    Trainer device(Job("codec: 'topk:0.1' " + std::string(job)));
    EXPECT_EQ(device.Step(Values(0)).status.code(), absl::StatusCode::kUnimplemented) << job;
  }
  Trainer device(Job("codec: 'int8'"));
  EXPECT_EQ(device.Step(std::vector<float>(kElements - 1)).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(device.Step(Values(0)).status.ok());
  const auto first = std::exchange(device.device, device.NewDevice());
  EXPECT_EQ(device.Step(Values(1)).status.code(), absl::StatusCode::kFailedPrecondition);
  device.device = nullptr;
  EXPECT_EQ(device.Step(Values(1)).status.code(), absl::StatusCode::kFailedPrecondition);
  device.device = first;
  EXPECT_TRUE(device.Step(Values(1)).status.ok());
}

TEST(DevicePush, WhatHostMemoryLeftIsTakenOver) {
  for (const char* codec : {"int4", "threshold:auto:0.1"}) {
    Trainer device(Job("codec: '" + std::string(codec) + "'")), host(Job("codec: '" + std::string(codec) + "'"), false);
    const auto gpu = std::exchange(device.device, nullptr);
    for (uint64_t round = 0; round < 6; ++round) {
      if (round == 3) device.device = gpu;
      EXPECT_TRUE(device.Step(Values(round)).status.ok());
      EXPECT_TRUE(host.Step(Values(round)).status.ok());
    }
    ExpectSame(device, host, codec);
  }
}

TEST(DevicePush, ASnapshotGoesOnInTheNextLife) {
  Trainer device(Job("codec: 'threshold:auto:0.1'")), host(Job("codec: 'threshold:auto:0.1'"), false);
  for (uint64_t round = 0; round < 6; ++round) {
    if (round == 3) {
      const std::vector<std::byte> snapshot = device.Snapshot();
      device.cluster.Start(0, &device.observer);
      device.device = device.NewDevice();
      device.cluster.RegisterOn(0, {{"w", kElements}});
      EXPECT_TRUE(device.cluster.core(0).Restore(snapshot).ok());
    }
    EXPECT_TRUE(device.Step(Values(round)).status.ok());
    EXPECT_TRUE(host.Step(Values(round)).status.ok());
  }
  ExpectSame(device, host, "restored");
}

TEST(DevicePush, AWorkerThatFailsReleasesBuffersOnlyWhenTheDeviceIsDone) {
  Trainer device(Job("codec: 'int8'"));
  device.device->Hold();
  const auto op = device.Submit(Values(0));
  const auto second = device.Submit(Values(1));
  device.cluster.RunFor(kSecond / 10);
  device.cluster.plan.set_state(proto::JOB_FAILED);
  device.cluster.BumpPlan();
  device.cluster.RunFor(kSecond / 10);
  EXPECT_TRUE(op->pending->done);
  EXPECT_TRUE(second->pending->released);
  EXPECT_FALSE(op->pending->released);
  device.device->LetGo();
  EXPECT_TRUE(device.cluster.RunUntil([&] { return op->pending->released; }));
  EXPECT_TRUE(device.observer.sent.empty());
}

}  // namespace
}  // namespace sluice::worker
