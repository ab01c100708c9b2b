// Step-wide decisions over two servers: clipping by the global norm, skipping, layer-wise rates, and what gets lost.

#include <bit>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/fixed_sum.h"
#include "base/philox.h"
#include "server/math/reduce.h"
#include "server/testing/core_harness.h"

namespace sluice::server {
namespace {

using transport::kFlagNonfinite;
using transport::kFlagSkipped;

// Two servers of one lane each; partition p lives on server p mod 2. The coordinator is server 0.
class Pair {
 public:
  explicit Pair(const std::string& job, std::vector<uint64_t> first = {3}, std::vector<uint64_t> second = {2})
      : plan_(PlanBuilder(job).Server("s0").Server("s1").Tensor("a", first).Tensor("b", second).plan) {
    for (int i = 0; i < 2; ++i) servers_[i] = std::make_unique<CoreHarness>(absl::StrCat("s", i));
    for (auto& server : servers_) server->Start(plan_);
    for (const auto& tensor : plan_.tensors()) {
      for (int i = 0; i < tensor.partition_elements_size(); ++i) tensor_of_.push_back(tensor.tensor());
    }
  }

  CoreHarness& server(int i) { return *servers_[i]; }
  CoreHarness& owner(uint32_t partition) { return *servers_[partition % 2]; }

  void Push(uint32_t partition, uint64_t round, std::vector<float> values, uint16_t flags = 0) {
    owner(partition).Send({.partition = partition, .round = round, .values = std::move(values), .flags = flags,
                           .tensor = tensor_of_[partition]});
  }

  // The link that server 1 asked for comes up at both ends.
  void Connect() {
    ASSERT_EQ(servers_[1]->endpoint.connects.size(), connected_ + 1);
    const FakeEndpoint::Connected& made = servers_[1]->endpoint.connects.back();
    EXPECT_EQ(made.address.host, "s0");
    EXPECT_EQ(made.self.role, transport::PeerRole::kServer);
    link_ = made.link;
    accepted_ = 500 + connected_++;
    transport::Hello coordinator;
    coordinator.role = transport::PeerRole::kServer;
    servers_[0]->core->OnUp(accepted_, made.self);
    servers_[1]->core->OnUp(link_, coordinator);
  }
  void Cut() {
    servers_[0]->core->OnDown(accepted_, absl::UnavailableError("cut"));
    servers_[1]->core->OnDown(link_, absl::UnavailableError("cut"));
  }
  // Carries what waits between the servers until nothing moves. Returns the frames that server 0 sent.
  std::vector<SentFrame> Shuttle() {
    std::vector<SentFrame> verdicts;
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& server : servers_) server->core->OnTurnEnd();
      for (const SentFrame& frame : servers_[1]->endpoint.Take(link_)) {
        servers_[0]->Deliver(accepted_, frame.header, frame.payload);
        moved = true;
      }
      for (const SentFrame& frame : servers_[0]->endpoint.Take(accepted_)) {
        verdicts.push_back(frame);
        servers_[1]->Deliver(link_, frame.header, frame.payload);
        moved = true;
      }
    }
    return verdicts;
  }
  // The answer to the only rank about this partition (others are thrown away).
  SentFrame Answer(uint32_t partition) {
    for (const SentFrame& frame : owner(partition).Take(0)) {
      if (frame.header.partition == partition) return frame;
    }
    ADD_FAILURE() << "no answer for partition " << partition;
    return {};
  }

  proto::Plan plan_;
  std::unique_ptr<CoreHarness> servers_[2];
  std::vector<uint32_t> tensor_of_;
  LinkId link_ = 0, accepted_ = 0;
  size_t connected_ = 0;
};

TEST(VerdictTest, ClipsByTheNormOverAllPartitions) {
  Pair pair("workers: 1 optimizer { kind: 'sgd' rate: 1 clip_norm: 6.5 }");
  pair.Push(0, 0, {3, 4, 0});       // norm over both: 13
  pair.Push(1, 0, {12, 0});
  pair.Connect();
  EXPECT_EQ(pair.Shuttle().size(), 1u);
  EXPECT_EQ(pair.Answer(0).Floats(), (std::vector<float>{-1.5f, -2.0f, 0}));
  EXPECT_EQ(pair.Answer(1).Floats(), (std::vector<float>{-6, 0}));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pair.server(i).observed.rounds[0].record.scale, 0.5);
    EXPECT_EQ(pair.server(i).observed.rounds[0].record.rate_bits, std::bit_cast<uint32_t>(1.0f));
  }
  // Below the bound: untouched.
  pair.Push(0, 1, {1, 0, 0});
  pair.Push(1, 1, {0, 1});
  pair.Shuttle();
  EXPECT_EQ(pair.Answer(0).Floats(), (std::vector<float>{-2.5f, -2.0f, 0}));
}

TEST(VerdictTest, AClippedAggregateIsWhatIsSent) {
  Pair pair("workers: 1 optimizer { clip_norm: 6.5 }");
  pair.Push(0, 0, {3, 4, 0});
  pair.Push(1, 0, {12, 0});
  pair.Connect();
  pair.Shuttle();
  EXPECT_EQ(pair.Answer(0).Floats(), (std::vector<float>{1.5f, 2.0f, 0}));
}

TEST(VerdictTest, NobodyAnswersBeforeTheStepIsWhole) {
  Pair pair("workers: 1 optimizer { kind: 'sgd' rate: 1 clip_norm: 1 }");
  pair.Push(0, 0, {3, 4, 0});
  EXPECT_TRUE(pair.server(0).Take(0).empty());
  EXPECT_NE(pair.server(0).core->stats().waiting_for.find("waits for the step's verdict"), std::string::npos);
  EXPECT_NE(pair.server(0).core->stats().waiting_for.find("step 0 phase 0 waits for partition 1 and 0 more"),
            std::string::npos) << pair.server(0).core->stats().waiting_for;
}

TEST(VerdictTest, OneRanksNonfiniteSkipsTheWholeStep) {
  Pair pair("workers: 1 on_nonfinite: NONFINITE_SKIP optimizer { kind: 'adam' rate: 1 }");
  pair.Push(0, 0, {1, 1, 1});
  pair.Push(1, 0, {}, kFlagNonfinite);
  pair.Connect();
  pair.Shuttle();
  for (uint32_t p : {0u, 1u}) {
    const SentFrame answer = pair.Answer(p);
    EXPECT_TRUE(answer.header.has(kFlagSkipped));
    for (float v : answer.Floats()) EXPECT_EQ(v, 0.0f);
  }
  EXPECT_TRUE(pair.server(0).observed.rounds[0].record.skipped);
  // The next step is applied as Adam's first: the skipped one does not count for the bias correction.
  pair.Push(0, 1, {1, 1, 1});
  pair.Push(1, 1, {1, 1});
  pair.Shuttle();
  for (float v : pair.Answer(0).Floats()) EXPECT_NEAR(v, -1.0f, 1e-4f);
}

TEST(VerdictTest, ALostPartialIsSentAgainAndALostVerdictIsRepeated) {
  Pair pair("workers: 1 optimizer { kind: 'sgd' rate: 1 clip_norm: 100 }");
  pair.Push(0, 0, {1, 1, 1});
  pair.Push(1, 0, {1, 1});
  pair.Connect();
  pair.server(1).core->OnTurnEnd();
  EXPECT_EQ(pair.server(1).endpoint.Take(pair.link_).size(), 1u);   // the PARTIAL is lost
  pair.Shuttle();
  EXPECT_TRUE(pair.server(1).Take(0).empty());
  // The link goes and comes back after the back-off: the records are sent again at once.
  pair.Cut();
  pair.server(1).clock.Advance(kSecond);
  pair.server(1).core->OnTick();
  pair.Connect();
  pair.server(1).core->OnTurnEnd();
  for (const SentFrame& frame : pair.server(1).endpoint.Take(pair.link_)) {
    pair.server(0).Deliver(pair.accepted_, frame.header, frame.payload);
  }
  EXPECT_EQ(pair.server(0).endpoint.Take(pair.accepted_).size(), 1u);   // the VERDICT is lost
  EXPECT_EQ(pair.Answer(0).header.type, FrameType::kReply);             // its own partitions go on
  pair.server(1).clock.Advance(2 * kSecond);
  pair.server(1).core->OnTick();
  EXPECT_EQ(pair.Shuttle().size(), 1u);
  EXPECT_EQ(pair.Answer(1).Floats(), (std::vector<float>{-1, -1}));
}

// LAMB: two phases, trust ratios over whole tensors whose partitions lie on different servers. Against one server.
TEST(VerdictTest, LambEqualsOneServerToTheBit) {
  const std::string job = "workers: 1 optimizer { kind: 'lamb' rate: 0.1 weight_decay: 0.01 clip_norm: 1 }";
  Pair pair(job, {40, 40, 40}, {30, 30});
  CoreHarness one;
  one.Start(PlanBuilder(job).Server("s0").Tensor("a", {40, 40, 40}).Tensor("b", {30, 30}).plan);
  PhiloxRandom random(9);
  std::vector<double> trusts;
  for (uint64_t round = 0; round < 4; ++round) {
    std::vector<std::vector<float>> expected(5);
    for (uint32_t p = 0; p < 5; ++p) {
      std::vector<float> values(p < 3 ? 40 : 30);
      for (float& v : values) v = random.Uniform() - 0.5f;
      const uint16_t flags = round == 0 ? transport::kFlagAssign : 0;
      pair.Push(p, round, values, flags);
      one.Send({.partition = p, .round = round, .values = values, .flags = flags, .tensor = p < 3 ? 0u : 1u});
    }
    for (const SentFrame& frame : one.Take(0)) expected[frame.header.partition] = frame.Floats();
    if (pair.connected_ == 0 && round > 0) pair.Connect();
    const auto verdicts = pair.Shuttle();
    EXPECT_EQ(verdicts.size(), round == 0 ? 0u : 2u);
    std::vector<std::vector<float>> got(5);
    for (int i = 0; i < 2; ++i) {
      for (const SentFrame& frame : pair.server(i).Take(0)) got[frame.header.partition] = frame.Floats();
    }
    EXPECT_EQ(got, expected) << round;
    trusts.push_back(one.observed.rounds.back().record.trust);
  }
  EXPECT_NE(trusts[1], 1.0);
  EXPECT_GT(trusts[1], 0.0);
}

TEST(VerdictTest, MalformedPartialEndsTheLink) {
  Pair pair("workers: 1 optimizer { kind: 'sgd' clip_norm: 1 }");
  pair.Push(1, 0, {1, 1});
  pair.Connect();
  FrameHeader h;
  h.type = FrameType::kPartial;
  h.job = 1;
  const std::vector<std::byte> garbage(11, std::byte{0xAB});
  h.payload_bytes = h.total_bytes = 11;
  pair.server(0).Deliver(pair.accepted_, h, garbage);
  EXPECT_TRUE(pair.server(0).endpoint.closed.contains(pair.accepted_));
}

}  // namespace
}  // namespace sluice::server
