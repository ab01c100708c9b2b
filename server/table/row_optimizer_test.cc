#include "server/table/row_optimizer.h"

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/philox.h"

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

// One coordinate of a row in the arithmetic of Real, from the papers' formulas: Real = float with every intermediate result
// in a variable gives the bits; Real = double says that the formulas themselves are right.
template <typename Real>
struct Coordinate {
  Real x = 0, m = 0, v = 0;   // adagrad: v; ftrl: z = m, n = v
};

template <typename Real>
class SlowRow {
 public:
  SlowRow(const proto::TableOptimizer& config, const std::vector<float>& initial, float rate)
      : config_(config), kind_(config.kind()), coordinates_(initial.size()) {
    const Real start = static_cast<Real>(config.initial_accumulator());
    accumulator_ = start;
    for (size_t i = 0; i < initial.size(); ++i) {
      Coordinate<Real>& c = coordinates_[i];
      c.x = initial[i];
      if (kind_ == "adagrad" || kind_ == "ftrl") c.v = start;
      if (kind_ == "ftrl" && initial[i] != 0) {
        const Real root = std::sqrt(start), numerator = Beta() + root, quotient = numerator / rate, q = quotient + L2();
        const Real product = c.x * q, l1 = c.x > 0 ? L1() : -L1(), sum = product + l1;
        c.m = -sum;
      }
    }
  }

  void Apply(const std::vector<float>& gradient, float rate) {
    const Real r = rate, eps = static_cast<Real>(config_.epsilon() == 0 ? 1e-8 : config_.epsilon());
    const Real decay = static_cast<Real>(1.0 - static_cast<double>(rate) * config_.l2());
    ++t_;
    if (kind_ == "rowwise_adagrad") {
      double sum = 0;   // rows of at most 16 positions: each lane has one square, folded 8-4-2-1
      std::vector<double> lanes(16);
      for (size_t i = 0; i < gradient.size(); ++i) lanes[i] = static_cast<double>(gradient[i]) * gradient[i];
      for (size_t width = 8; width > 0; width /= 2)
        for (size_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
      sum = lanes[0];
      const Real mean = static_cast<Real>(sum / static_cast<double>(gradient.size()));
      accumulator_ = accumulator_ + mean;
    }
    for (size_t i = 0; i < gradient.size(); ++i) {
      Coordinate<Real>& c = coordinates_[i];
      const Real g = gradient[i], square = g * g;
      if (kind_ == "sgd") {
        Step(c, decay, r * g);
      } else if (kind_ == "adagrad") {
        c.v = c.v + square;
        const Real root = std::sqrt(c.v), below = root + eps, above = r * g;
        Step(c, decay, above / below);
      } else if (kind_ == "rowwise_adagrad") {
        const Real root = std::sqrt(accumulator_), below = root + eps, above = r * g;
        Step(c, decay, above / below);
      } else if (kind_ == "adam") {
        const double beta1 = config_.beta1() == 0 ? 0.9 : config_.beta1(), beta2 = config_.beta2() == 0 ? 0.999 : config_.beta2();
        const Real step = static_cast<Real>(rate / (1 - Power(beta1)));
        const Real correction = static_cast<Real>(1 / std::sqrt(1 - Power(beta2)));
        const Real m1 = static_cast<Real>(beta1) * c.m, m2 = static_cast<Real>(1 - beta1) * g;
        c.m = m1 + m2;
        const Real v1 = static_cast<Real>(beta2) * c.v, v2 = static_cast<Real>(1 - beta2) * square;
        c.v = v1 + v2;
        const Real root = std::sqrt(c.v), scaled = root * correction, below = scaled + eps, direction = c.m / below;
        Step(c, decay, step * direction);
      } else if (rate > 0) {
        const Real grown = c.v + square, root = std::sqrt(grown), old_root = std::sqrt(c.v);
        const Real difference = root - old_root, sigma = difference / r, product = sigma * c.x, change = g - product;
        c.m = c.m + change;
        c.v = grown;
        if (std::abs(c.m) <= L1()) {
          c.x = 0;
        } else {
          const Real above = (c.m < 0 ? -L1() : L1()) - c.m;
          const Real numerator = Beta() + root, quotient = numerator / r, below = quotient + L2();
          c.x = above / below;
        }
      }
    }
  }

  std::vector<Real> Values() const {
    std::vector<Real> values;
    for (const auto& c : coordinates_) values.push_back(c.x);
    return values;
  }
  std::vector<Real> State() const {
    std::vector<Real> state;
    if (kind_ == "rowwise_adagrad") return {accumulator_};
    if (kind_ == "sgd") return {};
    if (kind_ != "adagrad")
      for (const auto& c : coordinates_) state.push_back(c.m);
    for (const auto& c : coordinates_) state.push_back(c.v);
    if (kind_ == "adam") state.push_back(static_cast<Real>(t_));
    return state;
  }

 private:
  static void Step(Coordinate<Real>& c, Real decay, Real change) {
    const Real decayed = decay * c.x;
    c.x = decayed - change;
  }
  Real L1() const { return static_cast<Real>(config_.l1()); }
  Real L2() const { return static_cast<Real>(config_.l2()); }
  Real Beta() const { return static_cast<Real>(config_.beta() == 0 ? 1.0 : config_.beta()); }
  double Power(double base) const {   // by squaring, lowest bit first, as the header says
    double result = 1, square = base;
    for (int e = t_; e > 0; e /= 2) {
      if (e % 2 == 1) result = result * square;
      square = square * square;
    }
    return result;
  }

  const proto::TableOptimizer config_;
  const std::string kind_;
  int t_ = 0;
  Real accumulator_ = 0;
  std::vector<Coordinate<Real>> coordinates_;
};

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
      const uint32_t dim = 1 + random.Below(16);
      std::vector<float> values(dim), state(optimizer.StateFloats(dim), 77.0f);
      for (float& v : values) v = random.Chance(0.2) ? 0.0f : random.Uniform() - 0.5f;
      float rate = 0.01f + random.Uniform() * 0.3f;
      optimizer.Start(optimizer.BeginRound(rate), values, state);
      SlowRow<float> exact(config, values, rate);
      SlowRow<double> real(config, values, rate);
      for (int step = 0; step < 30; ++step) {
        if (step % 10 == 9 && kind != "ftrl") rate *= 0.7f;
        std::vector<float> gradient(dim);
        for (float& g : gradient) g = random.Chance(0.1) ? 0.0f : (random.Uniform() - 0.5f) * 2;
        optimizer.Apply(optimizer.BeginRound(rate), values, gradient, state);
        exact.Apply(gradient, rate);
        real.Apply(gradient, rate);
        ASSERT_EQ(values, exact.Values()) << kind << " " << seed << " " << step;
        ASSERT_EQ(state, exact.State()) << kind << " " << seed << " " << step;
        for (uint32_t i = 0; i < dim; ++i)
          ASSERT_NEAR(values[i], real.Values()[i], 2e-4 * (1 + std::abs(real.Values()[i]))) << kind << " " << seed << " " << step;
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
  for (const float v : x) EXPECT_EQ(std::bit_cast<uint32_t>(v), 0u);   // +0
  optimizer.Apply(round, x, std::vector<float>{0.75f, -0.25f}, state);   // z = 1.25 and -1: at the bound it is still 0
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
    for (const double bad : {-1.0, 1e30, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      proto::TableOptimizer config = Config("ftrl");
      set(&config, bad);
      const auto optimizer = RowOptimizer::Create(config);
      EXPECT_EQ(optimizer.status().code(), absl::StatusCode::kInvalidArgument) << field << " " << bad;
      EXPECT_NE(optimizer.status().message().find("table.optimizer." + field + " is"), std::string::npos) << optimizer.status();
    }
  proto::TableOptimizer l1 = Config("adam");
  l1.set_l1(0.5);
  EXPECT_NE(RowOptimizer::Create(l1).status().message().find("only ftrl"), std::string::npos);
}

}  // namespace
}  // namespace sluice::server
