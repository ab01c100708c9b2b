// What holds for every codec. Bytes and error bounds of each one: codec_bytes_test.cc. Over many rounds:
// feedback_test.cc.
#include "compression/codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "base/philox.h"
#include "compression/test_vectors.h"

namespace sluice::compression {
namespace {

class EveryCodec : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Codec> codec_ = Named(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Names, EveryCodec,
                         testing::Values("none", "fp16", "bf16", "int8", "topk:0.01", "topk:0.3", "topk:1", "int8:stochastic", "int4",
                                         "int4:stochastic", "onebit", "terngrad", "qsgd:7", "qsgd:127", "mxfp8", "nvfp4", "randk:0.01",
                                         "randk:1", "threshold:0.001", "threshold:1e-38", "topk:0.01+int8", "topk:1+none",
                                         "topk:0.3+int4:stochastic", "topk:0.1+onebit", "threshold:0.5+mxfp8",
                                         "randk:0.2+bf16", "threshold:auto:0.01", "threshold:auto:0.2+int8", "lowrank:2",
                                         "lowrank:2@32", "lowrank:4+fp16@20", "lowrank:64@64", "lowrank:3+fp16@13"),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(EveryCodec, DecodesWhatTheResidualLeaves) {
  for (int shape = 0; shape < kShapes; ++shape) {
    for (const size_t n : kSizes) {
      const std::vector<float> g = MakeVector(shape, n, 1), e = MakeVector(shape, n, 2);
      const Encoded encoded = Encode(*codec_, g, e, 0.5f);
      ASSERT_TRUE(codec_->Validate(encoded.bytes, n).ok()) << codec_->Validate(encoded.bytes, n);
      const std::vector<float> decoded = Decode(*codec_, encoded.bytes, n);
      for (size_t i = 0; i < n; ++i) {
        const float p = Clamp(g[i] + 0.5f * e[i]);
        ASSERT_EQ(Bits(encoded.residual[i]), Bits(p - decoded[i])) << "shape " << shape << " n " << n << " at " << i;
        ASSERT_TRUE(std::isfinite(encoded.residual[i]) && std::isfinite(decoded[i]));
        if (codec_->lossless()) {
          ASSERT_EQ(encoded.residual[i], 0.0f);
        }
      }
    }
  }
}

TEST_P(EveryCodec, SizeIsExactOrBounded) {
  const bool fixed = codec_->id() != CodecId::kTopK && codec_->id() != CodecId::kSparse;
  for (int shape = 0; shape < kShapes; ++shape) {
    for (const size_t n : kSizes) {
      const Encoded encoded = Encode(*codec_, MakeVector(shape, n, 3), {}, 1);
      if (fixed)
        EXPECT_EQ(encoded.bytes.size(), codec_->MaxEncodedBytes(n)) << n;
      else
        EXPECT_LE(encoded.bytes.size(), codec_->MaxEncodedBytes(n)) << n;
    }
  }
  // Servers know the id alone, and refuse what is larger than any codec of that id makes.
  const Codec* decoder = DecoderFor(static_cast<uint16_t>(codec_->id()));
  for (size_t n = 0; n < 300; ++n) EXPECT_LE(codec_->MaxEncodedBytes(n), decoder->MaxEncodedBytes(n)) << n;
  EXPECT_LE(codec_->MaxEncodedBytes(1 << 22), decoder->MaxEncodedBytes(1 << 22));
  const uint64_t largest = codec_->MaxEncodedBytes((1ull << 48) - 1);
  EXPECT_GT(largest, 1ull << 40);
  EXPECT_LE(largest, 5ull << 48);
}

TEST_P(EveryCodec, AMissingResidualIsZerosAndAnUnwantedOneChangesNothing) {
  for (int shape = 0; shape < kShapes; ++shape) {
    const size_t n = 1300;
    const std::vector<float> g = MakeVector(shape, n, 4), zeros(n, 0.0f);
    const Encoded with = Encode(*codec_, g, zeros, 0.25f), without = Encode(*codec_, g, {}, 1);
    if (!codec_->lossless()) {
      EXPECT_EQ(with.bytes, without.bytes);
    }
    EXPECT_EQ(with.residual, without.residual);
    std::vector<std::byte> out(codec_->MaxEncodedBytes(n));
    const auto size = codec_->Encode(
        {.gradient = g, .residual = zeros, .residual_scale = 0.25f, .residual_out = {}, .random = kTestKey}, out);
    ASSERT_TRUE(size.ok()) << size.status();
    out.resize(*size);
    EXPECT_EQ(out, with.bytes);
  }
}

TEST_P(EveryCodec, DecodeAddAddsWhatDecodeGives) {
  for (int shape = 0; shape < kShapes; ++shape) {
    for (const size_t n : kSizes) {
      const Encoded encoded = Encode(*codec_, MakeVector(shape, n, 5), {}, 1);
      const std::vector<float> start = MakeVector(0, n, 6), decoded = Decode(*codec_, encoded.bytes, n);
      std::vector<float> sum = start;
      ASSERT_TRUE(codec_->DecodeAdd(encoded.bytes, sum).ok());
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(Bits(sum[i]), Bits(start[i] + decoded[i])) << i;
    }
  }
}

// Residuals of 64 Ki elements or more go past the cache, by lines: wherever they lie, each element is written, and nothing else.
TEST_P(EveryCodec, LargeResidualsMayLieAnywhere) {
  const size_t n = 70000 + 3;
  const std::vector<float> g = MakeVector(kGaussian, n, 41), e = MakeVector(kGaussian, n, 42);
  std::vector<std::byte> out(codec_->MaxEncodedBytes(n));
  for (const size_t offset : {1, 4, 7, 16}) {
    std::vector<float> residual(n + 32, 5.0f);
    const auto size = codec_->Encode({.gradient = g, .residual = e, .residual_scale = 0.5f,
                                      .residual_out = std::span(residual).subspan(offset, n), .random = kTestKey}, out);
    ASSERT_TRUE(size.ok()) << size.status();
    const std::vector<float> decoded = Decode(*codec_, ConstBytes(out).first(*size), n);
    for (size_t i = 0; i < n; ++i)
      ASSERT_EQ(Bits(residual[offset + i]), Bits(g[i] + 0.5f * e[i] - decoded[i])) << "offset " << offset << " at " << i;
    EXPECT_EQ(std::count(residual.begin(), residual.begin() + static_cast<std::ptrdiff_t>(offset), 5.0f),
              static_cast<std::ptrdiff_t>(offset));
    EXPECT_EQ(std::count(residual.begin() + static_cast<std::ptrdiff_t>(offset + n), residual.end(), 5.0f),
              static_cast<std::ptrdiff_t>(32 - offset));
  }
}

// The same bytes at any alignment of input and output, from several threads at once.
TEST_P(EveryCodec, IsAPureFunction) {
  const size_t n = 5000;
  const std::vector<float> g = MakeVector(0, n + 1, 7);
  const std::span<const float> odd = std::span(g).subspan(1);
  const Encoded expected = Encode(*codec_, {odd.begin(), odd.end()}, {}, 1);
  std::vector<std::vector<std::byte>> results(3);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < results.size(); ++t)
    threads.emplace_back([&, t] {
      std::vector<std::byte> out(codec_->MaxEncodedBytes(n) + t);
      const auto size =
          codec_->Encode({.gradient = odd, .residual = {}, .residual_out = {}, .random = kTestKey},
                         MutableBytes(out).subspan(t));
      if (size.ok()) results[t].assign(out.begin() + static_cast<std::ptrdiff_t>(t),
                                       out.begin() + static_cast<std::ptrdiff_t>(t + *size));
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected.bytes);
  std::vector<std::byte> shifted(expected.bytes.size() + 1);
  std::copy(expected.bytes.begin(), expected.bytes.end(), shifted.begin() + 1);
  std::vector<float> decoded(n);
  ASSERT_TRUE(codec_->Decode(ConstBytes(shifted).subspan(1), decoded).ok());
  EXPECT_EQ(decoded, Decode(*codec_, expected.bytes, n));
}

TEST_P(EveryCodec, SizesThatDoNotMatchAreRefusedAndNothingIsWritten) {
  const std::vector<float> g(300, 1.0f), e(299, 1.0f);
  std::vector<float> residual(300, 7.0f), short_residual(299, 7.0f);
  std::vector<std::byte> out(codec_->MaxEncodedBytes(300));
  const auto refused = [&](const EncodeInput& input, MutableBytes to) {
    return codec_->Encode(input, to).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({.gradient = g, .residual = e, .residual_out = residual}, out));
  EXPECT_TRUE(refused({.gradient = g, .residual = {}, .residual_out = short_residual}, out));
  EXPECT_TRUE(
      refused({.gradient = g, .residual = {}, .residual_out = residual}, MutableBytes(out).first(out.size() - 1)));
  EXPECT_EQ(residual, std::vector<float>(300, 7.0f));
  EXPECT_EQ(short_residual, std::vector<float>(299, 7.0f));
}

// State goes from one buffer to another and takes any bytes; without one the first round is repeated.
TEST_P(EveryCodec, StateIsOutOfPlaceAndMayBeAnything) {
  const size_t n = 1300, bytes = codec_->StateBytes(n);
  const std::vector<float> g = MakeVector(kGaussian, n, 31);
  const auto encode = [&](const std::vector<std::byte>& state, MutableBytes state_out) {
    std::vector<std::byte> out(codec_->MaxEncodedBytes(n));
    const auto size = codec_->Encode({.gradient = g, .residual = {}, .residual_out = {}, .random = kTestKey, .state = state,
                                      .state_out = state_out}, out);
    EXPECT_TRUE(size.ok()) << size.status();
    out.resize(size.value_or(0));
    EXPECT_TRUE(codec_->Validate(out, n).ok());
    return out;
  };
  std::vector<std::byte> next(bytes), after(bytes), again(bytes);
  const std::vector<std::byte> first = encode({}, next);
  EXPECT_EQ(encode({}, {}), first);
  const std::vector<std::byte> kept = next, second = encode(next, after);
  EXPECT_EQ(next, kept);
  EXPECT_EQ(encode(next, again), second);   // a skipped step is done again from the old state
  EXPECT_EQ(again, after);
  for (const uint8_t fill : {0x00, 0x7F, 0x80, 0xFF, 0x3F, 0x01}) encode(std::vector<std::byte>(bytes, std::byte{fill}), after);
  std::vector<std::byte> out(codec_->MaxEncodedBytes(n)), wrong(bytes + 1);
  EXPECT_FALSE(codec_->Encode({.gradient = g, .residual = {}, .residual_out = {}, .state = wrong}, out).ok());
  EXPECT_FALSE(codec_->Encode({.gradient = g, .residual = {}, .residual_out = {}, .state_out = wrong}, out).ok());
}

TEST_P(EveryCodec, TruncatedLongerAndWrongSizedInputIsRefused) {
  for (const size_t n : {size_t{1}, size_t{200}, size_t{1025}}) {
    const Encoded encoded = Encode(*codec_, MakeVector(0, n, 8), {}, 1);
    std::vector<float> out(n);
    std::vector<std::byte> longer = encoded.bytes;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(codec_->Validate(longer, n).ok());
    EXPECT_FALSE(codec_->Decode(longer, out).ok());
    EXPECT_FALSE(codec_->DecodeAdd(longer, out).ok());
    for (size_t size = 0; size < encoded.bytes.size(); size += 1 + size / 5) {
      EXPECT_FALSE(codec_->Validate(ConstBytes(encoded.bytes).first(size), n).ok()) << size;
      EXPECT_FALSE(codec_->Decode(ConstBytes(encoded.bytes).first(size), out).ok()) << size;
      EXPECT_FALSE(codec_->DecodeAdd(ConstBytes(encoded.bytes).first(size), out).ok()) << size;
    }
  }
}

// Whatever Validate accepts, Decode takes, and the result is finite (none carries any bits).
TEST_P(EveryCodec, DamagedBytesAreRefusedOrHarmless) {
  PhiloxRandom random(9);
  for (int round = 0; round < 3000; ++round) {
    const size_t n = 1 + random.Below(300);
    Encoded encoded = Encode(*codec_, MakeVector(static_cast<int>(random.Below(kShapes)), n, random()), {}, 1);
    for (uint32_t flips = 1 + random.Below(4); flips > 0; --flips)
      encoded.bytes[random.Below(static_cast<uint32_t>(encoded.bytes.size()))] ^=
          static_cast<std::byte>(1u << random.Below(8));
    const absl::Status valid = codec_->Validate(encoded.bytes, n);
    std::vector<float> out(n);
    const absl::Status decoded = codec_->Decode(encoded.bytes, out);
    if (!valid.ok()) continue;
    ASSERT_TRUE(decoded.ok()) << decoded;
    if (codec_->lossless()) continue;
    for (float v : out) ASSERT_TRUE(std::isfinite(v));
  }
}

TEST(MakeCodec, NamesAndFlags) {
  for (const char* name : {"none", "fp16", "bf16", "int8", "topk:0.01", "topk:1e-3", "int8:stochastic", "int4",
                           "int4:stochastic", "onebit", "terngrad", "qsgd:7", "mxfp8", "randk:0.1", "threshold:0.001",
                           "topk:0.01+int8", "topk:0.1+int8:stochastic", "threshold:0.1+none", "threshold:auto:0.01",
                           "threshold:auto:0.001+fp16", "lowrank:1", "lowrank:64+fp16"}) {
    const std::unique_ptr<Codec> codec = Named(name);
    EXPECT_EQ(codec->name(), name);
    EXPECT_EQ(codec->lossless(), codec->id() == CodecId::kNone);
    EXPECT_EQ(codec->biased(), codec->id() == CodecId::kTopK || codec->id() == CodecId::kOneBit ||
                                   codec->id() == CodecId::kSparse || codec->id() == CodecId::kLowRank);
    EXPECT_EQ(codec->uses_residual(), codec->id() != CodecId::kNone && codec->id() != CodecId::kQsgd);
    EXPECT_EQ(codec->random(), codec->id() == CodecId::kQsgd || codec->name().ends_with(":stochastic") ||
                                   codec->name().starts_with("randk") || codec->id() == CodecId::kLowRank);
    ASSERT_NE(DecoderFor(static_cast<uint16_t>(codec->id())), nullptr);
    EXPECT_EQ(DecoderFor(static_cast<uint16_t>(codec->id()))->id(), codec->id());
  }
  EXPECT_EQ(DecoderFor(12), nullptr);
  EXPECT_EQ(DecoderFor(65535), nullptr);
  EXPECT_EQ(KnownCodecs().size(), 14u);
}

TEST(MakeCodec, ErrorsSayWhatWouldDo) {
  const auto error = [](std::string_view name) { return std::string(MakeCodec(name).status().message()); };
  EXPECT_NE(error("int9").find("nearest is \"int8\""), std::string::npos) << error("int9");
  EXPECT_NE(error("top-k:0.01").find("nearest is \"topk:<ratio>\""), std::string::npos) << error("top-k:0.01");
  EXPECT_NE(error("topk").find("topk:<ratio>"), std::string::npos) << error("topk");
  EXPECT_NE(error("fp16:2").find("no parameter"), std::string::npos) << error("fp16:2");
  EXPECT_NE(error("int8:random").find("int8:stochastic"), std::string::npos) << error("int8:random");
  EXPECT_NE(error("qsgd:128").find("1 to 127"), std::string::npos) << error("qsgd:128");
  // Chains that make no sense.
  EXPECT_NE(error("int8+fp16").find("int8 sends every element"), std::string::npos) << error("int8+fp16");
  EXPECT_NE(error("topk:0.1+topk:0.1").find("both parts pick elements"), std::string::npos) << error("topk:0.1+topk:0.1");
  EXPECT_NE(error("topk:0.1+randk:0.1").find("both parts pick elements"), std::string::npos) << error("topk:0.1+randk:0.1");
  EXPECT_NE(error("topk:0.1+qsgd:7").find("residual"), std::string::npos) << error("topk:0.1+qsgd:7");
  EXPECT_NE(error("topk:0.1+terngrad").find("residual"), std::string::npos) << error("topk:0.1+terngrad");
  EXPECT_NE(error("topk:0.1+lowrank:2").find("no matrix"), std::string::npos) << error("topk:0.1+lowrank:2");
  EXPECT_NE(error("lowrank:2+int8").find("lowrank:2+fp16"), std::string::npos) << error("lowrank:2+int8");
  EXPECT_NE(error("lowrank:65").find("1 to 64"), std::string::npos) << error("lowrank:65");
  EXPECT_NE(error("topk:0.1+int8+int8").find("two parts"), std::string::npos) << error("topk:0.1+int8+int8");
  EXPECT_NE(error("topk:0.1+int9").find("nearest is \"int8\""), std::string::npos) << error("topk:0.1+int9");
  EXPECT_NE(error("topk+int8").find("topk:<ratio>"), std::string::npos) << error("topk+int8");
  EXPECT_LT(error("topk:0.1+" + std::string(1 << 20, '+')).size(), 300u);
  for (const char* name : {"+", "topk:0.1+", "+int8", "randk", "randk:0", "threshold:", "threshold:0", "threshold:-1",
                           "threshold:inf", "threshold:nan", "threshold:auto", "threshold:auto:", "threshold:auto:2", "int8+topk:0.1",
                           "lowrank", "lowrank:", "lowrank:0", "lowrank:-1", "lowrank:1.5", "lowrank:4294967297", "lowrank:2+",
                           "lowrank:2+topk:0.1", "lowrank:2+lowrank:2", "lowrank+fp16"})
    EXPECT_FALSE(error(name).empty()) << name;
  for (const char* name : {"int8:", "int4:7", "onebit:1", "qsgd", "qsgd:0", "qsgd:-1", "qsgd:1.5", "qsgd:", "topk:", "topk:0", "topk:-1", "topk:1.01", "topk:nan", "topk:inf", "topk:0.1x", ""})
    EXPECT_FALSE(error(name).empty()) << name;
  EXPECT_LT(error("topk:" + std::string(1 << 20, '1')).size(), 300u);
  EXPECT_LT(error(std::string(1 << 20, 'x')).size(), 300u);
}

TEST(FirstNonfinite, FindsTheFirst) {
  const float denormal = std::numeric_limits<float>::denorm_min(), largest = std::numeric_limits<float>::max();
  for (const size_t n : {size_t{0}, size_t{1}, size_t{100}, size_t{4096}, size_t{9000}}) {
    std::vector<float> values(n, -largest);
    for (size_t i = 0; i < n; i += 3) values[i] = denormal;
    EXPECT_EQ(FirstNonfinite(values), n);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      for (size_t at = 0; at < n; at += 1 + n / 7) {
        std::vector<float> damaged = values;
        damaged[at] = bad;
        damaged[n - 1] = bad;
        EXPECT_EQ(FirstNonfinite(damaged), at);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::compression
