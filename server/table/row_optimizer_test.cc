#include "server/table/row_optimizer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/philox.h"
#include "server/table/testing/slow_row.h"

namespace sluice::server {
namespace {

const char* const kKinds[] = {"sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"};

proto::TableOptimizer Config(const std::string& kind) {
  proto::TableOptimizer config;
  config.set_kind(kind);
  return config;
}

RowOptimizer Make(const proto::TableOptimizer& config) {
  auto optimizer = RowOptimizer::Create(config);
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  return *std::move(optimizer);
}

proto::TableOptimizer RandomConfig(PhiloxRandom& random, const std::string& kind) {
  proto::TableOptimizer config = Config(kind);
  if (random.Chance(0.5)) config.set_l2(0.1 * random.Uniform());
  if (random.Chance(0.5)) config.set_epsilon(1e-3 * random.Uniform() + 1e-6);
  if (random.Chance(0.5)) config.set_initial_accumulator(random.Uniform());
  if (random.Chance(0.5)) config.set_beta1(random.Uniform() * 0.99 + 0.001);
  if (random.Chance(0.5)) config.set_beta2(random.Uniform() * 0.99 + 0.005);
  if (random.Chance(0.5)) config.set_beta(random.Uniform() + 0.1);
  if (kind == "ftrl" && random.Chance(0.7)) config.set_l1(random.Uniform());
  return config;
}

TEST(RowOptimizer, HasTheBitsOfTheWrittenOrderAndTheValuesOfTheFormulas) {
  for (const std::string kind : kKinds)
    for (uint64_t seed = 0; seed < 60; ++seed) {
      PhiloxRandom random(seed, 5);
      const proto::TableOptimizer config = RandomConfig(random, kind);
      const RowOptimizer optimizer = Make(config);
      const uint32_t dim = 1 + random.Below(seed % 10 == 9 ? 5000 : 40);
      std::vector<float> values(dim), state(optimizer.StateFloats(dim), 77.0f);
      for (float& v : values) v = random.Chance(0.2) ? 0.0f : random.Uniform() - 0.5f;
      float rate = 0.01f + random.Uniform() * 0.3f;
      optimizer.Start(optimizer.BeginRound(rate), values, state);
      SlowRow<float> exact(config, values, rate);
      SlowRow<double> real(config, values, rate);
      for (int step = 0; step < (dim > 1000 ? 3 : 30); ++step) {
        if (step % 10 == 9 && kind != "ftrl") rate *= 0.7f;
        std::vector<float> gradient(dim);
        for (float& g : gradient) g = random.Chance(0.1) ? 0.0f : (random.Uniform() - 0.5f) * 2;
        optimizer.Apply(optimizer.BeginRound(rate), values, gradient, state);
        exact.Apply(gradient, rate);
        real.Apply(gradient, rate);
        ASSERT_EQ(values, exact.Values()) << kind << " " << seed << " " << step;
        ASSERT_EQ(state, exact.State()) << kind << " " << seed << " " << step;
        const std::vector<double> formula = real.Values();
        for (uint32_t i = 0; i < dim; ++i)
          ASSERT_NEAR(values[i], formula[i], 2e-4 * (1 + std::abs(formula[i]))) << kind << " " << seed << " " << step;
      }
    }
}

TEST(RowOptimizer, FtrlGivesTrueZerosAndLeavesThem) {
  proto::TableOptimizer config = Config("ftrl");
  config.set_l1(1.0);
  const RowOptimizer optimizer = Make(config);
  const auto round = optimizer.BeginRound(0.1f);
  std::vector<float> x = {0, 0}, state(4);
  optimizer.Start(round, x, state);
  optimizer.Apply(round, x, std::vector<float>{0.5f, -0.75f}, state);
  for (const float v : x) EXPECT_EQ(std::bit_cast<uint32_t>(v), 0u);    // +0
  optimizer.Apply(round, x, std::vector<float>{0.75f, -0.25f}, state);  // z = 1.25 and -1: at the bound it is still 0
  EXPECT_LT(x[0], 0);
  EXPECT_EQ(std::bit_cast<uint32_t>(x[1]), 0u);
}

TEST(RowOptimizer, FtrlStartsFromInitialValuesAndStandsStillAtRateZero) {
  proto::TableOptimizer config = Config("ftrl");
  config.set_l1(0.3);
  config.set_l2(0.2);
  config.set_initial_accumulator(0.5);
  const RowOptimizer optimizer = Make(config);
  const auto round = optimizer.BeginRound(0.05f);
  std::vector<float> x = {0.5f, -0.25f, 0}, state(6);
  const std::vector<float> start = x;
  optimizer.Start(round, x, state);
  optimizer.Apply(round, x, std::vector<float>{0, 0, 0}, state);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(x[i], start[i], 1e-6);
  const std::vector<float> before = x, state_before = state;
  optimizer.Apply(optimizer.BeginRound(0), x, std::vector<float>{1, 1, 1}, state);
  EXPECT_EQ(x, before);
  EXPECT_EQ(state, state_before);
}

TEST(RowOptimizer, AdamsCountStaysWhereFloatsEndAndIsThenWithoutCorrection) {
  const RowOptimizer optimizer = Make(Config("adam"));
  std::vector<float> x = {1}, state = {0.5f, 0.25f, 0x1p24f - 1};
  for (int i = 0; i < 3; ++i) optimizer.Apply(optimizer.BeginRound(0.1f), x, std::vector<float>{0}, state);
  EXPECT_EQ(state[2], 0x1p24f);
  EXPECT_TRUE(std::isfinite(x[0]));
}

TEST(RowOptimizer, DefaultsAreTheDocumentedOnes) {
  EXPECT_EQ(Make({}).rate(), 0.01);
  for (const std::string kind : kKinds) {
    proto::TableOptimizer written = Config(kind);
    written.set_rate(0.01);
    written.set_epsilon(1e-8);
    written.set_beta1(0.9);
    written.set_beta2(0.999);
    written.set_beta(1);
    const RowOptimizer a = Make(Config(kind)), b = Make(written);
    std::vector<float> x = {0.5f}, y = x, sx(a.StateFloats(1)), sy(b.StateFloats(1));
    a.Start(a.BeginRound(0.01f), x, sx);
    b.Start(b.BeginRound(0.01f), y, sy);
    for (int i = 0; i < 3; ++i) {
      a.Apply(a.BeginRound(0.01f), x, std::vector<float>{0.3f}, sx);
      b.Apply(b.BeginRound(0.01f), y, std::vector<float>{0.3f}, sy);
    }
    EXPECT_EQ(x, y) << kind;
    EXPECT_NE(x[0], 0.5f) << kind;
  }
}

TEST(RowOptimizer, ErrorsNameFieldValueAndWhatIsAllowed) {
  const auto unknown = RowOptimizer::Create(Config("adagrat"));
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("nearest is \"adagrad\""), std::string::npos) << unknown.status();
  using Setter = void (*)(proto::TableOptimizer*, double);
  const std::map<std::string, Setter> fields = {
      {"rate", [](proto::TableOptimizer* c, double v) { c->set_rate(v); }},
      {"epsilon", [](proto::TableOptimizer* c, double v) { c->set_epsilon(v); }},
      {"beta1", [](proto::TableOptimizer* c, double v) { c->set_beta1(v); }},
      {"beta2", [](proto::TableOptimizer* c, double v) { c->set_beta2(v); }},
      {"initial_accumulator", [](proto::TableOptimizer* c, double v) { c->set_initial_accumulator(v); }},
      {"l1", [](proto::TableOptimizer* c, double v) { c->set_l1(v); }},
      {"l2", [](proto::TableOptimizer* c, double v) { c->set_l2(v); }},
      {"beta", [](proto::TableOptimizer* c, double v) { c->set_beta(v); }},
  };
  for (const auto& [field, set] : fields)
    for (const double bad :
         {-1.0, 1e30, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      proto::TableOptimizer config = Config("ftrl");
      set(&config, bad);
      const auto optimizer = RowOptimizer::Create(config);
      EXPECT_EQ(optimizer.status().code(), absl::StatusCode::kInvalidArgument) << field << " " << bad;
      EXPECT_NE(optimizer.status().message().find("table.optimizer." + field + " is"), std::string::npos)
          << optimizer.status();
    }
  proto::TableOptimizer l1 = Config("adam");
  l1.set_l1(0.5);
  EXPECT_NE(RowOptimizer::Create(l1).status().message().find("only ftrl"), std::string::npos);
}

}  // namespace
}  // namespace sluice::server
