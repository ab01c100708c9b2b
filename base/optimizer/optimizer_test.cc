#include "base/optimizer/optimizer.h"

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/fixed_sum.h"
#include "base/philox.h"

namespace sluice {
namespace {

const char* const kKinds[] = {"none", "sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", "lamb"};

proto::OptimizerConfig Config(const std::string& kind) {
  proto::OptimizerConfig config;
  config.set_kind(kind);
  return config;
}

Optimizer Make(const proto::OptimizerConfig& config, proto::TensorKind kind = proto::TENSOR_WEIGHT) {
  auto optimizer = Optimizer::Create(config, kind);
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  return *optimizer;
}

// Mixed magnitudes, exact zeros and denormals.
std::vector<float> RandomVector(PhiloxRandom& random, size_t n) {
  std::vector<float> values(n);
  for (float& v : values) {
    v = (random.Uniform() - 0.5f) * std::ldexp(1.0f, static_cast<int>(random.Below(20)) - 12);
    if (random.Chance(0.05)) v = 0;
    if (random.Chance(0.02)) v = 1e-41f;
  }
  return values;
}

// The formulas of the header for one element, in T: float checks bits, double checks that fp32 is close to the truth.
template <typename T>
struct Reference {
  proto::OptimizerConfig config;
  T mu, b1, b2, eps, wd;

  explicit Reference(const proto::OptimizerConfig& c)
      : config(c),
        mu(static_cast<T>(c.momentum() == 0 ? 0.9 : c.momentum())),
        b1(static_cast<T>(c.beta1() == 0 ? 0.9 : c.beta1())),
        b2(static_cast<T>(c.beta2() == 0 ? 0.999 : c.beta2())),
        eps(static_cast<T>(c.epsilon() == 0 ? 1e-8 : c.epsilon())),
        wd(static_cast<T>(c.weight_decay())) {}

  double Beta1() const { return config.beta1() == 0 ? 0.9 : config.beta1(); }
  double Beta2() const { return config.beta2() == 0 ? 0.999 : config.beta2(); }
  static double Power(double base, uint64_t exponent) {   // squaring from the lowest bit, as documented
    double result = 1;
    for (; exponent; exponent /= 2, base *= base)
      if (exponent % 2) result *= base;
    return result;
  }

  T LambUpdate(T x, T g, T* m, T* v, uint64_t t) const {
    const T h = static_cast<T>(1.0 / (1.0 - Power(Beta1(), t)));
    const T c = static_cast<T>(1.0 / std::sqrt(1.0 - Power(Beta2(), t)));
    *m = b1 * *m + static_cast<T>(1.0 - Beta1()) * g;
    *v = b2 * *v + static_cast<T>(1.0 - Beta2()) * (g * g);
    return (*m * h) / (std::sqrt(*v) * c + eps) + wd * x;
  }

  void Step(T* x, T gradient, T* m, T* v, const ApplyParams& p) const {
    const std::string& kind = config.kind();
    const T r = static_cast<T>(p.rate);
    const T d = static_cast<T>(1.0 - static_cast<double>(p.rate) * config.weight_decay());
    T g = static_cast<T>(p.scale) * gradient;
    const T step_size = static_cast<T>(p.rate / (1.0 - Power(Beta1(), p.step)));
    const T c = static_cast<T>(1.0 / std::sqrt(1.0 - Power(Beta2(), p.step)));
    if (kind == "none") {
      *x = g;
    } else if (kind == "sgd") {
      *x = d * *x - r * g;
    } else if (kind == "momentum") {
      *m = mu * *m + g;
      *x = d * *x - r * *m;
    } else if (kind == "nesterov") {
      *m = mu * *m + g;
      *x = d * *x - r * (g + mu * *m);
    } else if (kind == "adagrad") {
      g = g + wd * *x;
      *m = *m + g * g;
      *x = *x - (r * g) / (std::sqrt(*m) + eps);
    } else if (kind == "adam" || kind == "adamw") {
      if (kind == "adam") g = g + wd * *x;
      *m = b1 * *m + static_cast<T>(1.0 - Beta1()) * g;
      *v = b2 * *v + static_cast<T>(1.0 - Beta2()) * (g * g);
      const T start = kind == "adam" ? *x : d * *x;
      *x = start - step_size * (*m / (std::sqrt(*v) * c + eps));
    } else if (kind == "lamb") {
      const T u = LambUpdate(*x, g, m, v, p.step);
      *x = *x - static_cast<T>(p.rate * p.trust) * u;
    }
  }
};

TEST(Optimizer, WritesTheBitsOfTheScalarFormulas) {
  for (const char* kind : kKinds) {
    for (const size_t n : {0, 1, 7, 8, 33, 5000}) {
      PhiloxRandom random(1, n);
      proto::OptimizerConfig config = Config(kind);
      config.set_weight_decay(0.01);
      const Optimizer optimizer = Make(config);
      const Reference<float> reference(config);
      std::vector<float> x = RandomVector(random, n), state(optimizer.StateFloats(n), 0.0f);
      std::vector<float> rx = x, rm(n), rv(n);
      for (uint64_t t = 1; t <= 5; ++t) {
        const std::vector<float> g = RandomVector(random, n);
        const ApplyParams params{.step = t, .rate = 0.05f, .scale = t == 3 ? 0.3 : 1.0, .trust = 0.7};
        optimizer.Apply(x, g, state, params);
        for (size_t i = 0; i < n; ++i) reference.Step(&rx[i], g[i], &rm[i], &rv[i], params);
        for (size_t i = 0; i < n; ++i)
          ASSERT_EQ(std::bit_cast<uint32_t>(x[i]), std::bit_cast<uint32_t>(rx[i]))
              << kind << " step " << t << " at " << i;
      }
      for (size_t i = 0; i < n && optimizer.StateVectors() > 0; ++i) ASSERT_EQ(state[i], rm[i]) << kind;
      for (size_t i = 0; i < n && optimizer.StateVectors() > 1; ++i) ASSERT_EQ(state[n + i], rv[i]) << kind;
    }
  }
}

TEST(Optimizer, StaysCloseToFp64) {
  for (const char* kind : kKinds) {
    proto::OptimizerConfig config = Config(kind);
    config.set_weight_decay(0.1);
    const Optimizer optimizer = Make(config);
    const Reference<double> reference(config);
    PhiloxRandom random(2);
    const size_t n = 64;
    std::vector<float> x(n), state(optimizer.StateFloats(n), 0.0f);
    for (float& v : x) v = random.Uniform() - 0.5f;
    std::vector<double> rx(x.begin(), x.end()), rm(n), rv(n);
    for (uint64_t t = 1; t <= 50; ++t) {
      std::vector<float> g(n);
      for (float& v : g) v = random.Uniform() - 0.5f;
      const ApplyParams params{.step = t, .rate = 0.01f};
      optimizer.Apply(x, g, state, params);
      for (size_t i = 0; i < n; ++i) reference.Step(&rx[i], g[i], &rm[i], &rv[i], params);
    }
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(x[i], rx[i], 2e-5) << kind;
  }
}

// Slices of a tensor are partitions: cutting it must not change a bit.
TEST(Optimizer, CutsDoNotMatter) {
  for (const char* kind : kKinds) {
    PhiloxRandom random(3);
    const size_t n = 1000, cut = 333;
    const Optimizer optimizer = Make(Config(kind));
    const std::vector<float> x0 = RandomVector(random, n), g = RandomVector(random, n);
    const ApplyParams params{.step = 4, .rate = 0.1f};
    std::vector<float> whole = x0, state(optimizer.StateFloats(n));
    optimizer.Apply(whole, g, state, params);
    std::vector<float> parts = x0, left(optimizer.StateFloats(cut)), right(optimizer.StateFloats(n - cut));
    optimizer.Apply(std::span(parts).first(cut), std::span(g).first(cut), left, params);
    optimizer.Apply(std::span(parts).subspan(cut), std::span(g).subspan(cut), right, params);
    EXPECT_EQ(whole, parts) << kind;
    std::vector<float> pieces = x0, one(optimizer.StateFloats(n));
    for (const size_t first : {cut, size_t{0}}) {
      optimizer.Apply(pieces, std::span(g).subspan(first, first == 0 ? cut : n - cut), one, params, first);
    }
    EXPECT_EQ(whole, pieces) << kind;
    EXPECT_EQ(state, one) << kind;
  }
}

TEST(Optimizer, AdamsFirstStepIsTheRate) {
  const Optimizer optimizer = Make(Config("adam"));
  std::vector<float> x = {1, 1, 1}, state(6);
  optimizer.Apply(x, std::vector<float>{3, -0.01f, 0}, state, {.step = 1, .rate = 0.1f});
  EXPECT_NEAR(x[0], 0.9, 1e-6);
  EXPECT_NEAR(x[1], 1.1, 1e-6);
  EXPECT_EQ(x[2], 1.0f);   // 0 / (0 + eps)
}

TEST(Optimizer, NormsHaveTheBitsOfTheUpdateAndChangeNothing) {
  proto::OptimizerConfig config = Config("lamb");
  config.set_weight_decay(0.01);
  const Optimizer optimizer = Make(config);
  const Reference<float> reference(config);
  for (const size_t n : {1, 100, 4096, 4097, 10000}) {
    PhiloxRandom random(4, n);
    const std::vector<float> x = RandomVector(random, n), g = RandomVector(random, n);
    std::vector<float> state = RandomVector(random, 2 * n);
    for (size_t i = 0; i < n; ++i) state[n + i] = std::abs(state[n + i]);
    const std::vector<float> before = state;
    const ApplyParams params{.step = 3, .rate = 0.1f, .scale = 0.5};
    const LayerNorms norms = optimizer.Norms(x, g, state, params);
    EXPECT_EQ(state, before);
    std::vector<float> update(n);
    for (size_t i = 0; i < n; ++i) {
      float m = state[i], v = state[n + i];
      update[i] = reference.LambUpdate(x[i], 0.5f * g[i], &m, &v, 3);
    }
    EXPECT_EQ(norms.parameters, SumOfSquares(x));
    EXPECT_EQ(norms.update, SumOfSquares(update));
  }
}

TEST(Optimizer, LambMovesByTheRateTimesTheNormOfTheParameters) {
  const Optimizer optimizer = Make(Config("lamb"));
  PhiloxRandom random(5);
  const size_t n = 500;
  const std::vector<float> g = RandomVector(random, n);
  std::vector<float> x = RandomVector(random, n), state(2 * n);
  const std::vector<float> before = x;
  ApplyParams params{.step = 1, .rate = 0.01f};
  params.trust = optimizer.TrustRatio(optimizer.Norms(x, g, state, params));
  optimizer.Apply(x, g, state, params);
  double moved = 0;
  for (size_t i = 0; i < n; ++i) moved += std::pow(static_cast<double>(x[i]) - before[i], 2);
  EXPECT_NEAR(std::sqrt(moved), 0.01 * std::sqrt(SumOfSquares(before)), 1e-6);
}

TEST(Optimizer, TrustIsOneWhereItHasNoMeaning) {
  const Optimizer lamb = Make(Config("lamb"));
  EXPECT_EQ(lamb.TrustRatio({.parameters = 4, .update = 16}), 0.5);
  EXPECT_EQ(lamb.TrustRatio({.parameters = 0, .update = 16}), 1.0);
  EXPECT_EQ(lamb.TrustRatio({.parameters = 4, .update = 0}), 1.0);
  EXPECT_EQ(lamb.TrustRatio({.parameters = NAN, .update = 1}), 1.0);
  EXPECT_EQ(lamb.TrustRatio({.parameters = 1, .update = INFINITY}), 1.0);
  EXPECT_EQ(Make(Config("lamb"), proto::TENSOR_BIAS).TrustRatio({.parameters = 4, .update = 16}), 1.0);
  EXPECT_EQ(Make(Config("adam")).TrustRatio({.parameters = 4, .update = 16}), 1.0);
}

TEST(Optimizer, BiasesAndNormsDoNotDecayUnlessAsked) {
  for (const char* kind : {"sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", "lamb"}) {
    proto::OptimizerConfig config = Config(kind);
    config.set_weight_decay(0.5);
    const auto decays = [&](proto::TensorKind tensor) {
      const Optimizer optimizer = Make(config, tensor);
      std::vector<float> x = {1.0f}, state(optimizer.StateFloats(1));
      optimizer.Apply(x, std::vector<float>{0.0f}, state, {.step = 1, .rate = 0.1f});
      return x[0] != 1.0f;
    };
    EXPECT_TRUE(decays(proto::TENSOR_WEIGHT)) << kind;
    EXPECT_FALSE(decays(proto::TENSOR_BIAS)) << kind;
    EXPECT_FALSE(decays(proto::TENSOR_NORM)) << kind;
    config.set_decay_all(true);
    EXPECT_TRUE(decays(proto::TENSOR_BIAS)) << kind;
  }
}

TEST(Optimizer, RefusesWhatCannotBe) {
  const auto error = [](const proto::OptimizerConfig& config) {
    return std::string(Optimizer::Create(config, proto::TENSOR_WEIGHT).status().message());
  };
  EXPECT_NE(error(Config("adamm")).find("nearest is \"adam\""), std::string::npos) << error(Config("adamm"));
  proto::OptimizerConfig config = Config("adam");
  config.set_beta2(1.0);
  EXPECT_NE(error(config).find("beta2 is 1"), std::string::npos) << error(config);
  config = Config("momentum");
  config.set_momentum(-0.1);
  EXPECT_NE(error(config).find("momentum"), std::string::npos);
  config = Config("adam");
  config.set_epsilon(NAN);
  EXPECT_NE(error(config).find("epsilon"), std::string::npos);
  config = Config("sgd");
  config.set_weight_decay(-1);
  EXPECT_NE(error(config).find("weight_decay"), std::string::npos);
  config = Config("sgd");
  config.set_clip_norm(INFINITY);
  EXPECT_NE(error(config).find("clip_norm"), std::string::npos);
  EXPECT_TRUE(Make(Config("")).none());
}

}  // namespace
}  // namespace sluice
