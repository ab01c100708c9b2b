// Collectives of encoded values.
#include <cmath>
#include <cstring>
#include <vector>

#include "base/philox.h"
#include "compression/codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/collective/collectives.h"
#include "worker/collective/testing/nodes.h"

namespace sluice::collective {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<float>;
using Outcomes = std::vector<std::shared_ptr<Node::Outcome>>;

Values Draw(size_t elements, uint64_t seed) {
  PhiloxRandom random(seed, 5);
  Values values;
  for (size_t i = 0; i < elements; ++i) values.push_back(random.Uniform() * 4 - 2);
  return values;
}

transport::SimFaults Rough() {
  transport::SimFaults faults;
  faults.drop = 0.02;
  faults.duplicate = 0.02;
  faults.reorder = 0.1;
  faults.reset = 0.001;
  return faults;
}

bool SameBits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectOk(Nodes& nodes, const Outcomes& outcomes) {
  ASSERT_TRUE(nodes.Await(outcomes, 300 * kSecond));
  for (const auto& outcome : outcomes) ASSERT_TRUE(outcome->status.ok()) << outcome->status;
}

// Results and residuals together are what went in: nothing is lost, only late.
TEST(CollectiveCodecs, AllReduceHasEqualBitsAndLosesNothing) {
  for (const char* codec : {"fp16", "bf16", "int8", "int4", "topk:0.1", "topk:0.1+int8"})
    for (const uint32_t n : {1u, 2u, 3u, 5u}) {
      SCOPED_TRACE(::testing::Message() << codec << " n " << n);
      Nodes nodes(n, n, Rough());
      const size_t elements = 5003;
      std::vector<Values> residuals(n, Values(elements, 0.0f));
      std::vector<double> given(elements, 0.0), got(elements, 0.0);
      for (int round = 0; round < 3; ++round) {
        std::vector<Values> in, out(n, Values(elements, 7.0f));
        Outcomes outcomes;
        for (uint32_t m = 0; m < n; ++m) {
          in.push_back(Draw(elements, round * 10 + m));
          for (size_t i = 0; i < elements; ++i) given[i] += in[m][i];
        }
        for (uint32_t m = 0; m < n; ++m) {
          std::span<float> to = out[m];
          if (round == 2) to = in[m];   // in place
          outcomes.push_back(nodes.nodes[m]->Call({.input = in[m], .output = to, .codec = codec, .residual = residuals[m]}));
        }
        ExpectOk(nodes, outcomes);
        const std::vector<Values>& results = round == 2 ? in : out;
        for (uint32_t m = 1; m < n; ++m) ASSERT_TRUE(SameBits(results[m], results[0]));
        for (size_t i = 0; i < elements; ++i) got[i] += results[0][i];
      }
      for (size_t i = 0; i < elements; ++i) {
        double left = 0;
        for (const Values& residual : residuals) left += residual[i];
        ASSERT_NEAR(got[i] + left, given[i], 1e-4) << "element " << i;
      }
      for (auto& node : nodes.nodes) EXPECT_EQ(node->core->pool().used(), 0u);
    }
}

TEST(CollectiveCodecs, ReduceScatterKeepsTheOwnPartExact) {
  Nodes nodes(3, 1, Rough());
  std::vector<Values> in, out(3, Values(1000)), residuals(3, Values(3000, 0.0f));
  Outcomes outcomes;
  for (uint32_t m = 0; m < 3; ++m) in.push_back(Draw(3000, m));
  for (uint32_t m = 0; m < 3; ++m)
    outcomes.push_back(nodes.nodes[m]->Call(
        {.kind = Kind::kReduceScatter, .input = in[m], .output = out[m], .codec = "int8", .residual = residuals[m]}));
  ExpectOk(nodes, outcomes);
  for (uint32_t m = 0; m < 3; ++m)
    for (size_t i = 0; i < 1000; ++i) {
      const size_t at = m * 1000 + i;
      EXPECT_NEAR(out[m][i] + residuals[0][at] + residuals[1][at] + residuals[2][at], in[0][at] + in[1][at] + in[2][at], 1e-4);
      EXPECT_EQ(residuals[m][at], 0.0f);
    }
}

TEST(CollectiveCodecs, GatheredAndExchangedBlocksAreWhatTheCodecMakesOfThem) {
  Nodes nodes(4, 2, Rough());
  const auto decoded = [](const Values& values) {
    const auto codec = *compression::MakeCodec("fp16");
    std::vector<std::byte> bytes(codec->MaxEncodedBytes(values.size()));
    bytes.resize(*codec->Encode({.gradient = values}, bytes));
    Values out(values.size());
    EXPECT_TRUE(codec->Decode(bytes, out).ok());
    return out;
  };
  std::vector<Values> in, gathered(4, Values(4 * 600)), exchanged(4, Values(600));
  Outcomes outcomes;
  for (uint32_t m = 0; m < 4; ++m) in.push_back(Draw(600, m));
  for (uint32_t m = 0; m < 4; ++m) {
    outcomes.push_back(nodes.nodes[m]->Call({.kind = Kind::kAllGather, .input = in[m], .output = gathered[m], .codec = "fp16"}));
    outcomes.push_back(nodes.nodes[m]->Call({.kind = Kind::kAllToAll, .input = in[m], .output = exchanged[m], .codec = "fp16"}));
  }
  Values sent = Draw(40000, 9), got(40000);
  outcomes.push_back(nodes.nodes[1]->Call({.kind = Kind::kSend, .input = sent, .peer = 3, .codec = "fp16"}));
  outcomes.push_back(nodes.nodes[3]->Call({.kind = Kind::kReceive, .output = got, .peer = 1, .codec = "fp16"}));
  ExpectOk(nodes, outcomes);
  EXPECT_TRUE(SameBits(got, decoded(sent)));
  for (uint32_t m = 0; m < 4; ++m)
    for (uint32_t b = 0; b < 4; ++b) {
      EXPECT_TRUE(SameBits(Values(gathered[m].begin() + b * 600, gathered[m].begin() + (b + 1) * 600), decoded(in[b])));
      const Values part(in[b].begin() + m * 150, in[b].begin() + (m + 1) * 150);
      EXPECT_TRUE(SameBits(Values(exchanged[m].begin() + b * 150, exchanged[m].begin() + (b + 1) * 150), m == b ? part : decoded(part)));
    }
}

TEST(CollectiveCodecs, AValueThatIsNotFiniteFailsAllMembersAndLeavesResidualsAlone) {
  Nodes nodes(3);
  std::vector<Values> in(3, Values(900, 1.0f)), out(3, Values(900)), residuals(3, Values(900, 0.25f));
  in[1][700] = std::nanf("");
  Outcomes outcomes;
  for (uint32_t m = 0; m < 3; ++m)
    outcomes.push_back(nodes.nodes[m]->Call({.input = in[m], .output = out[m], .codec = "int8", .residual = residuals[m]}));
  ASSERT_TRUE(nodes.Await(outcomes));
  for (uint32_t m = 0; m < 3; ++m) {
    EXPECT_THAT(outcomes[m]->status.ToString(), HasSubstr("value 700 at rank 1"));
    EXPECT_EQ(residuals[m], Values(900, 0.25f));
  }
}

TEST(CollectiveCodecs, WhatACodecIsNoUseForIsRefusedInWords) {
  Nodes nodes(1);
  Values in(100), out(100), residual(100);
  const auto why = [&](Request request) {
    const auto outcome = nodes.nodes[0]->Call(std::move(request));
    EXPECT_TRUE(nodes.Await({outcome}));
    return outcome->status.ToString();
  };
  EXPECT_THAT(why({.input = in, .output = out, .codec = "int9"}), HasSubstr("int8"));
  EXPECT_THAT(why({.input = in, .output = out, .codec = "topk:0.1"}), HasSubstr("give a residual"));
  EXPECT_THAT(why({.input = in, .output = out, .codec = "lowrank:2", .residual = residual}), HasSubstr("state of the round before"));
  EXPECT_THAT(why({.input = in, .output = out, .algorithm = Algorithm::kRing, .codec = "fp16"}), HasSubstr("leave it at auto"));
  EXPECT_THAT(why({.input = in, .output = out, .residual = residual}), HasSubstr("a residual without a codec"));
  EXPECT_THAT(why({.input = in, .output = out, .codec = "fp16", .residual = {residual.data(), 9}}), HasSubstr("residual of 9 values"));
  EXPECT_THAT(why({.kind = Kind::kBroadcast, .output = out, .codec = "fp16"}), HasSubstr("without a codec"));
}

}  // namespace
}  // namespace sluice::collective
