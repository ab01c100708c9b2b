// Inputs and short forms that the codec tests share.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/philox.h"
#include "compression/codec.h"

namespace sluice::compression {

inline constexpr size_t kSizes[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 1000, 1024, 1025, 4099};

// Shapes of gradients that broke codecs elsewhere.
enum Shape {
  kGaussian,
  kZeros,        // of both signs
  kAllEqual,
  kNegative,
  kDenormals,
  kHuge,         // sums of two overflow
  kBeyondFp16,
  kMixed,        // 30 orders of magnitude, with exact zeros
  kOneSpike,
  kTies,
  kShapes
};

inline std::vector<float> MakeVector(int shape, size_t n, uint64_t seed) {
  PhiloxRandom random(seed, static_cast<uint64_t>(shape));
  const auto gaussian = [&] {   // twelve uniforms
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.Uniform();
    return sum;
  };
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    float& v = values[i];
    switch (shape) {
      case kGaussian: v = 0.01f * gaussian(); break;
      case kZeros: v = random.Chance(0.5) ? 0.0f : -0.0f; break;
      case kAllEqual: v = 0.1f; break;
      case kNegative: v = -0.5f - random.Uniform(); break;
      case kDenormals: v = std::bit_cast<float>(random.Below(1 << 22) | random.Below(2) << 31); break;
      case kHuge:
        v = (random.Chance(0.5) ? 1.0f : -1.0f) * std::numeric_limits<float>::max() * (1 - random.Uniform() / 8);
        break;
      case kBeyondFp16: v = 1e6f * gaussian(); break;
      case kMixed:
        v = random.Chance(0.1) ? 0.0f : std::ldexp(gaussian(), static_cast<int>(random.Below(100)) - 70);
        break;
      case kOneSpike: v = i == n / 2 ? 1e4f : 1e-6f * gaussian(); break;
      case kTies: v = static_cast<float>(static_cast<int>(random.Below(5)) - 2); break;
    }
  }
  return values;
}

inline uint32_t Bits(float v) { return std::bit_cast<uint32_t>(v); }

inline float Clamp(float v) {
  const float limit = std::numeric_limits<float>::max();
  return std::min(std::max(v, -limit), limit);
}

// "lowrank:2@13" is lowrank:2 for a tensor of 13 columns.
inline std::unique_ptr<Codec> Named(const std::string& name) {
  const size_t at = name.find('@');
  auto codec = MakeCodec(name.substr(0, at), at == std::string::npos ? 0 : std::stoull(name.substr(at + 1)));
  EXPECT_TRUE(codec.ok()) << codec.status();
  return std::move(codec).value();
}

struct Encoded {
  std::vector<std::byte> bytes;
  std::vector<float> residual;
};

inline constexpr RandomKey kTestKey = {.seed = 77, .round = 5, .tensor = 3, .first_element = 1001};

inline Encoded Encode(const Codec& codec, const std::vector<float>& gradient, const std::vector<float>& residual,
                      float scale, uint64_t round = kTestKey.round) {
  RandomKey key = kTestKey;
  key.round = round;
  Encoded encoded;
  encoded.bytes.resize(codec.MaxEncodedBytes(gradient.size()));
  encoded.residual.assign(gradient.size(), -1.0f);
  const auto size = codec.Encode(
      {.gradient = gradient, .residual = residual, .residual_scale = scale, .residual_out = encoded.residual,
       .random = key},
      encoded.bytes);
  EXPECT_TRUE(size.ok()) << size.status();
  encoded.bytes.resize(size.value_or(0));
  return encoded;
}

inline std::vector<float> Decode(const Codec& codec, ConstBytes bytes, size_t n) {
  std::vector<float> out(n, -1.0f);
  const absl::Status status = codec.Decode(bytes, out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

}  // namespace sluice::compression
