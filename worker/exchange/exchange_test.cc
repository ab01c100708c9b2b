// Tensors that are exchanged among workers, on a simulated network, against a slow reference.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/optimizer/optimizer.h"
#include "base/optimizer/schedule.h"
#include "base/philox.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "worker/collective/testing/nodes.h"
#include "worker/exchange/exchanges.h"

namespace sluice::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Values = std::vector<float>;

// Multiples of 1/64 below 4: sums of some of them are exact in any order.
Values Draw(size_t elements, uint64_t seed) {
  PhiloxRandom random(seed, 3);
  Values values;
  for (size_t i = 0; i < elements; ++i) values.push_back(std::floor(random.Uniform() * 512 - 256) / 64);
  return values;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// The workers of a job, each with its tensors.
class Rig {
 public:
  struct Pending {
    bool done = false, released = false;
    OpResult result;
  };
  using Pendings = std::vector<std::shared_ptr<Pending>>;

  Rig(uint32_t n, const std::string& job, transport::SimFaults faults = {}) : nodes(n, 7 * n, faults), ranks_(n) {
    proto::JobConfig config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(job, &config));
    config.set_name("test");
    config.set_workers(n);
    *nodes.plan.mutable_config() = config;
    for (uint32_t rank = 0; rank < n; ++rank) Make(rank);
    Publish();
  }

  void Publish() {
    nodes.Publish();
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
      if (nodes.nodes[rank] != nullptr) ranks_[rank]->exchanges->OnPlan(nodes.plan, rank);
  }
  void Crash(uint32_t rank) {
    nodes.Crash(rank);
    ranks_[rank]->exchanges.reset();
    nodes.Info(rank)->set_alive(false);
    Publish();
  }
  // Another life of a rank, with the tensors that there are.
  void Restart(uint32_t rank, uint32_t incarnation) {
    ranks_[rank].reset();
    nodes.Restart(rank, incarnation);
    Make(rank);
    Publish();
    for (const proto::TensorInfo& info : tensors_) EXPECT_EQ(at(rank).Add(info), absl::OkStatus());
  }
  uint32_t Add(const std::string& name, uint64_t elements, proto::Exchange exchange) {
    proto::TensorInfo& info = tensors_.emplace_back();
    info.set_tensor(static_cast<uint32_t>(tensors_.size()) - 1);
    info.mutable_spec()->set_name(name);
    info.mutable_spec()->add_shape(elements);
    info.set_exchange(exchange);
    for (auto& rank : ranks_) EXPECT_EQ(rank->exchanges->Add(info), absl::OkStatus());
    return info.tensor();
  }
  std::shared_ptr<Pending> Call(uint32_t rank, OpRequest request) {
    auto pending = std::make_shared<Pending>();
    auto inside = std::make_shared<bool>(true);
    last = at(rank).Submit(
        request,
        [pending, inside](const OpResult& result) {
          EXPECT_FALSE(*inside || pending->done);
          pending->done = true;
          pending->result = result;
        },
        [pending] {
          EXPECT_TRUE(pending->done);
          pending->released = true;
        });
    *inside = false;
    nodes.nodes[rank]->Touch();
    return pending;
  }
  bool Await(const Pendings& pendings, bool expect = true) {
    const TimeNs end = nodes.clock.Now() + 300 * kSecond;
    const auto open = [&] { return std::ranges::any_of(pendings, [](const auto& p) { return !p->done || !p->released; }); };
    while (open() && nodes.clock.Now() < end) {
      nodes.network.RunFor(kMillisecond);
      for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
        if (nodes.nodes[rank] != nullptr) at(rank).OnTick();
    }
    EXPECT_EQ(open(), !expect);
    return !open();
  }
  void ExpectOk(const Pendings& pendings) {
    ASSERT_TRUE(Await(pendings));
    for (const auto& pending : pendings) ASSERT_EQ(pending->result.status, absl::OkStatus());
  }
  Exchanges& at(uint32_t rank) { return *ranks_[rank]->exchanges; }
  WorkerStats& stats(uint32_t rank) { return ranks_[rank]->stats; }
  float rate(uint32_t rank) const { return ranks_[rank]->rate; }
  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }

  collective::Nodes nodes;
  uint64_t last = 0;   // the last call's number

 private:
  struct Rank {
    WorkerStats stats;
    std::unique_ptr<SlabAllocator> memory;
    std::unique_ptr<Exchanges> exchanges;
    float rate = -1;
  };
  void Make(uint32_t r) {
    ranks_[r] = std::make_unique<Rank>();
    Rank& rank = *ranks_[r];
    rank.memory = std::make_unique<SlabAllocator>(nodes.nodes[r]->endpoint.get());
    rank.exchanges = std::make_unique<Exchanges>(Exchanges::Env{.clock = &nodes.clock,
                                                                .stats = &rank.stats,
                                                                .memory = rank.memory.get(),
                                                                .collectives = nodes.nodes[r]->core.get(),
                                                                .set_rate = [&rank](float rate) { rank.rate = rate; }});
    nodes.nodes[r]->after_turn = [&exchanges = *rank.exchanges] {
      exchanges.Pump();
      exchanges.RunDeferred();
      return exchanges.has_work();
    };
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<proto::TensorInfo> tensors_;
};

transport::SimFaults Rough() {
  transport::SimFaults faults;
  faults.drop = 0.01;
  faults.duplicate = 0.02;
  faults.reorder = 0.1;
  faults.reset = 0.0005;
  return faults;
}

// What a server makes of the same rounds: the sum, divided once, and the optimizer's update of all elements.
struct Reference {
  Reference(const proto::JobConfig& job, size_t elements)
      : optimizer(*Optimizer::Create(job.optimizer(), proto::TENSOR_WEIGHT)), schedule(*Schedule::Create(job.optimizer())),
        mean(job.reduction() == proto::REDUCTION_MEAN), values(elements), state(optimizer.StateFloats(elements)) {}
  Values Round(const std::vector<Values>& gradients) {
    Values sum(values.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      for (const Values& gradient : gradients) sum[i] += gradient[i];
      if (mean) sum[i] /= static_cast<float>(gradients.size());
    }
    optimizer.Apply(values, sum, state, {.step = rounds + 1, .rate = schedule.Rate(rounds)});
    ++rounds;
    return sum;
  }
  Optimizer optimizer;
  Schedule schedule;
  bool mean;
  Values values, state;
  uint64_t rounds = 0;
};

TEST(Exchange, HasTheBitsOfTheReferenceOnAllRanks) {
  for (const proto::Exchange exchange : {proto::EXCHANGE_ALLREDUCE, proto::EXCHANGE_SHARDED})
    for (const std::string job : {"", "reduction: REDUCTION_SUM optimizer { kind: 'sgd' rate: 0.1 schedule: 'linear' total_rounds: 5 warmup_rounds: 2 }",
                                  "optimizer { kind: 'momentum' weight_decay: 0.01 }", "optimizer { kind: 'adam' rate: 0.02 }"})
      for (const uint32_t n : {1u, 2u, 3u, 4u})
        for (const size_t elements : {1u, 7u, 1000u, 30001u}) {
          SCOPED_TRACE(::testing::Message() << proto::Exchange_Name(exchange) << " " << job << " n " << n << " elements " << elements);
          Rig rig(n, job, Rough());
          const uint32_t tensor = rig.Add("w", elements, exchange);
          Reference reference(rig.nodes.plan.config(), elements);
          EXPECT_EQ(rig.rate(0), reference.schedule.Rate(0));
          std::vector<Values> values(n);
          Rig::Pendings pendings;
          for (uint32_t r = 0; r < n; ++r) {
            values[r] = Draw(elements, 50 + r);
            if (r == n - 1) reference.values = values[r];
            pendings.push_back(rig.Call(r, {.kind = OpKind::kBroadcast, .tensor = tensor, .input = values[r], .output = values[r], .root = n - 1}));
          }
          rig.ExpectOk(pendings);
          for (uint32_t r = 0; r < n; ++r) EXPECT_TRUE(SameBits(values[r], reference.values));
          for (uint64_t round = 1; round <= 3; ++round) {
            std::vector<Values> gradients;
            pendings.clear();
            for (uint32_t r = 0; r < n; ++r) gradients.push_back(Draw(elements, 1000 * round + r));
            reference.Round(gradients);
            for (uint32_t r = 0; r < n; ++r) {   // in place in the second round
              const std::span<float> out = round == 2 ? gradients[r] : values[r];
              pendings.push_back(rig.Call(r, {.kind = OpKind::kPushPull, .tensor = tensor, .input = gradients[r], .output = out}));
            }
            rig.ExpectOk(pendings);
            for (uint32_t r = 0; r < n; ++r) {
              EXPECT_TRUE(SameBits(round == 2 ? gradients[r] : values[r], reference.values)) << "round " << round << " rank " << r;
              EXPECT_EQ(pendings[r]->result.round, round);
              EXPECT_EQ(pendings[r]->result.contributors, n);
              EXPECT_EQ(pendings[r]->result.next_rate, reference.schedule.Rate(round));
              EXPECT_EQ(rig.rate(r), reference.schedule.Rate(round));
              EXPECT_EQ(rig.at(r).NextRound(tensor), round + 1);
              EXPECT_EQ(rig.stats(r).max_round, round);
            }
          }
        }
}

TEST(Exchange, AggregatesComeBackBesideAnOptimizer) {
  Rig rig(3, "reply: REPLY_AGGREGATE optimizer { kind: 'sgd' rate: 0.5 }");
  const uint32_t tensor = rig.Add("w", 100, proto::EXCHANGE_ALLREDUCE);
  Reference reference(rig.nodes.plan.config(), 100);
  std::vector<Values> gradients = {Draw(100, 1), Draw(100, 2), Draw(100, 3)}, out(3, Values(100)), pulled(3, Values(100));
  Rig::Pendings pendings;
  for (uint32_t r = 0; r < 3; ++r) {
    pendings.push_back(rig.Call(r, {.kind = OpKind::kPushPull, .tensor = tensor, .input = gradients[r], .output = out[r]}));
    pendings.push_back(rig.Call(r, {.kind = OpKind::kPull, .tensor = tensor, .output = pulled[r]}));
  }
  const Values sum = reference.Round(gradients);
  rig.ExpectOk(pendings);
  for (uint32_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(SameBits(out[r], sum));
    EXPECT_TRUE(SameBits(pulled[r], reference.values));
  }
}

TEST(Exchange, PushesAndPullsKeepTheirOrderAndTensorsDoNot) {
  for (const proto::Exchange exchange : {proto::EXCHANGE_ALLREDUCE, proto::EXCHANGE_SHARDED}) {
    Rig rig(2, "optimizer { kind: 'sgd' rate: 1 }", Rough());
    const uint32_t tensors[] = {rig.Add("a", 33, exchange), rig.Add("b", 5000, exchange)};
    std::vector<Values> gradients[] = {{Draw(33, 1), Draw(33, 2)}, {Draw(5000, 3), Draw(5000, 4)}};
    Values out[2][2];
    Rig::Pendings pendings;
    for (uint32_t r = 0; r < 2; ++r)
      for (const uint32_t i : {0u, 1u}) {
        const uint32_t t = r == 0 ? i : 1 - i;   // each rank in an order of its own
        out[t][r].resize(gradients[t][r].size());
        for (int round = 0; round < 2; ++round)
          pendings.push_back(rig.Call(r, {.kind = OpKind::kPush, .tensor = tensors[t], .input = gradients[t][r]}));
        pendings.push_back(rig.Call(r, {.kind = OpKind::kPull, .tensor = tensors[t], .output = out[t][r]}));
        EXPECT_EQ(rig.at(r).NextRound(tensors[t]), 2u);
      }
    rig.ExpectOk(pendings);
    for (const int t : {0, 1}) {
      Reference reference(rig.nodes.plan.config(), out[t][0].size());
      reference.Round(gradients[t]);
      reference.Round(gradients[t]);
      for (const int r : {0, 1}) EXPECT_TRUE(SameBits(out[t][r], reference.values));
    }
  }
}

TEST(Exchange, CodecsGiveEqualBitsAndLoseNothingInTheLongRun) {
  for (const proto::Exchange exchange : {proto::EXCHANGE_ALLREDUCE, proto::EXCHANGE_SHARDED})
    for (const char* codec : {"fp16", "int8", "topk:0.1"}) {
      SCOPED_TRACE(::testing::Message() << proto::Exchange_Name(exchange) << " " << codec);
      constexpr size_t kElements = 5003;
      constexpr int kRounds = 60;
      Rig rig(3, absl::StrCat("optimizer { kind: 'sgd' rate: 1 } codec: '", codec, "'"));
      const uint32_t tensor = rig.Add("w", kElements, exchange);
      std::vector<Values> gradients = {Draw(kElements, 1), Draw(kElements, 2), Draw(kElements, 3)}, out(3, Values(kElements));
      for (int round = 0; round < kRounds; ++round) {
        Rig::Pendings pendings;
        for (uint32_t r = 0; r < 3; ++r)
          pendings.push_back(rig.Call(r, {.kind = OpKind::kPushPull, .tensor = tensor, .input = gradients[r], .output = out[r]}));
        rig.ExpectOk(pendings);
        ASSERT_TRUE(SameBits(out[0], out[1]) && SameBits(out[0], out[2]));
      }
      double error = 0, size = 0;
      for (size_t i = 0; i < kElements; ++i) {
        const double expected = -kRounds * (static_cast<double>(gradients[0][i]) + gradients[1][i] + gradients[2][i]) / 3;
        error += (out[0][i] - expected) * (out[0][i] - expected);
        size += expected * expected;
      }
      EXPECT_LT(std::sqrt(error / size), std::string(codec) == "topk:0.1" ? 0.15 : 0.002);
    }
}

TEST(Exchange, AGradientThatIsNotFiniteIsRefusedAndTheRoundIsStillToBePushed) {
  Rig rig(2, "");
  const uint32_t tensor = rig.Add("w", 10, proto::EXCHANGE_ALLREDUCE);
  Values good(10, 1.0f), bad = good, out(10);
  bad[3] = std::numeric_limits<float>::infinity();
  const auto waits = rig.Call(0, {.kind = OpKind::kPushPull, .tensor = tensor, .input = good, .output = out});
  const auto refused = rig.Call(1, {.kind = OpKind::kPushPull, .tensor = tensor, .input = bad, .output = bad});
  ASSERT_TRUE(rig.Await({refused}));
  EXPECT_EQ(refused->result.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused->result.status.message(), HasSubstr("push_pull of tensor w, round 0: element 3 is inf"));
  EXPECT_FALSE(waits->done);
  rig.ExpectOk({waits, rig.Call(1, {.kind = OpKind::kPush, .tensor = tensor, .input = good})});
  EXPECT_EQ(out, good);
}

TEST(Exchange, ASumThatIsNotFiniteChangesNothing) {
  for (const proto::Exchange exchange : {proto::EXCHANGE_ALLREDUCE, proto::EXCHANGE_SHARDED}) {
    Rig rig(2, "reduction: REDUCTION_SUM optimizer { kind: 'momentum' rate: 1 }");
    const uint32_t tensor = rig.Add("w", 20, exchange);
    std::vector<Values> gradients(2, Values(20, std::numeric_limits<float>::max())), out(2, Values(20, 7.0f));
    for (int round = 0; round < 2; ++round) {
      Rig::Pendings pendings;
      for (uint32_t r = 0; r < 2; ++r)
        pendings.push_back(rig.Call(r, {.kind = OpKind::kPushPull, .tensor = tensor, .input = gradients[r], .output = out[r]}));
      rig.ExpectOk(pendings);
      for (uint32_t r = 0; r < 2; ++r) {
        EXPECT_EQ(out[r], Values(20, round == 0 ? 0.0f : -4.0f));
        EXPECT_EQ(pendings[r]->result.skipped, round == 0);
      }
      gradients.assign(2, Values(20, 2.0f));
    }
  }
}

TEST(Exchange, ALostWorkerEndsTheCallsOfAllOthersForGood) {
  for (const proto::Exchange exchange : {proto::EXCHANGE_ALLREDUCE, proto::EXCHANGE_SHARDED}) {
    Rig rig(3, "");
    const uint32_t tensor = rig.Add("w", 5000, exchange), other = rig.Add("b", 10, exchange);
    Values gradient(5000, 1.0f), out[2] = {Values(5000), Values(5000)};
    Rig::Pendings pendings;
    for (uint32_t r = 0; r < 3; ++r) pendings.push_back(rig.Call(r, {.kind = OpKind::kPush, .tensor = tensor, .input = gradient}));
    rig.ExpectOk(pendings);
    pendings.clear();
    for (uint32_t r = 0; r < 2; ++r) {
      pendings.push_back(rig.Call(r, {.kind = OpKind::kPushPull, .tensor = tensor, .input = gradient, .output = out[r]}));
      pendings.push_back(rig.Call(r, {.kind = OpKind::kPull, .tensor = tensor, .output = out[r]}));
    }
    rig.nodes.network.RunFor(20 * kMillisecond);
    rig.Crash(2);
    ASSERT_TRUE(rig.Await(pendings));
    pendings.push_back(rig.Call(0, {.kind = OpKind::kPull, .tensor = other, .output = std::span(out[0]).first(10)}));
    ASSERT_TRUE(rig.Await(pendings));
    for (const auto& pending : pendings) {
      EXPECT_EQ(pending->result.status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(pending->result.status.message(), HasSubstr("rank 2"));
      EXPECT_THAT(pending->result.status.message(), HasSubstr("start them from the trainer's own checkpoint"));
      EXPECT_THAT(std::string(pending->result.status.message()), Not(HasSubstr("start it again")));   // not it alone
    }
    EXPECT_THAT(pendings[0]->result.status.message(), HasSubstr("push_pull of tensor w, round 1: "));
    EXPECT_EQ(rig.at(0).unfinished(), 0u);
  }
}

TEST(Exchange, ALossBeforeTheFirstRoundCostsOnlyTime) {
  for (const proto::Exchange exchange : {proto::EXCHANGE_ALLREDUCE, proto::EXCHANGE_SHARDED}) {
    Rig rig(3, "");
    const uint32_t tensor = rig.Add("w", 5000, exchange), other = rig.Add("b", 10, exchange);
    Values values[3] = {Draw(5000, 1), Draw(5000, 2), Draw(5000, 3)}, gradient = Draw(10, 2), sums[3] = {Values(10), Values(10), Values(10)};
    Values means[3] = {Values(5000), Values(5000), Values(5000)};
    Rig::Pendings pendings;
    const auto begin = [&](uint32_t r) {
      pendings.push_back(rig.Call(r, {.kind = OpKind::kPushPull, .tensor = tensor, .input = values[r], .output = means[r]}));
      pendings.push_back(rig.Call(r, {.kind = OpKind::kPushPull, .tensor = other, .input = gradient, .output = sums[r]}));
    };
    begin(0);
    begin(1);
    rig.nodes.network.RunFor(30 * kMillisecond);
    rig.Crash(2);
    rig.nodes.network.RunFor(kSecond);
    EXPECT_FALSE(pendings[0]->done);
    EXPECT_TRUE(rig.at(0).held_since().has_value());
    EXPECT_FALSE(rig.at(0).has_work());
    rig.Restart(2, 2);
    begin(2);
    rig.ExpectOk(pendings);
    Reference reference(rig.nodes.plan.config(), 5000), small(rig.nodes.plan.config(), 10);
    const Values mean = reference.Round({values[0], values[1], values[2]}), sum = small.Round({gradient, gradient, gradient});
    for (int r = 0; r < 3; ++r) {
      EXPECT_TRUE(SameBits(means[r], mean));
      EXPECT_TRUE(SameBits(sums[r], sum));
    }
  }
}

TEST(Exchange, ARankThatWasStartedAgainEndsThem) {
  Rig rig(2, "");
  const uint32_t tensor = rig.Add("w", 10, proto::EXCHANGE_ALLREDUCE);
  Values gradient(10, 1.0f);
  rig.ExpectOk({rig.Call(0, {.kind = OpKind::kPush, .tensor = tensor, .input = gradient}),
                rig.Call(1, {.kind = OpKind::kPush, .tensor = tensor, .input = gradient})});
  rig.nodes.Info(1)->set_incarnation(2);
  rig.Publish();
  const auto refused = rig.Call(0, {.kind = OpKind::kPush, .tensor = tensor, .input = gradient});
  ASSERT_TRUE(rig.Await({refused}));
  EXPECT_EQ(refused->result.status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(refused->result.status.message(), HasSubstr("rank 1 (host1:1) was started again"));
}

TEST(Exchange, CallsThatDoNotFitEndAllOfThemEverywhere) {
  Rig rig(2, "");
  const uint32_t tensor = rig.Add("w", 10, proto::EXCHANGE_ALLREDUCE), other = rig.Add("b", 3, proto::EXCHANGE_SHARDED);
  Values gradient(10, 1.0f), small(3, 1.0f), out(10);
  Rig::Pendings pendings = {rig.Call(0, {.kind = OpKind::kPush, .tensor = other, .input = small}),
                            rig.Call(0, {.kind = OpKind::kPush, .tensor = tensor, .input = gradient}),
                            rig.Call(1, {.kind = OpKind::kBroadcast, .tensor = tensor, .input = gradient, .output = out})};
  ASSERT_TRUE(rig.Await(pendings));   // rank 1 never pushes `other`
  for (const auto& pending : pendings) EXPECT_FALSE(pending->result.status.ok());
  EXPECT_THAT(pendings[1]->result.status.message(), HasSubstr("same calls in the same order"));
}

TEST(Exchange, ADeadlineAndCancelEndTheWaitAlone) {
  Rig rig(2, "");
  const uint32_t tensor = rig.Add("w", 10, proto::EXCHANGE_ALLREDUCE);
  Values gradient(10, 1.0f), out[2] = {Values(10), Values(10)};
  const auto late = rig.Call(0, {.kind = OpKind::kPushPull, .tensor = tensor, .input = gradient, .output = out[0],
                                 .deadline = rig.nodes.clock.Now() + kSecond});
  const auto next = rig.Call(0, {.kind = OpKind::kPull, .tensor = tensor, .output = out[0]});
  rig.at(0).Cancel(rig.last);
  rig.Await({late, next}, /*expect=*/false);
  EXPECT_EQ(late->result.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(next->result.status.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(late->released || next->released);
  rig.ExpectOk({rig.Call(1, {.kind = OpKind::kPushPull, .tensor = tensor, .input = gradient, .output = out[1]})});
  ASSERT_TRUE(rig.Await({late, next}));
  EXPECT_EQ(out[0], gradient);
  EXPECT_EQ(out[1], gradient);
}

TEST(Exchange, WhatCannotBeIsRefusedByName) {
  Rig rig(2, "");
  const uint32_t tensor = rig.Add("w", 10, proto::EXCHANGE_ALLREDUCE);
  Values values(20);
  const auto why = [&](OpRequest request) {
    request.tensor = tensor;
    const auto pending = rig.Call(0, request);
    EXPECT_TRUE(rig.Await({pending}));
    return pending->result.status.ToString();
  };
  EXPECT_THAT(why({.kind = OpKind::kPush, .input = values}), HasSubstr("the input has 20 elements, the tensor 10"));
  EXPECT_THAT(why({.kind = OpKind::kPull, .output = values}), HasSubstr("the output has 20 elements"));
  EXPECT_THAT(why({.kind = OpKind::kBroadcast, .root = 2}), HasSubstr("ranks go from 0 to 1"));
  EXPECT_THAT(why({.kind = OpKind::kPushPull, .input = std::span(values).first(10), .output = std::span(values).subspan(5, 10)}),
              HasSubstr("overlap in part"));
  EXPECT_THAT(why({.kind = OpKind::kPush, .device = std::shared_ptr<const DeviceBuffers>(std::shared_ptr<int>(), reinterpret_cast<const DeviceBuffers*>(&values))}),
              HasSubstr("UNIMPLEMENTED"));
  EXPECT_THAT(why({.kind = OpKind::kPushRows}), HasSubstr("it is a tensor"));
  proto::TensorInfo unknown;
  unknown.set_tensor(9);
  unknown.mutable_spec()->add_shape(4);
  unknown.set_exchange(static_cast<proto::Exchange>(77));
  EXPECT_THAT(rig.at(0).Add(unknown).message(), HasSubstr("use one release everywhere"));
}

TEST(Exchange, ACoreThatFailsEndsAll) {
  Rig rig(2, "");
  const uint32_t tensor = rig.Add("w", 10, proto::EXCHANGE_ALLREDUCE);
  Values gradient(10, 1.0f);
  const auto waits = rig.Call(0, {.kind = OpKind::kPush, .tensor = tensor, .input = gradient});
  const auto queued = rig.Call(0, {.kind = OpKind::kPush, .tensor = tensor, .input = gradient});
  rig.nodes.network.RunFor(kMillisecond);
  rig.at(0).Fail(absl::AbortedError("over"));
  rig.nodes.nodes[0]->core->Fail(absl::AbortedError("over"));
  rig.nodes.nodes[0]->Touch();
  ASSERT_TRUE(rig.Await({waits, queued}));
  EXPECT_EQ(waits->result.status, absl::AbortedError("over"));
  EXPECT_EQ(queued->result.status, absl::AbortedError("over"));
}

}  // namespace
}  // namespace sluice::worker
