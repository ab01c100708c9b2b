// The reference's own numerics against examples that can be worked out by hand, and against the product's on random
// values: two implementations that share no code.
#include "tests/sim/slow_math.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/fixed_sum.h"
#include "base/philox.h"
#include "compression/codec.h"
#include "gtest/gtest.h"

namespace sluice::sim {
namespace {

std::vector<float> Values(PhiloxRandom& random, size_t n) {
  std::vector<float> values(n);
  for (float& v : values)
    v = (random.Uniform() - 0.5f) * std::ldexp(1.0f, static_cast<int>(random.Below(60)) - 30);
  return values;
}

TEST(SlowMathTest, DecodesWhatTheCodecsWrite) {
  PhiloxRandom random(1);
  for (const char* name : {"none", "fp16", "bf16", "int8", "topk:0.05", "topk:0.5", "topk:1", "int4", "onebit",
                           "terngrad", "qsgd:7", "qsgd:100", "mxfp8", "randk:0.1", "threshold:0.01+int4",
                           "topk:0.1+int8", "topk:0.05+onebit", "topk:0.7+mxfp8", "lowrank:2", "lowrank:3+fp16"}) {
    const auto codec = compression::MakeCodec(name, /*columns=*/20);
    ASSERT_TRUE(codec.ok());
    for (const size_t n : {1, 2, 7, 64, 65, 128, 129, 160, 300, 1000}) {
      const std::vector<float> values = Values(random, n);
      std::vector<std::byte> bytes((*codec)->MaxEncodedBytes(n));
      const auto size = (*codec)->Encode(
          {.gradient = values, .residual = {}, .residual_scale = 1.0f, .residual_out = {}}, bytes);
      ASSERT_TRUE(size.ok()) << size.status();
      bytes.resize(*size);
      std::vector<float> expected(n);
      ASSERT_TRUE((*codec)->Decode(bytes, expected).ok());
      const auto decoded = SlowDecode(static_cast<uint16_t>((*codec)->id()), bytes, n);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      for (size_t i = 0; i < n; ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>((*decoded)[i]), std::bit_cast<uint32_t>(expected[i])) << name << " " << i;
    }
  }
}

TEST(SlowMathTest, RefusesWhatIsNoEncoding) {
  const std::vector<std::byte> three(3);
  for (uint16_t codec = 0; codec < 12; ++codec) EXPECT_FALSE(SlowDecode(codec, three, 5).ok()) << codec;
}

TEST(SlowMathTest, ExactSumsDoNotDependOnTheOrderAndAreClose) {
  PhiloxRandom random(2);
  for (int run = 0; run < 2000; ++run) {
    std::vector<std::vector<float>> vectors;
    double sum = 0, largest = 0;
    for (uint32_t i = 0; i < 1 + random.Below(6); ++i) {
      vectors.push_back(Values(random, 1));
      sum += vectors.back()[0];
      largest = std::max(largest, std::abs(static_cast<double>(vectors.back()[0])));
    }
    const float forward = SlowReduce(proto::ORDER_EXACT, proto::REDUCTION_SUM, vectors, vectors.size(), 1)[0];
    std::reverse(vectors.begin(), vectors.end());
    const float backward = SlowReduce(proto::ORDER_EXACT, proto::REDUCTION_SUM, vectors, vectors.size(), 1)[0];
    EXPECT_EQ(std::bit_cast<uint32_t>(forward), std::bit_cast<uint32_t>(backward));
    EXPECT_NEAR(forward, sum, std::abs(sum) * 6e-8 + largest * 1e-15);
  }
}

TEST(SlowMathTest, ReducesByHand) {
  EXPECT_EQ(SlowReduce(proto::ORDER_RANK, proto::REDUCTION_MEAN, {{1, 2}, {3, 5}}, 2, 2),
            (std::vector<float>{2, 3.5f}));
  EXPECT_EQ(SlowReduce(proto::ORDER_RANK, proto::REDUCTION_SUM, {{1, 2}, {3, 5}}, 2, 2), (std::vector<float>{4, 7}));
  EXPECT_EQ(SlowReduce(proto::ORDER_EXACT, proto::REDUCTION_SUM, {{1e30f}, {1}, {-1e30f}}, 3, 1)[0], 0.0f)
      << "what lies far below the largest is dropped";
  EXPECT_EQ(SlowReduce(proto::ORDER_EXACT, proto::REDUCTION_SUM, {{0x1p30f}, {1}, {-0x1p30f}}, 3, 1)[0], 1.0f);
  EXPECT_TRUE(std::isnan(SlowReduce(proto::ORDER_EXACT, proto::REDUCTION_SUM, {{INFINITY}, {1}}, 2, 1)[0]));
  EXPECT_EQ(SlowReduce(proto::ORDER_RANK, proto::REDUCTION_SUM, {}, 2, 2), (std::vector<float>{0, 0}));
}

TEST(SlowMathTest, SumOfSquaresFollowsTheTree) {
  PhiloxRandom random(3);
  for (const size_t n : {0, 1, 15, 16, 17, 4095, 4096, 4097, 10000}) {
    const std::vector<float> values = Values(random, n);
    EXPECT_EQ(SlowSumOfSquares(values), SumOfSquares(values)) << n;
  }
}

TEST(SlowMathTest, RatesByHand) {
  proto::OptimizerConfig config;
  EXPECT_EQ(SlowRate(config, 3), 0.0f);
  config.set_kind("sgd");
  config.set_rate(0.4);
  EXPECT_EQ(SlowRate(config, 3), 0.4f);
  config.set_warmup_rounds(4);
  EXPECT_EQ(SlowRate(config, 0), 0.1f);
  config.set_schedule("linear");
  config.set_total_rounds(14);
  EXPECT_FLOAT_EQ(SlowRate(config, 9), 0.2f);
  config.set_schedule("cosine");
  EXPECT_FLOAT_EQ(SlowRate(config, 9), 0.2f);
  config.set_schedule("step");
  config.set_step_rounds(2);
  EXPECT_FLOAT_EQ(SlowRate(config, 9), 0.004f);
}

}  // namespace
}  // namespace sluice::sim
