// lowrank against a slow encoder written from docs/codecs.md, against the truncated singular value decomposition, and on
// matrices that are none. What holds for every codec: codec_test.cc, feedback_test.cc.
#include "compression/low_rank.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "base/philox.h"
#include "compression/codec.h"
#include "compression/half.h"
#include "compression/test_vectors.h"

namespace sluice::compression {
namespace {

using Bytes = std::vector<std::byte>;
using Columns = std::vector<std::vector<float>>;   // components

template <typename T>
void Append(T value, Bytes* out) {
  const auto raw = std::as_bytes(std::span(&value, 1));
  out->insert(out->end(), raw.begin(), raw.end());
}

float SlowSum(const std::vector<float>& terms) {
  float sums[16] = {};
  for (size_t i = 0; i < terms.size(); ++i) sums[i % 16] += terms[i];
  for (size_t half : {8, 4, 2, 1})
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  return sums[0];
}

float SlowDot(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> terms(a.size());
  for (size_t i = 0; i < a.size(); ++i) terms[i] = a[i] * b[i];
  return SlowSum(terms);
}

float LargestOf(const std::vector<float>& values) {
  float largest = 0;
  for (const float v : values) largest = std::max(largest, std::isnan(v) ? INFINITY : std::abs(v));
  return largest;
}

bool SlowNormalize(std::vector<float>* values) {
  const float largest = LargestOf(*values);
  if (!(largest >= 0x1p-100f && largest <= 0x1p120f)) return false;
  for (float& v : *values) v = std::ldexp(v, -std::ilogb(largest));
  return true;
}

struct SlowResult {
  Bytes bytes;
  std::vector<float> state, residual;
};

// "lowrank" of the page, for a partition that is sent as factors.
SlowResult SlowLowRank(const std::vector<float>& p, size_t columns, size_t wanted, bool halves, std::vector<float> state) {
  const size_t rows = p.size() / columns, rank = std::min({wanted, rows, columns});
  std::vector<float> m = p;
  for (float& v : m) v = std::clamp(v, -0x1p80f, 0x1p80f);
  const PhiloxBlock key = Philox4x32({5, 0, kTestKey.tensor, 2}, {static_cast<uint32_t>(kTestKey.seed), 0});
  Columns P(rank, std::vector<float>(rows)), Q(rank);
  for (size_t k = 0; k < rank; ++k) {
    if (!state.empty()) {
      const auto begin = state.begin() + static_cast<std::ptrdiff_t>(k * columns);
      Q[k].assign(begin, begin + static_cast<std::ptrdiff_t>(columns));
      if (SlowNormalize(&Q[k])) continue;
    }
    Q[k].clear();
    for (size_t e = k * columns; e < (k + 1) * columns; ++e) {
      const uint32_t draw = Philox4x32({static_cast<uint32_t>(e / 4), 0, 0, 0}, {key[0], key[1]})[e % 4];
      Q[k].push_back(static_cast<float>(draw >> 8) / 8388608.0f - 1.0f);
    }
  }
  for (size_t k = 0; k < rank; ++k)
    for (size_t i = 0; i < rows; ++i) {
      const auto row = m.begin() + static_cast<std::ptrdiff_t>(i * columns);
      P[k][i] = SlowDot({row, row + static_cast<std::ptrdiff_t>(columns)}, Q[k]);
    }
  for (size_t k = 0; k < rank; ++k) {
    bool alive = SlowNormalize(&P[k]);
    const float before = std::sqrt(SlowDot(P[k], P[k]));
    for (int pass = 0; pass < 2 && alive && k > 0; ++pass) {
      for (size_t other = 0; other < k; ++other) {
        const float along = SlowDot(P[other], P[k]);
        for (size_t i = 0; i < rows; ++i) P[k][i] -= along * P[other][i];
      }
      alive = std::sqrt(SlowDot(P[k], P[k])) > before / 65536;
    }
    const float inverse = alive ? 1.0f / std::sqrt(SlowDot(P[k], P[k])) : 0.0f;
    for (float& v : P[k]) v = alive ? v * inverse : 0.0f;
  }
  SlowResult result;
  for (size_t k = 0; k < rank; ++k) {
    Q[k].assign(columns, 0.0f);
    for (size_t j = 0; j < columns; ++j)
      for (size_t i = 0; i < rows; ++i) Q[k][j] += m[i * columns + j] * P[k][i];
    result.state.insert(result.state.end(), Q[k].begin(), Q[k].end());
  }
  int exponents[2] = {0, 0};
  Bytes values;
  for (Columns* factor : {&P, &Q}) {
    float largest = 0;
    for (const auto& component : *factor) largest = std::max(largest, LargestOf(component));
    const int exponent = largest == 0 ? -126 : std::max(std::ilogb(largest) - 14, -126);
    for (auto& component : *factor)
      for (float& v : component) {
        if (!halves) {
          Append(v, &values);
          continue;
        }
        exponents[factor == &Q] = exponent;
        const uint16_t half = Fp16FromFloat(std::ldexp(v, -exponent));
        Append(half, &values);
        v = std::ldexp(FloatFromFp16(half), exponent);
      }
  }
  Append(static_cast<uint32_t>(columns), &result.bytes);
  Append(static_cast<uint8_t>(rank), &result.bytes);
  Append(static_cast<uint8_t>(halves ? 2 : 1), &result.bytes);
  Append(uint16_t{0}, &result.bytes);
  for (const int exponent : exponents) Append(static_cast<int16_t>(exponent), &result.bytes);
  result.bytes.insert(result.bytes.end(), values.begin(), values.end());
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j) {
      float value = 0;
      for (size_t k = 0; k < rank; ++k) value += P[k][i] * Q[k][j];
      result.residual.push_back(p[i * columns + j] - value);
    }
  return result;
}

struct Round {
  Bytes bytes;
  std::vector<float> state, residual;
};

Round EncodeRound(const Codec& codec, const std::vector<float>& g, const std::vector<float>& state) {
  Round round;
  round.bytes.resize(codec.MaxEncodedBytes(g.size()));
  round.state.resize(codec.StateBytes(g.size()) / 4);
  round.residual.resize(g.size());
  const auto size = codec.Encode({.gradient = g, .residual = {}, .residual_out = round.residual, .random = kTestKey,
                                  .state = AsBytes(state), .state_out = AsWritableBytes(std::span(round.state))},
                                 round.bytes);
  EXPECT_TRUE(size.ok()) << size.status();
  EXPECT_EQ(size.value_or(0), round.bytes.size());
  return round;
}

TEST(LowRank, EqualsTheSlowEncoderOverRounds) {
  for (const auto& [name, rank, rows, columns] :
       {std::tuple{"lowrank:1", 1, 37, 29}, std::tuple{"lowrank:2", 2, 64, 48}, std::tuple{"lowrank:3", 3, 5, 300},
        std::tuple{"lowrank:4", 4, 41, 33}, std::tuple{"lowrank:7", 7, 130, 16}, std::tuple{"lowrank:64", 64, 9, 200}}) {
    for (const bool halves : {false, true}) {
      const std::string full = std::string(name) + (halves ? "+fp16" : "");
      const std::unique_ptr<Codec> codec = Named(full + "@" + std::to_string(columns));
      const size_t n = static_cast<size_t>(rows * columns);
      for (int shape = 0; shape < kShapes; ++shape) {
        std::vector<float> state;
        for (uint64_t t = 0; t < 3; ++t) {
          std::vector<float> g = MakeVector(shape, n, 50 + t);
          for (float& v : g) v += 0.0f;
          if (codec->StateBytes(n) == 0) break;   // no smaller than as it is
          const SlowResult slow = SlowLowRank(g, static_cast<size_t>(columns), static_cast<size_t>(rank), halves, state);
          const Round round = EncodeRound(*codec, g, state);
          ASSERT_EQ(round.bytes, slow.bytes) << full << " shape " << shape << " round " << t;
          ASSERT_EQ(round.residual, slow.residual) << full << " shape " << shape << " round " << t;
          ASSERT_EQ(round.state, slow.state) << full << " shape " << shape << " round " << t;
          ASSERT_TRUE(codec->Validate(round.bytes, n).ok()) << codec->Validate(round.bytes, n);
          state = round.state;
        }
      }
    }
  }
}

Bytes Hex(std::string_view text) {
  Bytes out;
  for (size_t i = 0; i < text.size(); i += 2) {
    if (text[i] == ' ') ++i;
    out.push_back(static_cast<std::byte>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return out;
}

// Worked examples of docs/codecs.md: these bytes never change.
TEST(LowRank, Golden) {
  std::vector<float> g(16, 0.0f);
  for (size_t j = 0; j < 4; ++j) g[4 + j] = static_cast<float>(j + 1);
  const std::vector<float> state = {1, 0, 0, 0};
  EXPECT_EQ(EncodeRound(*Named("lowrank:1@4"), g, state).bytes,
            Hex("04000000 01 01 0000 0000 0000 00000000 0000803F 00000000 00000000 0000803F 00000040 00004040 00008040"));
  EXPECT_EQ(EncodeRound(*Named("lowrank:1+fp16@4"), g, state).bytes,
            Hex("04000000 01 02 0000 F2FF F4FF 0000 0074 0000 0000 006C 0070 0072 0074"));
  EXPECT_EQ(EncodeRound(*Named("lowrank:1"), {1.0f, -2.0f}, {}).bytes, Hex("00000000 00 00 0000 0000 0000 0000803F 000000C0"));
}

// Eigenvalues of M^T M by cyclic Jacobi rotations, largest first.
std::vector<double> SquaredSingularValues(const std::vector<float>& m, size_t columns) {
  std::vector<std::vector<double>> a(columns, std::vector<double>(columns, 0.0));
  for (size_t i = 0; i < m.size() / columns; ++i)
    for (size_t x = 0; x < columns; ++x)
      for (size_t y = 0; y < columns; ++y) a[x][y] += double{m[i * columns + x]} * m[i * columns + y];
  for (int sweep = 0; sweep < 30; ++sweep)
    for (size_t x = 0; x < columns; ++x)
      for (size_t y = x + 1; y < columns; ++y) {
        if (a[x][y] == 0) continue;
        const double angle = 0.5 * std::atan2(2 * a[x][y], a[x][x] - a[y][y]), c = std::cos(angle), s = std::sin(angle);
        for (size_t k = 0; k < columns; ++k) {
          const double ax = a[x][k], ay = a[y][k];
          a[x][k] = c * ax + s * ay;
          a[y][k] = c * ay - s * ax;
        }
        for (size_t k = 0; k < columns; ++k) {
          const double ax = a[k][x], ay = a[k][y];
          a[k][x] = c * ax + s * ay;
          a[k][y] = c * ay - s * ax;
        }
      }
  std::vector<double> values;
  for (size_t x = 0; x < columns; ++x) values.push_back(a[x][x]);
  std::sort(values.rbegin(), values.rend());
  return values;
}

TEST(LowRank, RepeatedEncodingOfOneMatrixTendsToItsTruncatedSvd) {
  const size_t rows = 60, columns = 24;
  std::vector<float> m = MakeVector(kGaussian, rows * columns, 60);   // noise, and four directions above it
  for (size_t k = 0; k < 4; ++k) {
    const std::vector<float> u = MakeVector(kGaussian, rows, 61 + k), v = MakeVector(kGaussian, columns, 71 + k);
    for (size_t i = 0; i < m.size(); ++i) m[i] += static_cast<float>(200 >> k) * u[i / columns] * v[i % columns];
  }
  const std::vector<double> squares = SquaredSingularValues(m, columns);
  for (const size_t rank : {1, 2, 4}) {
    const double best = std::sqrt(std::accumulate(squares.begin() + static_cast<std::ptrdiff_t>(rank), squares.end(), 0.0));
    for (const char* values : {"", "+fp16"}) {
      const auto codec = Named("lowrank:" + std::to_string(rank) + values + "@" + std::to_string(columns));
      std::vector<float> state;
      double first = 0, error = 0;
      for (int t = 0; t < 60; ++t) {
        const Round round = EncodeRound(*codec, m, state);
        state = round.state;
        error = 0;
        for (const float e : round.residual) error += double{e} * e;
        error = std::sqrt(error);
        if (t == 0) first = error;
      }
      EXPECT_LE(error, 1.01 * best) << rank << values;
      EXPECT_GE(error, 0.999 * best) << rank << values;
      EXPECT_GT(first, 1.05 * best) << "a first round that is right shows nothing";
    }
  }
}

// P P^T M is a projection: no residual is longer than what came in.
TEST(LowRank, Contracts) {
  for (const int shape : {kGaussian, kZeros, kAllEqual, kNegative, kBeyondFp16, kMixed, kOneSpike, kTies}) {
    const std::vector<float> x = MakeVector(shape, 4000, 80);
    for (const char* name : {"lowrank:1@40", "lowrank:8@50", "lowrank:8+fp16@50"}) {
      double norm = 0, error = 0;
      for (const float e : Encode(*Named(name), x, {}, 1).residual) error += double{e} * e;
      for (const float v : x) norm += double{v} * v;
      EXPECT_LE(error, norm * (1 + 1e-5)) << name << " shape " << shape;
    }
  }
  const std::vector<float> equal(4000, 0.1f);   // of rank one, whatever Q it begins with
  for (const float e : Encode(*Named("lowrank:3@50"), equal, {}, 1).residual) EXPECT_NEAR(e, 0, 1e-6);
}

// A column of Q that has died, as in a step without gradients, is drawn anew.
TEST(LowRank, ComesBackFromAStateOfZeros) {
  const std::unique_ptr<Codec> codec = Named("lowrank:2@40");
  const std::vector<float> zeros(1600, 0.0f), g = MakeVector(kGaussian, 1600, 81);
  const Round nothing = EncodeRound(*codec, zeros, {});
  EXPECT_EQ(nothing.state, std::vector<float>(80, 0.0f));
  EXPECT_EQ(EncodeRound(*codec, g, nothing.state).bytes, EncodeRound(*codec, g, {}).bytes);
}

TEST(LowRank, WhatIsNoMatrixGoesAsItIs) {
  const auto lossless = [](const char* name, size_t n) {
    const std::unique_ptr<Codec> codec = Named(name);
    const std::vector<float> g = MakeVector(kHuge, n, 82);
    EXPECT_EQ(codec->StateBytes(n), 0u) << name;
    const Round round = EncodeRound(*codec, g, {});
    return round.bytes.size() == 12 + 4 * n && Decode(*codec, round.bytes, n) == g;
  };
  EXPECT_TRUE(lossless("lowrank:1@1", 1000));             // a vector
  EXPECT_TRUE(lossless("lowrank:1+fp16@1", 1000));
  EXPECT_TRUE(lossless("lowrank:1@1000", 1000));          // one row
  EXPECT_TRUE(lossless("lowrank:1@999", 1000));           // a cut row
  EXPECT_TRUE(lossless("lowrank:1@3000", 1000));
  EXPECT_TRUE(lossless("lowrank:1", 1000));               // nothing is known
  EXPECT_TRUE(lossless("lowrank:16@32", 1024));           // 16 (32 + 32) is all
  EXPECT_TRUE(lossless("lowrank:1@2", 4));
  EXPECT_TRUE(lossless("lowrank:1@18446744073709551615", 1000));
  EXPECT_GT(Named("lowrank:15@32")->StateBytes(1024), 0u);
  EXPECT_GT(Named("lowrank:16+fp16@32")->StateBytes(1024), 0u);
}

TEST(LowRank, ExactSizes) {
  EXPECT_EQ(Named("lowrank:4@1024")->MaxEncodedBytes(1 << 20), 12 + 4 * 4 * 2048u);
  EXPECT_EQ(Named("lowrank:4+fp16@1024")->MaxEncodedBytes(1 << 20), 12 + 2 * 4 * 2048u);
  EXPECT_EQ(Named("lowrank:64@10")->MaxEncodedBytes(10000), 12 + 4 * 10000u);      // rank 10 would be larger
  EXPECT_EQ(Named("lowrank:64+fp16@10")->MaxEncodedBytes(10000), 12 + 2 * 10 * 1010u);
  EXPECT_EQ(Named("lowrank:4@1024")->StateBytes(1 << 20), 4 * 4 * 1024u);
}

// What a stranger may send and no encoder does.
TEST(LowRank, ValidateRefusesWhatNoEncoderWrites) {
  const Codec* codec = DecoderFor(10);
  ASSERT_NE(codec, nullptr);
  const auto valid = [&](std::string_view hex, size_t n) {
    const Bytes bytes = Hex(hex);
    const bool ok = codec->Validate(bytes, n).ok();
    if (n < 1000) {
      std::vector<float> out(n);
      const bool decodes = codec->Decode(bytes, out).ok();
      EXPECT_TRUE(decodes || !ok);
      EXPECT_TRUE(!ok || std::all_of(out.begin(), out.end(), [](float v) { return std::isfinite(v); }));
    }
    return ok;
  };
  const std::string halves = " 0000 0074 0000 0000 006C 0070 0072 0074";
  EXPECT_TRUE(valid("04000000 01 02 0000 F2FF 5400" + halves, 16));
  EXPECT_FALSE(valid("04000000 01 02 0000 F3FF F4FF" + halves, 16));                    // P beyond one
  EXPECT_FALSE(valid("04000000 01 02 0000 81FF F4FF" + halves, 16));                    // 2^-127
  EXPECT_FALSE(valid("04000000 01 02 0000 F2FF 5500" + halves, 16));                    // Q too large
  EXPECT_FALSE(valid("04000000 01 02 0000 F2FF F4FF 0000 007C 0000 0000 006C 0070 0072 0074", 16));   // infinity
  EXPECT_FALSE(valid("04000000 01 02 0100 F2FF F4FF" + halves, 16));                    // reserved bytes
  EXPECT_FALSE(valid("04000000 01 03 0000 F2FF F4FF" + halves, 16));                    // form 3
  EXPECT_FALSE(valid("04000000 00 02 0000 F2FF F4FF" + halves, 16));                    // no components
  EXPECT_FALSE(valid("04000000 05 02 0000 F2FF F4FF" + halves, 16));                    // 5 of 4
  EXPECT_FALSE(valid("04000000 41 02 0000 F2FF F4FF" + halves, size_t{1} << 40));       // 65
  EXPECT_FALSE(valid("01000000 01 02 0000 F2FF F4FF" + halves, 7));                     // one column
  EXPECT_FALSE(valid("07000000 01 02 0000 F2FF F4FF" + halves, 7));                     // one row
  EXPECT_FALSE(valid("04000000 01 02 0000 F2FF F4FF" + halves, 15));                    // not by rows
  EXPECT_FALSE(valid("00000000 01 02 0000 F2FF F4FF" + halves, 16));
  EXPECT_FALSE(valid("FFFFFFFF 40 02 0000 F2FF F4FF" + halves, SIZE_MAX));
  EXPECT_FALSE(valid("FFFFFFFF 40 01 0000 0000 0000" + halves, size_t{0xFFFFFFFF} * 0xFFFFFFFF));
  EXPECT_FALSE(valid("02000000 01 01 0000 0000 0000 00000000 00000000 00000000 00000000", 4));   // no smaller than as it is
  EXPECT_TRUE(valid("03000000 01 01 0000 0000 0000 0000803F 00000000 00000000 0000803F 00000000 00008071", 9));
  EXPECT_FALSE(valid("03000000 01 01 0000 0100 0000 0000803F 00000000 00000000 0000803F 00000000 00008071", 9));   // exponents
  EXPECT_FALSE(valid("03000000 01 01 0000 0000 0000 0000A040 00000000 00000000 0000803F 00000000 00008071", 9));   // P of 5
  EXPECT_FALSE(valid("03000000 01 01 0000 0000 0000 0000803F 00000000 00000000 0000803F 00000000 01008071", 9));   // Q beyond 2^100
  EXPECT_FALSE(valid("03000000 01 01 0000 0000 0000 0000803F 00000000 00000000 0000803F 00000000 0000C07F", 9));   // NaN
  EXPECT_TRUE(valid("00000000 00 00 0000 0000 0000 FFFF7F7F", 1));
  EXPECT_FALSE(valid("00000000 00 00 0000 0000 0000 0000807F", 1));
  EXPECT_FALSE(valid("01000000 00 00 0000 0000 0000 FFFF7F7F", 1));
  EXPECT_FALSE(valid("00000000 01 00 0000 0000 0000 FFFF7F7F", 1));
  EXPECT_FALSE(valid("00000000 00 00 0000 0000 0000", SIZE_MAX / 4 + 1));
}

// The largest factors that Validate takes: 64 products of them still are finite.
TEST(LowRank, TheLargestFactorsDecodeToFiniteValues) {
  Bytes bytes = Hex("80000000 40 02 0000 F2FF 5400");
  for (size_t i = 0; i < 64 * (256 + 128); ++i) Append(uint16_t{0x7BFF}, &bytes);
  const Codec* codec = DecoderFor(10);
  ASSERT_TRUE(codec->Validate(bytes, 256 * 128).ok()) << codec->Validate(bytes, 256 * 128);
  for (const float v : Decode(*codec, bytes, 256 * 128)) ASSERT_TRUE(std::isfinite(v));
}

// Tiles of columns and blocks of rows in the decoder, against one product.
TEST(LowRank, DecodesLargeMatricesByTiles) {
  for (const auto& [name, n] : {std::pair{"lowrank:9@3000", size_t{3000} * 130}, std::pair{"lowrank:64+fp16@333", size_t{333} * 200}}) {
    const std::unique_ptr<Codec> codec = Named(name);
    const std::vector<float> g = MakeVector(kGaussian, n, 83);
    const Encoded encoded = Encode(*codec, g, {}, 1);
    const std::vector<float> decoded = Decode(*codec, encoded.bytes, n);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(Bits(encoded.residual[i]), Bits(g[i] - decoded[i])) << name << " " << i;
  }
}

}  // namespace
}  // namespace sluice::compression
