#include "compression/codec_schedule.h"

#include <cmath>

#include <gtest/gtest.h>

namespace sluice::compression {
namespace {

CodecSchedule Make(std::string_view codec, uint64_t warmup_rounds = 0) {
  auto schedule = CodecSchedule::Make(codec, {.warmup_rounds = warmup_rounds});
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

TEST(CodecSchedule, WithoutWarmUpThereIsOneCodec) {
  for (const char* name : {"none", "int8", "topk:0.01", "topk:0.01+int8", "threshold:auto:0.001"}) {
    const CodecSchedule schedule = Make(name);
    EXPECT_EQ(schedule.At(0).name(), name);
    EXPECT_EQ(schedule.At(UINT64_MAX).name(), name);
    EXPECT_FALSE(schedule.chosen());
  }
}

TEST(CodecSchedule, WarmUpComesDownToTheRatioInEqualFactors) {
  const CodecSchedule schedule = Make("topk:0.01+int8", 50);
  double last = 0.25 / std::pow(0.01 / 0.25, 0.2);
  for (uint64_t stage = 0; stage <= 5; ++stage) {
    const double ratio = RatioOf(schedule.At(stage * 10).name()).value();
    EXPECT_NEAR(ratio / last, std::pow(0.01 / 0.25, 0.2), 1e-3) << stage;
    EXPECT_EQ(schedule.At(stage * 10 + 9).name(), schedule.At(stage * 10).name());
    last = ratio;
  }
  EXPECT_EQ(schedule.At(0).name(), "topk:0.25+int8");
  EXPECT_EQ(schedule.At(49).name(), "topk:0.01904+int8");
  EXPECT_EQ(schedule.At(50).name(), "topk:0.01+int8");
}

TEST(CodecSchedule, WarmUpOfFewRoundsStillEndsInTime) {
  for (const uint64_t rounds : {1u, 2u, 3u, 7u}) {
    const CodecSchedule schedule = Make("randk:0.001", rounds);
    EXPECT_EQ(schedule.At(rounds).name(), "randk:0.001");
    EXPECT_NE(schedule.At(0).name(), "randk:0.001");
    for (uint64_t round = 0; round < rounds; ++round)
      EXPECT_GE(RatioOf(schedule.At(round).name()), RatioOf(schedule.At(round + 1).name()));
  }
}

TEST(CodecSchedule, NothingIsWarmedUpWithoutASmallRatio) {
  EXPECT_EQ(Make("int8", 100).At(0).name(), "int8");
  EXPECT_EQ(Make("topk:0.5", 100).At(0).name(), "topk:0.5");
  EXPECT_EQ(Make("threshold:0.25", 100).At(0).name(), "threshold:0.25");
}

TEST(CodecSchedule, ChoicesTakeOverAtTheirRound) {
  CodecSchedule schedule = Make("auto");
  EXPECT_TRUE(schedule.chosen());
  EXPECT_EQ(schedule.At(7).name(), "none");
  ASSERT_TRUE(schedule.Change(10, "int8").ok());
  EXPECT_EQ(schedule.last_change(), 10u);
  ASSERT_TRUE(schedule.Change(20, "topk:0.01").ok());
  EXPECT_EQ(schedule.At(9).name(), "none");
  EXPECT_EQ(schedule.At(10).name(), "int8");
  EXPECT_EQ(schedule.At(20).name(), "topk:0.01");
  ASSERT_TRUE(schedule.Change(15, "int4").ok());   // before what was planned for 20
  EXPECT_EQ(schedule.At(14).name(), "int8");
  EXPECT_EQ(schedule.At(30).name(), "int4");
  EXPECT_FALSE(schedule.Change(16, "gzip").ok());
  EXPECT_EQ(schedule.At(30).name(), "int4");
  for (uint64_t round = 100; round < 200; ++round) ASSERT_TRUE(schedule.Change(round, round % 2 == 0 ? "fp16" : "bf16").ok());
  EXPECT_EQ(schedule.At(199).name(), "bf16");
  EXPECT_EQ(schedule.At(198).name(), "fp16");
}

TEST(CodecSchedule, RatiosInNames) {
  EXPECT_EQ(RatioOf("topk:0.01"), 0.01);
  EXPECT_EQ(RatioOf("threshold:auto:0.001+fp16"), 0.001);
  EXPECT_EQ(RatioOf("threshold:0.5"), std::nullopt);
  EXPECT_EQ(RatioOf("int8"), std::nullopt);
  EXPECT_EQ(RatioOf("topk:"), std::nullopt);
  EXPECT_EQ(WithRatio("randk:0.01+int4", 0.125), "randk:0.125+int4");
  EXPECT_EQ(WithRatio("int8", 0.5), "int8");
}

}  // namespace
}  // namespace sluice::compression
