#include "base/optimizer/schedule.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "base/optimizer/power.h"

namespace sluice {
namespace {

proto::OptimizerConfig Config(const std::string& schedule) {
  proto::OptimizerConfig config;
  config.set_kind("sgd");
  config.set_rate(0.4);
  config.set_schedule(schedule);
  return config;
}

Schedule Make(const proto::OptimizerConfig& config) {
  auto schedule = Schedule::Create(config);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *schedule;
}

TEST(Schedule, ConstantAndDefaults) {
  EXPECT_EQ(Make(Config("")).Rate(0), 0.4f);
  EXPECT_EQ(Make(Config("constant")).Rate(UINT64_MAX), 0.4f);
  proto::OptimizerConfig config;
  EXPECT_EQ(Make(config).Rate(3), 0.0f);   // no optimizer, no rate
  config.set_kind("sgd");
  EXPECT_EQ(Make(config).Rate(3), 0.01f);
}

TEST(Schedule, WarmupRisesFromItsFirstPartToTheRate) {
  proto::OptimizerConfig config = Config("constant");
  config.set_warmup_rounds(4);
  const Schedule schedule = Make(config);
  EXPECT_EQ(schedule.Rate(0), 0.1f);
  EXPECT_EQ(schedule.Rate(1), 0.2f);
  EXPECT_EQ(schedule.Rate(3), 0.4f);
  EXPECT_EQ(schedule.Rate(4), 0.4f);
}

TEST(Schedule, Step) {
  proto::OptimizerConfig config = Config("step");
  config.set_step_rounds(10);
  config.set_warmup_rounds(5);
  const Schedule schedule = Make(config);
  EXPECT_EQ(schedule.Rate(5), 0.4f);
  EXPECT_EQ(schedule.Rate(14), 0.4f);
  EXPECT_FLOAT_EQ(schedule.Rate(15), 0.04f);
  EXPECT_FLOAT_EQ(schedule.Rate(25), 0.004f);
  EXPECT_EQ(schedule.Rate(UINT64_MAX), 0.0f);
}

TEST(Schedule, LinearAndCosineEndAtTheFinalRateAndStayThere) {
  for (const char* name : {"linear", "cosine"}) {
    proto::OptimizerConfig config = Config(name);
    config.set_warmup_rounds(10);
    config.set_total_rounds(110);
    config.set_final_rate(0.1);
    const Schedule schedule = Make(config);
    EXPECT_EQ(schedule.Rate(10), 0.4f) << name;
    EXPECT_FLOAT_EQ(schedule.Rate(60), 0.25f) << name;
    EXPECT_EQ(schedule.Rate(110), 0.1f) << name;
    EXPECT_EQ(schedule.Rate(UINT64_MAX), 0.1f) << name;
    for (uint64_t round = 10; round < 110; ++round) EXPECT_GT(schedule.Rate(round), schedule.Rate(round + 1)) << name;
  }
}

TEST(Schedule, RefusesWhatCannotBe) {
  const auto error = [](const proto::OptimizerConfig& config) {
    return std::string(Schedule::Create(config).status().message());
  };
  EXPECT_NE(error(Config("cosin")).find("nearest is \"cosine\""), std::string::npos) << error(Config("cosin"));
  EXPECT_NE(error(Config("step")).find("step_rounds is 0"), std::string::npos);
  proto::OptimizerConfig config = Config("linear");
  config.set_warmup_rounds(10);
  config.set_total_rounds(10);
  EXPECT_NE(error(config).find("total_rounds is 10"), std::string::npos) << error(config);
  config = Config("constant");
  config.set_rate(-1);
  EXPECT_NE(error(config).find("rate is -1"), std::string::npos);
  config.set_rate(NAN);
  EXPECT_FALSE(error(config).empty());
  config = Config("step");
  config.set_step_rounds(1);
  config.set_step_factor(1.5);
  EXPECT_NE(error(config).find("step_factor"), std::string::npos);
}

TEST(Power, MatchesLibm) {
  for (uint64_t n : {0ull, 1ull, 2ull, 3ull, 10ull, 1000ull, 123456ull})
    EXPECT_NEAR(PowInt(0.9999, n) / std::pow(0.9999, static_cast<double>(n)), 1.0, 1e-11) << n;
  EXPECT_EQ(PowInt(0.0, 0), 1.0);
  for (int i = 0; i <= 1000; ++i) EXPECT_NEAR(CosPi(i / 1000.0), std::cos(M_PI * i / 1000.0), 1e-15) << i;
  EXPECT_EQ(CosPi(0), 1.0);
  EXPECT_EQ(CosPi(1), -1.0);
}

}  // namespace
}  // namespace sluice
