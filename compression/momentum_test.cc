#include "compression/momentum.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "compression/measure.h"
#include "compression/test_vectors.h"

namespace sluice::compression {
namespace {

// A sender: residual and velocity from round to round.
struct Sender {
  std::unique_ptr<Codec> codec;
  std::vector<float> residual = {};
  std::vector<std::byte> state = {};

  std::vector<float> Send(const std::vector<float>& gradient, uint64_t round, bool skipped = false) {
    const size_t n = gradient.size();
    std::vector<float> next(n);
    std::vector<std::byte> bytes(codec->MaxEncodedBytes(n)), state_next(codec->StateBytes(n));
    RandomKey key = kTestKey;
    key.round = round;
    const auto size = codec->Encode({.gradient = gradient, .residual = residual, .residual_out = next, .random = key,
                                     .state = state, .state_out = state_next}, bytes);
    EXPECT_TRUE(size.ok()) << size.status();
    bytes.resize(size.value_or(0));
    std::vector<float> sent = Decode(*codec, bytes, n);
    if (skipped) return sent;
    residual.swap(next);
    state.swap(state_next);
    return sent;
  }
  float Velocity(size_t i) const {
    float value = 0;
    std::memcpy(&value, state.data() + i * sizeof(float), sizeof(float));
    return value;
  }
};

Sender Make(const std::string& codec, float momentum) { return {MakeMomentumCorrected(Named(codec), momentum)}; }

TEST(Momentum, WithACodecThatSendsAllItIsTheOptimizersMomentum) {
  const size_t n = 300;
  Sender sender = Make("none", 0.9f);
  std::vector<float> velocity(n, 0.0f);
  for (uint64_t t = 0; t < 20; ++t) {
    const std::vector<float> g = MakeVector(kGaussian, n, t);
    for (size_t i = 0; i < n; ++i) velocity[i] = 0.9f * velocity[i] + g[i];
    EXPECT_EQ(sender.Send(g, t), velocity);
  }
}

// Section 3.2 of the paper: what is sent starts anew, what waits goes on gathering speed. The slow reference follows
// algorithm 4 element by element, with the codec as a black box.
TEST(Momentum, FollowsThePapersAlgorithm) {
  for (const char* name : {"topk:0.02", "randk:0.1", "threshold:0.03", "topk:0.05+int8", "threshold:auto:0.01"}) {
    const size_t n = 500;
    const float m = 0.9f;
    Sender sender = Make(name, m);
    Sender plain = {Named(name)};   // encodes p alone: velocity as its gradient, residual as its residual
    std::vector<float> velocity(n, 0.0f);
    for (uint64_t t = 0; t < 60; ++t) {
      const std::vector<float> g = MakeVector(t % 7 == 3 ? kTies : kGaussian, n, 100 + t);
      for (size_t i = 0; i < n; ++i) velocity[i] = m * velocity[i] + g[i];
      const std::vector<float> sent = plain.Send(velocity, t);
      ASSERT_EQ(sender.Send(g, t), sent) << name << " round " << t;
      for (size_t i = 0; i < n; ++i)
        if (sent[i] != 0) velocity[i] = 0;
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(sender.Velocity(i), velocity[i]) << name << " round " << t << " element " << i;
      ASSERT_EQ(sender.residual, plain.residual);
    }
  }
}

TEST(Momentum, ASkippedStepKeepsVelocityAndResidual) {
  const size_t n = 400;
  Sender skipping = Make("topk:0.05", 0.9f), straight = Make("topk:0.05", 0.9f);
  for (uint64_t t = 0; t < 20; ++t) {
    const std::vector<float> g = MakeVector(kGaussian, n, t);
    if (t % 3 == 1) skipping.Send(MakeVector(kBeyondFp16, n, 1000 + t), t, /*skipped=*/true);
    EXPECT_EQ(skipping.Send(g, t), straight.Send(g, t));
  }
  EXPECT_EQ(skipping.residual, straight.residual);
  EXPECT_EQ(skipping.state, straight.state);
}

TEST(Momentum, FiniteGradientsStayFiniteWhateverTheStateSays) {
  const size_t n = 257;
  Sender sender = Make("topk:0.1", 0.999f);
  sender.state.assign(sender.codec->StateBytes(n), std::byte{0xFF});   // NaNs
  for (uint64_t t = 0; t < 50; ++t) {
    const std::vector<float> sent = sender.Send(MakeVector(kHuge, n, 5), t);
    for (size_t i = 0; i < n; ++i) ASSERT_TRUE(std::isfinite(sent[i]) && std::isfinite(sender.Velocity(i)));
    for (const float e : sender.residual) ASSERT_TRUE(std::isfinite(e));
  }
}

TEST(Momentum, AStateThatLiesBadlyIsTheSame) {
  const size_t n = 100;
  const Sender sender = Make("topk:0.1", 0.5f);
  const std::vector<float> g = MakeVector(kGaussian, n, 1);
  std::vector<float> residual(n);
  std::vector<std::byte> out(sender.codec->MaxEncodedBytes(n)), even(sender.codec->StateBytes(n)), odd(even.size() + 1);
  const MutableBytes odd_state = MutableBytes(odd).subspan(1);
  const auto encode = [&](MutableBytes state) {
    return sender.codec->Encode({.gradient = g, .residual_out = residual, .random = kTestKey, .state_out = state}, out);
  };
  ASSERT_TRUE(encode(even).ok());
  ASSERT_TRUE(encode(odd_state).ok());
  EXPECT_TRUE(std::equal(even.begin(), even.end(), odd_state.begin()));
}

// p is velocity and residual, not gradient and residual.
TEST(Measure, UnderMomentumCorrectionTheErrorIsOfWhatWasEncoded) {
  const auto codec = MakeMomentumCorrected(Named("int8"), 0.9f);
  const size_t n = 512;
  const std::vector<float> zero(n, 0.0f);
  std::vector<float> velocity = MakeVector(kGaussian, n, 1), next(n);
  std::vector<std::byte> bytes(codec->MaxEncodedBytes(n)), state_out(codec->StateBytes(n));
  const EncodeInput input{.gradient = zero, .residual_out = next, .random = kTestKey, .state = AsBytes(velocity),
                          .state_out = state_out};
  ASSERT_TRUE(codec->Encode(input, bytes).ok());
  const EncodingNorms norms = MeasureEncoding(input, *codec, bytes);
  EXPECT_EQ(norms.gradient, 0);
  EXPECT_NEAR(norms.point, 0.81 * SquaredNorm(velocity), 1e-3 * norms.point);
  EXPECT_LT(norms.error, 1e-3 * norms.point);
}

TEST(Measure, WhatKeepsNoResidualIsMeasuredAgainstTheVelocity) {
  const size_t n = 512;
  const std::vector<float> g = MakeVector(kGaussian, n, 1), velocity = MakeVector(kGaussian, n, 2);
  for (const auto& [name, most] : {std::pair<std::string, double>{"none", 0}, {"qsgd:127", 0.05}}) {
    const auto codec = MakeMomentumCorrected(Named(name), 0.9f);
    std::vector<std::byte> bytes(codec->MaxEncodedBytes(n)), state_out(codec->StateBytes(n));
    const EncodeInput input{.gradient = g, .random = kTestKey, .state = AsBytes(velocity), .state_out = state_out};
    ASSERT_TRUE(codec->Encode(input, bytes).ok());
    const EncodingNorms norms = MeasureEncoding(input, *codec, bytes);
    EXPECT_LE(norms.error, most * norms.point) << name;
  }
}

TEST(Measure, NormsAreThoseOfTheirDefinition) {
  for (const char* name : {"int8", "topk:0.05", "terngrad", "none"}) {
    const auto codec = Named(name);
    const size_t n = 1003;
    const std::vector<float> g = MakeVector(kGaussian, n, 1), e = MakeVector(kGaussian, n, 2);
    std::vector<float> next(n);
    std::vector<std::byte> bytes(codec->MaxEncodedBytes(n));
    EncodeInput input{.gradient = g, .residual = e, .residual_scale = 0.5f, .random = kTestKey};
    for (const bool kept : {false, true}) {
      input.residual_out = kept ? std::span<float>(next) : std::span<float>();
      const auto size = codec->Encode(input, bytes);
      ASSERT_TRUE(size.ok());
      const ConstBytes encoded = ConstBytes(bytes).first(*size);
      const std::vector<float> sent = Decode(*codec, encoded, n);
      double gradient = 0, point = 0, error = 0;
      for (size_t i = 0; i < n; ++i) {
        const double p = g[i] + 0.5f * e[i];
        gradient += double{g[i]} * g[i];
        point += p * p;
        error += (p - sent[i]) * (p - sent[i]);
      }
      const EncodingNorms norms = MeasureEncoding(input, *codec, encoded);
      EXPECT_NEAR(norms.gradient, gradient, 1e-9 * gradient);
      EXPECT_NEAR(norms.point, point, 1e-6 * point);
      EXPECT_NEAR(norms.error, error, 1e-6 * point) << name;
      EXPECT_EQ(norms.residual, kept ? norms.error : 0);
    }
  }
}

}  // namespace
}  // namespace sluice::compression
