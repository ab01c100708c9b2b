// Error feedback over many rounds: what was sent and what is left is what came in.
#include <cmath>

#include <gtest/gtest.h>

#include "base/philox.h"
#include "compression/codec.h"
#include "compression/test_vectors.h"

namespace sluice::compression {
namespace {

class Feedback : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Codec> codec_ = Named(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Names, Feedback, testing::Values("fp16", "bf16", "int8", "topk:0.01", "topk:0.001", "int8:stochastic", "int4",
                                         "int4:stochastic", "onebit", "mxfp8", "nvfp4", "randk:0.01", "threshold:0.001",
                                         "topk:0.01+int8", "topk:0.01+onebit", "randk:0.05+int4", "threshold:0.001+bf16",
                                         "lowrank:2@30", "lowrank:2+fp16@50"),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(Feedback, SentPlusResidualIsTheSumOfGradients) {
  for (const int shape : {kGaussian, kNegative, kOneSpike, kTies, kBeyondFp16}) {
    const size_t n = 1500, rounds = 60;
    std::vector<float> residual(n, 0.0f);
    std::vector<double> in(n, 0.0), sent(n, 0.0);
    double scale = 0;
    for (size_t t = 0; t < rounds; ++t) {
      const std::vector<float> g = MakeVector(shape, n, 100 + t);
      const Encoded encoded = Encode(*codec_, g, residual, 1, t);
      const std::vector<float> decoded = Decode(*codec_, encoded.bytes, n);
      for (size_t i = 0; i < n; ++i) {
        in[i] += g[i];
        sent[i] += decoded[i];
        scale = std::max(scale, std::abs(double{g[i]}));
      }
      residual = encoded.residual;
    }
    // Roundings of g + e alone are lost: half a unit of fp32 of at most rounds * scale, each round.
    const double tolerance = static_cast<double>(rounds * rounds) * scale * 0x1p-24;
    for (size_t i = 0; i < n; ++i)
      ASSERT_NEAR(sent[i] + residual[i], in[i], tolerance) << "shape " << shape << " at " << i;
  }
}

// Halving the rate doubles a residual in gradient units, so that rate * residual, what is owed to the parameters,
// stays.
TEST_P(Feedback, ResidualScaleCarriesTheDebtAcrossRates) {
  const size_t n = 1500;
  const float old_rate = 0.1f, new_rate = 0.05f;
  const std::vector<float> g0 = MakeVector(kGaussian, n, 1), g1 = MakeVector(kGaussian, n, 2);
  const Encoded first = Encode(*codec_, g0, {}, 1);
  const Encoded second = Encode(*codec_, g1, first.residual, old_rate / new_rate);
  const std::vector<float> sent0 = Decode(*codec_, first.bytes, n), sent1 = Decode(*codec_, second.bytes, n);
  for (size_t i = 0; i < n; ++i) {
    const double owed = double{old_rate} * g0[i] + double{new_rate} * g1[i];
    const double paid = double{old_rate} * sent0[i] + double{new_rate} * (double{sent1[i]} + second.residual[i]);
    ASSERT_NEAR(paid, owed, 1e-9);
  }
}

// The scale is applied once: encoding with scale s equals encoding the residual that was scaled before.
TEST_P(Feedback, ResidualScaleIsUsedOnce) {
  const size_t n = 1500;
  const std::vector<float> g = MakeVector(kGaussian, n, 3), e = MakeVector(kMixed, n, 4);
  std::vector<float> scaled = e;
  for (float& v : scaled) v *= 0.3f;
  const Encoded a = Encode(*codec_, g, e, 0.3f), b = Encode(*codec_, g, scaled, 1);
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.residual, b.residual);
}

// A skipped step keeps the old residual: encoding reads it and never writes it.
TEST_P(Feedback, TheOldResidualIsUntouched) {
  const size_t n = 1500;
  const std::vector<float> e = MakeVector(kGaussian, n, 5);
  const std::vector<float> before = e;
  Encode(*codec_, MakeVector(kGaussian, n, 6), e, 2);
  EXPECT_EQ(e, before);
}

// A constant gradient that a codec cannot see beside a large one gets through in the end.
TEST_P(Feedback, SmallValuesAreNotLostForEver) {
  const size_t n = 1000, rounds = 3000;
  std::vector<float> g(n, 1e-6f), residual(n, 0.0f);
  g[0] = 1e-3f;   // 1e-6 is below half a step of int8 beside it, and never among the largest
  std::vector<double> sent(n, 0.0);
  for (size_t t = 0; t < rounds; ++t) {
    const Encoded encoded = Encode(*codec_, g, residual, 1, t);
    const std::vector<float> decoded = Decode(*codec_, encoded.bytes, n);
    for (size_t i = 0; i < n; ++i) sent[i] += decoded[i];
    residual = encoded.residual;
  }
  double total = 0;
  for (size_t i = 1; i < n; ++i) total += sent[i];
  EXPECT_GT(total, 0.25 * 1e-6 * static_cast<double>((n - 1) * rounds));
}

// ||e||^2 stays below the bound of Karimireddy et al. 2019, lemma 3: 4 (1-d) / d^2 * max ||g||^2 with d = k/n.
TEST(TopKFeedback, ResidualStaysBounded) {
  const size_t n = 500;
  const std::unique_ptr<Codec> codec = Named("topk:0.1");
  std::vector<float> residual(n, 0.0f);
  double largest = 0;
  for (size_t t = 0; t < 300; ++t) {
    const std::vector<float> g = MakeVector(kGaussian, n, 1000 + t);
    residual = Encode(*codec, g, residual, 1).residual;
    double norm = 0, error = 0;
    for (size_t i = 0; i < n; ++i) {
      norm += std::pow(double{g[i]}, 2);
      error += std::pow(double{residual[i]}, 2);
    }
    largest = std::max(largest, norm);
    ASSERT_LE(error, 4 * 0.9 / 0.01 * largest);
  }
}

// Two workers that each send their top 1 %, against the plain mean: x ends where SGD ends on a quadratic.
TEST(TopKFeedback, SgdReachesTheMinimumThatItMissesWithout) {
  const size_t n = 200;
  const std::unique_ptr<Codec> codec = Named("topk:0.005");   // one element of 200
  const std::vector<float> target = MakeVector(kGaussian, n, 7);
  const auto train = [&](bool feedback) {
    std::vector<float> x(n, 0.0f);
    std::vector<std::vector<float>> residual(2, std::vector<float>(n, 0.0f));
    for (int t = 0; t < 6000; ++t) {
      std::vector<float> sum(n, 0.0f);
      for (size_t worker = 0; worker < 2; ++worker) {
        // Each worker pulls an element of its own far away, in opposite directions: together they cancel.
        std::vector<float> g(n);
        for (size_t i = 0; i < n; ++i) g[i] = x[i] - target[i];
        g[0] += worker == 0 ? 0.5f : -0.5f;
        const Encoded encoded = Encode(*codec, g, feedback ? residual[worker] : std::vector<float>(n, 0.0f), 1);
        residual[worker] = encoded.residual;
        EXPECT_TRUE(codec->DecodeAdd(encoded.bytes, sum).ok());
      }
      for (size_t i = 0; i < n; ++i) x[i] -= 0.002f * (sum[i] / 2);
    }
    double distance = 0;
    for (size_t i = 0; i < n; ++i) distance += std::pow(double{x[i]} - target[i], 2);
    return std::sqrt(distance / n);
  };
  EXPECT_GT(train(false), 0.009);   // only element 0 ever moves
  EXPECT_LT(train(true), 0.002);
}

}  // namespace
}  // namespace sluice::compression
