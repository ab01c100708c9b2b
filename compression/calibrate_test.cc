#include "compression/calibrate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "compression/measure.h"
#include "compression/test_vectors.h"

namespace sluice::compression {
namespace {

TEST(MagnitudeHistogram, PercentilesAreThoseOfTheSortedMagnitudes) {
  for (const int shape : {kGaussian, kNegative, kMixed, kHuge, kTies, kOneSpike}) {
    std::vector<float> values = MakeVector(shape, 10000, 1);
    MagnitudeHistogram whole, first, second;
    whole.Add(values);
    first.Add(std::span(values).first(3000));
    second.Add(std::span(values).subspan(3000));
    first.Merge(second);
    std::ranges::sort(values, std::less<>(), [](float v) { return std::fabs(v); });
    for (const double share : {0.5, 0.9, 0.999, 1.0}) {
      const double exact = std::fabs(values[static_cast<size_t>(share * 10000) - 1]);
      if (exact < 1e-37) continue;
      EXPECT_GE(whole.Percentile(share), exact * (1 - 1e-6)) << shape << " " << share;
      EXPECT_LE(whole.Percentile(share), exact * 1.07) << shape << " " << share;
      EXPECT_EQ(whole.Percentile(share), first.Percentile(share));
    }
  }
}

TEST(MagnitudeHistogram, NothingAndNonsense) {
  MagnitudeHistogram histogram;
  EXPECT_EQ(histogram.Percentile(1), 0);
  EXPECT_EQ(histogram.LeastError(127), 0);
  histogram.Add(MakeVector(kZeros, 100, 1));
  const float odd[] = {std::numeric_limits<float>::infinity(), std::nanf(""), -std::numeric_limits<float>::infinity()};
  histogram.Add(odd);
  EXPECT_EQ(histogram.count(), 100u);
  EXPECT_EQ(histogram.LeastError(7), 0);
}

// The encoder itself is asked, with every power of two.
TEST(MagnitudeHistogram, TheLeastErrorIsTheEncoders) {
  for (const auto& [name, levels] : {std::pair<std::string, int>{"int8", 127}, {"int4", 7}}) {
    for (const int shape : {kGaussian, kNegative, kOneSpike}) {
      const std::vector<float> values = MakeVector(shape, 20000, 3);
      MagnitudeHistogram histogram;
      histogram.Add(values);
      const auto error_of = [&](double range) {
        const auto codec = Named(absl::StrFormat("%s:static:%.17g", name, range));
        std::vector<std::byte> bytes(codec->MaxEncodedBytes(values.size()));
        const EncodeInput input{.gradient = values, .random = kTestKey};
        EXPECT_TRUE(codec->Encode(input, bytes).ok());
        return MeasureEncoding(input, *codec, bytes).error;
      };
      double best = HUGE_VAL;
      for (int exponent = -40; exponent < 30; ++exponent) best = std::min(best, error_of(levels * std::ldexp(1.0, exponent)));
      EXPECT_LE(error_of(histogram.LeastError(levels)), best * 1.02) << name << " shape " << shape;
    }
  }
}

TEST(StaticRange, ScaleIsThePowerOfTwoThatHoldsTheRange) {
  const auto scale_of = [](const std::string& name) {
    const auto codec = Named(name);
    const float zero[1] = {0};
    std::vector<std::byte> bytes(codec->MaxEncodedBytes(1));
    EXPECT_TRUE(codec->Encode({.gradient = zero}, bytes).ok());
    return LoadLe<float>(bytes.data());
  };
  EXPECT_EQ(scale_of("int8:static:127"), 1);
  EXPECT_EQ(scale_of("int8:static:127.5"), 2);
  EXPECT_EQ(scale_of("int8:static:1"), 0x1p-6f);
  EXPECT_EQ(scale_of("int8:static:1.27e+2"), 1);   // no chain
  EXPECT_EQ(scale_of("int4:static:7"), 1);
  EXPECT_EQ(scale_of("int4:static:0.01"), 0x1p-9f);
  EXPECT_EQ(scale_of("int8:static:7.888609052210118e-31"), 0x1p-106f);
  for (const char* bad : {"int8:static:", "int8:static:0", "int8:static:-1", "int8:static:nan", "int8:static:inf", "int4:static:1e40",
                          "int4:statik:1"})
    EXPECT_FALSE(MakeCodec(bad).ok()) << bad;
}

TEST(StaticRange, WhatIsBeyondStaysInTheResidual) {
  const auto codec = Named("int8:static:127");
  EXPECT_TRUE(codec->biased());
  const std::vector<float> values = {127, 128, -500, 0.5f, -0.75f, 3e38f};
  const Encoded encoded = Encode(*codec, values, {}, 1);
  EXPECT_EQ(Decode(*codec, encoded.bytes, 6), (std::vector<float>{127, 127, -127, 0, -1, 127}));
  EXPECT_EQ(encoded.residual, (std::vector<float>{0, 1, -373, 0.5f, 0.25f, 3e38f - 127}));
}

// Sums in the compressed domain: codes added as integers, then scaled once, are the bits of decoding and adding in any order.
TEST(StaticRange, SumsOfManyWorkersAreExactInAnyOrder) {
  for (const std::string name : {"int8:static:0.03", "int4:static:0.03"}) {
    const auto codec = Named(name);
    const size_t n = 300, workers = 200;
    std::vector<std::vector<float>> decoded;
    std::vector<int64_t> codes(n, 0);
    float scale = 0;
    for (size_t w = 0; w < workers; ++w) {
      const Encoded encoded = Encode(*codec, MakeVector(kGaussian, n, w), {}, 1);
      scale = LoadLe<float>(encoded.bytes.data());
      decoded.push_back(Decode(*codec, encoded.bytes, n));
      for (size_t i = 0; i < n; ++i) codes[i] += std::llround(double{decoded.back()[i]} / double{scale});
    }
    PhiloxRandom random(9);
    for (int order = 0; order < 5; ++order) {
      for (size_t w = workers - 1; w > 0; --w) std::swap(decoded[w], decoded[random.Below(static_cast<uint32_t>(w + 1))]);
      std::vector<float> sum(n, 0.0f);
      for (const auto& values : decoded)
        for (size_t i = 0; i < n; ++i) sum[i] += values[i];
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], static_cast<float>(codes[i]) * scale) << name;
    }
  }
}

}  // namespace
}  // namespace sluice::compression
