// The bytes of each codec against slow encoders (slow_encoders.h), golden bytes, and error bounds.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "base/philox.h"
#include "compression/codec.h"
#include "compression/half.h"
#include "compression/slow_encoders.h"
#include "compression/test_vectors.h"

namespace sluice::compression {
namespace {

TEST(CodecBytes, EqualTheSlowEncoders) {
  for (int shape = 0; shape < kShapes; ++shape) {
    for (const size_t n : kSizes) {
      const std::vector<float> g = MakeVector(shape, n, 11), e = MakeVector(shape, n, 12);
      std::vector<float> p(n);
      for (size_t i = 0; i < n; ++i) p[i] = Clamp(g[i] + 0.125f * e[i]);
      Bytes fp16, bf16;
      for (float v : p) Append(Fp16FromFloat(v), &fp16);
      for (float v : p) Append(Bf16FromFloat(v), &bf16);
      const auto bytes = [&](const char* name) { return Encode(*Named(name), g, e, 0.125f).bytes; };
      ASSERT_EQ(bytes("fp16"), fp16) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("bf16"), bf16) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("int8"), SlowInt8(p)) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("int8:stochastic"), SlowInt8Stochastic(p)) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("int4"), SlowInt4(p, false)) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("int4:stochastic"), SlowInt4(p, true)) << "shape " << shape << " n " << n;
      for (const int levels : {1, 2, 7, 127})
        ASSERT_EQ(bytes(("qsgd:" + std::to_string(levels)).c_str()), SlowQsgd(p, levels)) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("terngrad"), SlowQsgd(p, 1)) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("onebit"), SlowOneBit(p)) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("nvfp4"), SlowNvfp4(p)) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("mxfp8"), SlowMxfp8(p)) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("randk:0.01"), SlowSparse(p, Picks::kDrawn, 0.01, "fp16")) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("randk:0.3+int8"), SlowSparse(p, Picks::kDrawn, 0.3, "int8")) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("threshold:0.01"), SlowSparse(p, Picks::kThreshold, 0.01, "fp16")) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("threshold:1+none"), SlowSparse(p, Picks::kThreshold, 1, "none")) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("topk:0.05+int4:stochastic"), SlowSparse(p, Picks::kLargest, 0.05, "int4:stochastic"))
          << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("topk:0.5+onebit"), SlowSparse(p, Picks::kLargest, 0.5, "onebit")) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("topk:0.01"), SlowTopK(p, 0.01)) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("topk:0.2"), SlowTopK(p, 0.2)) << "shape " << shape << " n " << n;
      ASSERT_EQ(bytes("topk:1"), SlowTopK(p, 1)) << "shape " << shape << " n " << n;
    }
  }
}

// Worked examples of docs/codecs.md: these bytes never change.
TEST(CodecBytes, Golden) {
  EXPECT_EQ(EncodeBytes("none", {1.0f, -2.0f}), Hex("0000803F 000000C0"));
  EXPECT_EQ(EncodeBytes("fp16", {1.0f, -2.0f, 1e6f}), Hex("003C 00C0 FF7B"));
  EXPECT_EQ(EncodeBytes("bf16", {1.0f, -2.0f, 1e6f}), Hex("803F 00C0 7449"));
  EXPECT_EQ(EncodeBytes("int8", {127.0f, -63.5f, 0.5f, 1.5f}), Hex("0000803F 7F C0 00 02"));
  EXPECT_EQ(EncodeBytes("int4", {7.0f, -3.5f, 0.5f}), Hex("0000803F C7 00"));
  EXPECT_EQ(EncodeBytes("onebit", {1.0f, -2.0f, 0.0f, -1.0f}), Hex("0000803F 0A"));
  EXPECT_EQ(EncodeBytes("qsgd:1", {4.0f, 0.0f, -4.0f}), Hex("01000000 00008040 05 04"));
  EXPECT_EQ(EncodeBytes("mxfp8", {448.0f, -1.0f, 0.0f, 0.001f}), Hex("7F 7E B8 00 01"));
  EXPECT_EQ(EncodeBytes("nvfp4", {2688.0f, -448.0f, 200.0f}), Hex("0000803F 7E A7 01"));
  EXPECT_EQ(EncodeBytes("topk:0.5", {0.5f, -4.0f, 0.25f, 3.0f}), Hex("02000000 F3FF 01 00 00F8 0076 0A"));   // bitmap
  std::vector<float> sparse(100, 0.25f);
  sparse[3] = 1.0f;
  sparse[50] = -1.0f;
  EXPECT_EQ(EncodeBytes("topk:0.02", sparse), Hex("02000000 F1FF 00 00 0078 00F8 06 830B"));            // gaps 3 and 46
  EXPECT_EQ(EncodeBytes("topk:1", {0.0f, 0.0f}), Hex("00000000 0000 00 00"));
  EXPECT_EQ(EncodeBytes("threshold:1", {0.5f, -4.0f, 0.25f, 3.0f}), Hex("02000000 01 01 0000 00C4 0042 0A"));
  EXPECT_EQ(EncodeBytes("topk:0.5+int8", {0.5f, -4.0f, 0.25f, 4.0f}), Hex("02000000 01 03 0000 0402013D 81 7F 0A"));
}

TEST(CodecBytes, ExactSizes) {
  const size_t n = 1 << 20;
  const std::vector<float> g = MakeVector(kGaussian, n, 13);
  EXPECT_EQ(EncodeBytes("fp16", g).size(), n * 2);
  EXPECT_EQ(EncodeBytes("int8", g).size(), n + n / 32);           // 8.25 bits an element
  EXPECT_EQ(EncodeBytes("int8:stochastic", g).size(), n + n / 32);
  EXPECT_EQ(EncodeBytes("int4", g).size(), n / 2 + n / 32);       // 4.25
  EXPECT_EQ(EncodeBytes("onebit", g).size(), n / 8 + n / 64);     // 1.125
  EXPECT_EQ(EncodeBytes("terngrad", g).size(), 4 + n / 4 + n / 32);   // 2.25
  EXPECT_EQ(EncodeBytes("qsgd:7", g).size(), 4 + n / 2 + n / 32);
  EXPECT_EQ(EncodeBytes("mxfp8", g).size(), n + n / 32);          // 8.25
  EXPECT_EQ(EncodeBytes("nvfp4", g).size(), 4 + n / 2 + n / 16);  // 4.5
  const double top = static_cast<double>(EncodeBytes("topk:0.01", g).size());
  EXPECT_LT(top / (4.0 * n), 0.0085);                             // under 27.2 bits an entry, indices included
  const double top8 = static_cast<double>(EncodeBytes("topk:0.01+int8", g).size());
  EXPECT_LT(top8 / (4.0 * n), 0.0058);                            // 8.25 bits of value and 9.3 of index
  EXPECT_EQ(EncodeBytes("randk:0.01", g).size(), 8 + 2 * 10486u + 8);   // no indices
  // Indices cost: never above a bitmap, and 1/8 bit an entry where all are there.
  EXPECT_LE(EncodeBytes("topk:0.5", g).size(), 8 + n + n / 8);
  EXPECT_EQ(EncodeBytes("topk:1", std::vector<float>(n, 1.0f)).size(), 8 + 2 * n + n / 64);
}

TEST(CodecBytes, Int8ErrorIsAtMostHalfAStepOfItsBlock) {
  for (const int shape : {kGaussian, kNegative, kBeyondFp16, kMixed, kOneSpike}) {
    const size_t n = 4099;
    const std::vector<float> g = MakeVector(shape, n, 14);
    const Encoded encoded = Encode(*Named("int8"), g, {}, 1);
    for (size_t begin = 0; begin < n; begin += 128) {
      const size_t end = std::min(n, begin + 128);
      double amax = 0;
      for (size_t i = begin; i < end; ++i) amax = std::max(amax, std::abs(double{g[i]}));
      for (size_t i = begin; i < end; ++i) ASSERT_LE(std::abs(encoded.residual[i]), amax / 127 * (0.5 + 1e-5));
    }
  }
}

// 127 times the plain quotient of the largest float overflows: the decoded value must not.
TEST(CodecBytes, Int8OfTheLargestFloatStaysFinite) {
  const float largest = std::numeric_limits<float>::max();
  const Encoded encoded = Encode(*Named("int8"), {largest, -largest, 1.0f}, {}, 1);
  const std::vector<float> decoded = Decode(*Named("int8"), encoded.bytes, 3);
  EXPECT_TRUE(std::isinf(127.0f * (largest / 127.0f)));
  EXPECT_NEAR(decoded[0] / largest, 1.0, 1e-6);
  EXPECT_NEAR(decoded[1] / largest, -1.0, 1e-6);
  EXPECT_TRUE(std::isfinite(decoded[0]));
}

// E[Q(x)] = x of those that draw, over 4,000 rounds: within five standard errors.
TEST(CodecBytes, StochasticRoundingHasNoBias) {
  const size_t n = 130, rounds = 4000;
  for (const char* name : {"int8:stochastic", "int4:stochastic", "qsgd:7", "qsgd:2", "terngrad"}) {
    const std::unique_ptr<Codec> codec = Named(name);
    const std::vector<float> x = MakeVector(kGaussian, n, 16);
    std::vector<double> sum(n, 0.0), squares(n, 0.0);
    for (size_t t = 0; t < rounds; ++t) {
      const std::vector<float> decoded = Decode(*codec, Encode(*codec, x, {}, 1, t).bytes, n);
      for (size_t i = 0; i < n; ++i) sum[i] += decoded[i];
      for (size_t i = 0; i < n; ++i) squares[i] += std::pow(double{decoded[i]}, 2);
    }
    for (size_t i = 0; i < n; ++i) {
      const double mean = sum[i] / rounds, variance = std::max(0.0, squares[i] / rounds - mean * mean);
      ASSERT_NEAR(mean, x[i], 5 * std::sqrt(variance / rounds) + 1e-8) << name << " " << i;
    }
  }
}

// A partition draws for its place in the tensor: cut in two it draws the same.
TEST(CodecBytes, DrawsBelongToElementsOfTheTensor) {
  const std::unique_ptr<Codec> codec = Named("int8:stochastic");
  const std::vector<float> whole = MakeVector(kGaussian, 512, 17), upper(whole.begin() + 256, whole.end());
  std::vector<std::byte> all(codec->MaxEncodedBytes(512)), half(codec->MaxEncodedBytes(256));
  RandomKey key{.seed = 1, .round = 2, .tensor = 3, .first_element = 1000};
  ASSERT_TRUE(codec->Encode({.gradient = whole, .residual = {}, .residual_out = {}, .random = key}, all).ok());
  key.first_element += 256;
  ASSERT_TRUE(codec->Encode({.gradient = upper, .residual = {}, .residual_out = {}, .random = key}, half).ok());
  EXPECT_TRUE(std::equal(half.begin() + 8, half.end(), all.end() - 256));   // the codes
}

TEST(CodecBytes, RoundsTensorsAndSeedsDrawDifferently) {
  const std::unique_ptr<Codec> codec = Named("terngrad");
  const std::vector<float> x = MakeVector(kGaussian, 512, 18);
  const auto bytes = [&](const RandomKey& key) {
    Bytes out(codec->MaxEncodedBytes(512));
    EXPECT_TRUE(codec->Encode({.gradient = x, .residual = {}, .residual_out = {}, .random = key}, out).ok());
    return out;
  };
  const Bytes first = bytes({.seed = 1, .round = 1, .tensor = 1});
  EXPECT_EQ(bytes({.seed = 1, .round = 1, .tensor = 1}), first);
  EXPECT_NE(bytes({.seed = 2, .round = 1, .tensor = 1}), first);
  EXPECT_NE(bytes({.seed = 1, .round = 2, .tensor = 1}), first);
  EXPECT_NE(bytes({.seed = 1, .round = 1, .tensor = 2}), first);
}

// Scaled sign contracts: ||C(x) - x||^2 = (1 - ||x||_1^2 / (n ||x||_2^2)) ||x||^2 in each block, but for roundings.
TEST(CodecBytes, OneBitContracts) {
  for (const int shape : {kGaussian, kAllEqual, kNegative, kBeyondFp16, kMixed, kOneSpike, kTies}) {
    for (const size_t n : {size_t{1}, size_t{100}, size_t{256}}) {
      const std::vector<float> x = MakeVector(shape, n, 19);
      const Encoded encoded = Encode(*Named("onebit"), x, {}, 1);
      double error = 0, norm1 = 0, norm2 = 0;
      for (size_t i = 0; i < n; ++i) {
        error += std::pow(double{encoded.residual[i]}, 2);
        norm1 += std::abs(double{x[i]});
        norm2 += std::pow(double{x[i]}, 2);
      }
      EXPECT_NEAR(error, norm2 - norm1 * norm1 / static_cast<double>(n), norm2 * 1e-5) << "shape " << shape << " n " << n;
    }
  }
}

// A zero has no sign: it must decode to what the residual assumes, and a block of zeros to zeros.
TEST(CodecBytes, OneBitOfZeros) {
  const Encoded zeros = Encode(*Named("onebit"), {0.0f, -0.0f, 0.0f}, {}, 1);
  EXPECT_EQ(zeros.bytes, Hex("00000000 00"));
  EXPECT_EQ(zeros.residual, (std::vector<float>{0.0f, 0.0f, 0.0f}));
  const Encoded mixed = Encode(*Named("onebit"), {0.0f, -3.0f, -0.0f}, {0.0f, 0.0f, -0.0f}, 1);
  EXPECT_EQ(Decode(*Named("onebit"), mixed.bytes, 3), (std::vector<float>{1.0f, -1.0f, 1.0f}));
  EXPECT_EQ(mixed.residual, (std::vector<float>{-1.0f, -2.0f, -1.0f}));
}

// 448 is the largest code: a block whose maximum lies between two powers takes the next scale rather than saturate.
TEST(CodecBytes, Mxfp8SaturatesOnlyAtTheEndOfTheRange) {
  for (const float amax : {447.0f, 449.0f, 511.0f, 1e-30f, 1e30f}) {
    const Encoded encoded = Encode(*Named("mxfp8"), {amax, -amax}, {}, 1);
    EXPECT_LE(std::abs(encoded.residual[0]), amax / 16) << amax;
  }
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> decoded = Decode(*Named("mxfp8"), Encode(*Named("mxfp8"), {largest}, {}, 1).bytes, 1);
  EXPECT_EQ(decoded[0], 0x1.Cp127f);
}

// Without a residual each place is sent once in 1/ratio rounds on average; every one of them has its turn.
TEST(CodecBytes, RandomPicksReachEveryElement) {
  const size_t n = 997, rounds = 2000;
  const std::unique_ptr<Codec> codec = Named("randk:0.05");
  std::vector<double> sent(n, 0.0);
  for (size_t t = 0; t < rounds; ++t) {
    const Encoded encoded = Encode(*codec, std::vector<float>(n, 1.0f), {}, 1, t);
    ASSERT_EQ(encoded.bytes.size(), 8 + 2 * 50 + 8);
    const std::vector<float> decoded = Decode(*codec, encoded.bytes, n);
    for (size_t i = 0; i < n; ++i) sent[i] += decoded[i];
  }
  for (size_t i = 0; i < n; ++i) ASSERT_NEAR(sent[i], 0.05 * rounds, 60) << i;   // six standard deviations
}

TEST(CodecBytes, AThresholdLooksAtMagnitudes) {
  const std::vector<float> negative = MakeVector(kNegative, 300, 20);   // -1.5 to -0.5
  const std::vector<float> decoded = Decode(*Named("threshold:1"), Encode(*Named("threshold:1"), negative, {}, 1).bytes, 300);
  for (size_t i = 0; i < 300; ++i) ASSERT_EQ(decoded[i] != 0, negative[i] <= -1.0f) << i;
}

// Rounds of threshold:auto against the page: the threshold, the count's bound, and how it comes back after a jump.
TEST(CodecBytes, AdaptiveThresholdFollowsTheGradient) {
  const size_t n = 20000;
  const double k = 200;
  const std::unique_ptr<Codec> codec = Named("threshold:auto:0.01+none");
  Bytes state, next(codec->StateBytes(n)), out(codec->MaxEncodedBytes(n));
  float threshold = 0;
  double total = 0;
  size_t exact = 0;
  for (uint64_t t = 0; t < 60; ++t) {
    std::vector<float> g = MakeVector(kGaussian, n, 300 + t);
    const float factor = t < 20 ? 1.0f : t < 40 ? 50.0f : 1e-6f * (1.0f + 0.02f * static_cast<float>(t));
    for (float& v : g) v *= factor;
    size_t reach = 0;
    for (const float v : g) reach += std::abs(v) >= threshold;
    const bool fast = threshold > 0 && static_cast<double>(reach) <= 2 * k && static_cast<double>(reach) >= k / 2;
    std::vector<float> sorted = g;
    std::sort(sorted.begin(), sorted.end(), [](float a, float b) { return std::abs(a) > std::abs(b); });
    const float least = fast ? threshold : std::abs(sorted[199]);
    const Bytes slow = SlowSparse(g, Picks::kThreshold, least, "none");
    const auto size =
        codec->Encode({.gradient = g, .residual = {}, .residual_out = {}, .state = state, .state_out = next}, out);
    ASSERT_TRUE(size.ok()) << size.status();
    ASSERT_EQ(Bytes(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(*size)), slow) << t;
    const uint32_t count = LoadLe<uint32_t>(slow.data());
    threshold = fast ? threshold * std::sqrt(std::sqrt(std::sqrt(static_cast<float>(count) / 200.0f))) : least;
    ASSERT_EQ(LoadLe<float>(next.data()), threshold) << t;
    total += count;
    exact += !fast;
    state = next;
  }
  EXPECT_LE(exact, 3u);   // the first round and the two jumps
  EXPECT_NEAR(total / 60, k, k * 0.05);
}

// The state of topk is a hint: whatever it says, bytes and residual are the same; and after a round it is below the k-th magnitude.
TEST(CodecBytes, TopKIsExactWhateverTheLastRoundSays) {
  for (const char* name : {"topk:0.01", "topk:0.01+int8"}) {
    const std::unique_ptr<Codec> codec = Named(name);
    for (const size_t n : {size_t{1}, size_t{1025}, size_t{70001}})
      for (int shape = 0; shape < kShapes; ++shape) {
        const std::vector<float> g = MakeVector(shape, n, 24);
        const Encoded expected = Encode(*codec, g, {}, 1);
        std::vector<float> sorted = g;
        for (float& v : sorted) v = std::abs(v);
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        const float least = sorted[static_cast<size_t>(std::ceil(0.01 * static_cast<double>(n))) - 1];
        for (const float hint : {0.0f, 1e-45f, least, least * 0.9f, least * 1.5f, -1.0f, 3e38f, INFINITY, NAN}) {
          Bytes state, next(4), out(codec->MaxEncodedBytes(n));
          Append(hint, &state);
          std::vector<float> residual(n);
          const auto size = codec->Encode({.gradient = g, .residual = {}, .residual_out = residual, .random = kTestKey,
                                           .state = state, .state_out = next}, out);
          ASSERT_TRUE(size.ok()) << size.status();
          out.resize(*size);
          ASSERT_EQ(out, expected.bytes) << name << " shape " << shape << " n " << n << " hint " << hint;
          ASSERT_EQ(residual, expected.residual);
          ASSERT_LE(LoadLe<float>(next.data()), std::max(least, 1e-45f));
        }
      }
  }
}

// From 65,536 elements on topk looks at a sample first: whatever it says, the bytes are the same.
TEST(CodecBytes, TopKOfLargeTensorsIsExactWhateverItsSampleSays) {
  const size_t n = 70001;
  for (int shape = 0; shape < kShapes; ++shape) {
    const std::vector<float> g = MakeVector(shape, n, 22);
    ASSERT_EQ(EncodeBytes("topk:0.01", g), SlowTopK(g, 0.01)) << "shape " << shape;
  }
  std::vector<float> front(n, 0.0f), rising(n);   // everything where no line of the sample lies; sorted
  for (size_t i = 0; i < n; ++i) rising[i] = static_cast<float>(i);
  for (size_t i = 20; i < 270; ++i) front[i] = 1.0f + static_cast<float>(i);
  for (size_t i = 300; i < 40000; ++i) front[i] = 1e-3f;
  for (const std::vector<float>& g : {front, rising}) ASSERT_EQ(EncodeBytes("topk:0.01", g), SlowTopK(g, 0.01));
}

// Two lossy parts, one residual: what the second loses is there as well as what the first leaves out.
TEST(CodecBytes, AChainHasOneResidual) {
  for (const char* name : {"topk:0.1+int4", "randk:0.1+fp16", "threshold:0.01+mxfp8"}) {
    const std::vector<float> g = MakeVector(kGaussian, 1000, 21);
    const Encoded encoded = Encode(*Named(name), g, {}, 1);
    const std::vector<float> decoded = Decode(*Named(name), encoded.bytes, 1000);
    size_t rounded = 0;
    for (size_t i = 0; i < 1000; ++i) {
      ASSERT_EQ(encoded.residual[i], g[i] - decoded[i]) << name;
      rounded += decoded[i] != 0 && encoded.residual[i] != 0;
    }
    EXPECT_GT(rounded, 20u) << name;
  }
}

TEST(CodecBytes, SaturationLeavesTheRestInTheResidual) {
  EXPECT_EQ(Encode(*Named("fp16"), {100000.0f, -70000.0f}, {}, 1).residual, (std::vector<float>{34496.0f, -4496.0f}));
  // Top-k moves its exponent instead: nothing saturates but the last bit.
  const Encoded topk = Encode(*Named("topk:1"), {1e9f, -1e-9f}, {}, 1);
  EXPECT_LE(std::abs(topk.residual[0]), 1e9f * 0x1p-11f);
}

// Late in training gradients fall below fp16's range: top-k still sends them.
TEST(CodecBytes, TopKDoesNotUnderflow) {
  const std::vector<float> g(100, 3e-12f);
  const Encoded encoded = Encode(*Named("topk:1"), g, {}, 1);
  for (float v : Decode(*Named("topk:1"), encoded.bytes, 100)) EXPECT_NEAR(v / 3e-12f, 1.0, 0x1p-11);
}

// ||C(x) - x||^2 <= (1 - k/n) ||x||^2, but for the halves' rounding.
TEST(CodecBytes, TopKContracts) {
  for (int shape = 0; shape < kShapes; ++shape) {
    for (const auto& [name, ratio] :
         {std::pair{"topk:0.01", 0.01}, std::pair{"topk:0.1", 0.1}, std::pair{"topk:1", 1.0}}) {
      for (const size_t n : {size_t{1}, size_t{100}, size_t{4099}}) {
        const std::vector<float> x = MakeVector(shape, n, 15);
        const Encoded encoded = Encode(*Named(name), x, {}, 1);
        double error = 0, norm = 0;
        for (size_t i = 0; i < n; ++i) {
          error += std::pow(double{encoded.residual[i]}, 2);
          norm += std::pow(double{x[i]}, 2);
        }
        const double k = std::max(1.0, std::ceil(ratio * static_cast<double>(n)));
        EXPECT_LE(error, (1 - k / static_cast<double>(n) + 0x1p-20) * norm) << name << " shape " << shape << " n " << n;
      }
    }
  }
}

// What a stranger may send and no encoder does, bit by bit.
TEST(CodecBytes, ValidateRefusesWhatNoEncoderWrites) {
  const auto valid = [](const char* name, std::string_view hex, size_t n) {
    return Named(name)->Validate(Hex(hex), n).ok();
  };
  EXPECT_TRUE(valid("none", "0000C07F", 1));      // lossless: a NaN passes
  EXPECT_TRUE(valid("fp16", "FF7B", 1));
  EXPECT_FALSE(valid("fp16", "007C", 1));         // infinity
  EXPECT_FALSE(valid("bf16", "C0FF", 1));         // NaN
  EXPECT_TRUE(valid("int8", "0000803F 7F", 1));
  EXPECT_FALSE(valid("int8", "0000803F 80", 1));  // code -128
  EXPECT_TRUE(valid("int8", "0302017C 7F", 1));
  EXPECT_FALSE(valid("int8", "0402017C 7F", 1));  // above the largest scale
  EXPECT_FALSE(valid("int8", "000080BF 01", 1));  // negative
  EXPECT_FALSE(valid("int8", "0000C07F 01", 1));  // NaN
  EXPECT_TRUE(valid("int4", "0000803F 07", 1));
  EXPECT_FALSE(valid("int4", "0000803F 08", 1));  // code -8
  EXPECT_FALSE(valid("int4", "0000803F 80", 2));
  EXPECT_FALSE(valid("int4", "0000803F 17", 1));  // behind the last code
  EXPECT_FALSE(valid("int4", "0000807F 07", 1));  // infinite scale
  EXPECT_TRUE(valid("onebit", "FFFF7F7F 01", 1));
  EXPECT_FALSE(valid("onebit", "0000807F 01", 1));
  EXPECT_FALSE(valid("onebit", "000080BF 01", 1));
  EXPECT_FALSE(valid("onebit", "0000803F 02", 1));
  EXPECT_TRUE(valid("qsgd:7", "02000000 0000803F 00 01 00", 1));
  EXPECT_FALSE(valid("qsgd:7", "02000000 0000803F 01 01 00", 1));   // 3 of 2 levels
  EXPECT_FALSE(valid("qsgd:7", "02000000 0000803F 00 00 01", 1));   // -4
  EXPECT_FALSE(valid("qsgd:7", "02000000 0000803F 00 03 00", 1));   // padding
  EXPECT_FALSE(valid("qsgd:7", "00000000 0000803F", 1));            // no levels
  EXPECT_FALSE(valid("qsgd:7", "80000000 0000803F 00", 1));
  EXPECT_FALSE(valid("qsgd:7", "01000100 0000803F 00 00", 1));      // reserved bytes
  EXPECT_TRUE(valid("mxfp8", "F6 7E", 1));
  EXPECT_FALSE(valid("mxfp8", "F7 01", 1));       // scale 247
  EXPECT_FALSE(valid("mxfp8", "7F 7F", 1));       // NaN
  EXPECT_FALSE(valid("mxfp8", "7F FF", 1));
  EXPECT_TRUE(valid("randk:1", "01000000 02 01 0000 003C 0000000000000000", 3));
  EXPECT_FALSE(valid("randk:1", "01000000 02 01 0000 003C 00000000000000", 3));        // a short key
  EXPECT_FALSE(valid("randk:1", "04000000 02 05 0000 00000000 0000 0000000000000000", 3));   // 4 of 3
  EXPECT_FALSE(valid("randk:1", "01000000 03 01 0000 003C 00", 1));                    // form 3
  EXPECT_FALSE(valid("randk:1", "01000000 00 01 0100 003C 00", 1));                    // reserved bytes
  EXPECT_FALSE(valid("randk:1", "01000000 00 04 0000 003C 00", 1));                    // values in topk
  EXPECT_FALSE(valid("randk:1", "01000000 00 07 0000 003C 00", 1));                    // in qsgd
  EXPECT_FALSE(valid("randk:1", "01000000 00 09 0000 003C 00", 1));                    // in itself
  EXPECT_FALSE(valid("randk:1", "01000000 00 FF 0000 003C 00", 1));                    // in nothing
  EXPECT_FALSE(valid("randk:1", "01000000 00 01 0000 007C 00", 1));                    // infinity
  EXPECT_TRUE(valid("randk:1", "01000000 00 00 0000 0000803F 00", 1));
  EXPECT_FALSE(valid("randk:1", "01000000 00 00 0000 0000807F 00", 1));                // infinity as it is
  EXPECT_FALSE(valid("randk:1", "FFFFFFFF 00 06 0000 00", SIZE_MAX));                  // an absurd count
  EXPECT_TRUE(valid("topk:1", "01000000 0000 00 00 003C 00", 1));
  EXPECT_FALSE(valid("topk:1", "01000000 0000 00 00 007C 00", 1));        // infinity
  EXPECT_FALSE(valid("topk:1", "01000000 7100 00 00 003C 00", 1));        // exponent 113
  EXPECT_TRUE(valid("topk:1", "01000000 7000 00 00 003C 00", 1));
  EXPECT_FALSE(valid("topk:1", "01000000 81FF 00 00 003C 00", 1));        // exponent -127
  EXPECT_FALSE(valid("topk:1", "01000000 0000 02 00 003C 00", 1));        // form 2
  EXPECT_FALSE(valid("topk:1", "01000000 0000 00 01 003C 00", 1));        // reserved byte
  EXPECT_FALSE(valid("topk:1", "02000000 0000 00 00 003C 003C 00", 1));   // more entries than elements
  EXPECT_FALSE(valid("topk:1", "FFFFFFFF 0000 00 00 003C 00", SIZE_MAX)); // an absurd count
  EXPECT_FALSE(valid("topk:1", "01000000 0000 00 00 003C 08 07", 7));     // index 7 of 7
}

}  // namespace
}  // namespace sluice::compression
