// Slow encoders, written from docs/codecs.md alone: an obvious loop a codec, with fp64 where the page says nothing of rounding.
// What codec_bytes_test.cc holds the product's encoders against.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "compression/codec.h"
#include "compression/half.h"
#include "compression/test_vectors.h"

namespace sluice::compression {

using Bytes = std::vector<std::byte>;

template <typename T>
void Append(T value, Bytes* out) {
  const auto raw = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
  out->insert(out->end(), raw.begin(), raw.end());
}

inline Bytes Hex(std::string_view text) {
  Bytes out;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == ' ') {
      ++i;
      continue;
    }
    out.push_back(static_cast<std::byte>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
    i += 2;
  }
  return out;
}

inline Bytes EncodeBytes(const char* name, const std::vector<float>& g) { return Encode(*Named(name), g, {}, 1).bytes; }

inline Bytes SlowInt8(const std::vector<float>& p) {
  Bytes scales, codes;
  for (size_t begin = 0; begin < p.size(); begin += 128) {
    const size_t end = std::min(p.size(), begin + 128);
    float amax = 0;
    for (size_t i = begin; i < end; ++i) amax = std::max(amax, std::abs(p[i]));
    const float scale = amax < 0x1p-118f ? 0 : std::min(amax / 127.0f, 0x1.020406p121f);
    Append(scale, &scales);
    const float inverse = amax < 0x1p-118f ? 0 : 127.0f / amax;
    for (size_t i = begin; i < end; ++i) Append(static_cast<int8_t>(std::nearbyint(p[i] * inverse)), &codes);
  }
  scales.insert(scales.end(), codes.begin(), codes.end());
  return scales;
}

// Random numbers, from "Random numbers" of the page; the key is the one that the tests' Encode uses.
inline uint32_t SlowDraw(uint64_t element) {
  const PhiloxBlock key = Philox4x32({5, 0, kTestKey.tensor, 0}, {static_cast<uint32_t>(kTestKey.seed), 0});
  const uint64_t e = kTestKey.first_element + element;
  return Philox4x32({static_cast<uint32_t>(e / 4), 0, 0, 0}, {key[0], key[1]})[e % 4];
}

struct SlowLevels {
  Bytes scales;
  std::vector<int> codes;
};

// "Levels" of the page.
inline SlowLevels SlowQuantize(const std::vector<float>& p, int levels, bool stochastic) {
  SlowLevels out;
  const float L = static_cast<float>(levels), infinity = std::numeric_limits<float>::infinity();
  float most = std::numeric_limits<float>::max() / L;
  while (!std::isinf(std::nextafter(most, infinity) * L)) most = std::nextafter(most, infinity);
  while (std::isinf(most * L)) most = std::nextafter(most, 0.0f);
  for (size_t begin = 0; begin < p.size(); begin += 128) {
    const size_t end = std::min(p.size(), begin + 128);
    float amax = 0;
    for (size_t i = begin; i < end; ++i) amax = std::max(amax, std::abs(p[i]));
    const float count = static_cast<float>(levels), inverse = amax < 0x1p-118f ? 0 : count / amax;
    Append(amax < 0x1p-118f ? 0 : std::min(amax / count, most), &out.scales);
    for (size_t i = begin; i < end; ++i) {
      if (!stochastic) {
        out.codes.push_back(static_cast<int>(std::nearbyint(p[i] * inverse)));
        continue;
      }
      const float u = static_cast<float>(SlowDraw(i) >> 8) / 16777216.0f;
      const int magnitude = std::min(levels, static_cast<int>(std::floor(std::abs(p[i]) * inverse + u)));
      out.codes.push_back(p[i] < 0 ? -magnitude : magnitude);
    }
  }
  return out;
}

inline Bytes SlowInt8Stochastic(const std::vector<float>& p) {
  SlowLevels levels = SlowQuantize(p, 127, true);
  for (const int code : levels.codes) Append(static_cast<int8_t>(code), &levels.scales);
  return levels.scales;
}

inline Bytes SlowInt4(const std::vector<float>& p, bool stochastic) {
  SlowLevels levels = SlowQuantize(p, 7, stochastic);
  if (p.size() % 2 != 0) levels.codes.push_back(0);
  for (size_t i = 0; i < levels.codes.size(); i += 2)
    Append(static_cast<uint8_t>((levels.codes[i] & 15) + 16 * (levels.codes[i + 1] & 15)), &levels.scales);
  return levels.scales;
}

inline Bytes SlowQsgd(const std::vector<float>& p, int s) {
  const SlowLevels levels = SlowQuantize(p, s, true);
  int bits = 0;
  while ((1 << bits) < 2 * s + 1) ++bits;
  Bytes out;
  Append(static_cast<uint32_t>(s), &out);
  out.insert(out.end(), levels.scales.begin(), levels.scales.end());
  for (size_t begin = 0; begin < p.size(); begin += 128) {
    const size_t m = std::min<size_t>(128, p.size() - begin);
    for (int b = 0; b < bits; ++b) {
      Bytes plane((m + 7) / 8);
      for (size_t i = 0; i < m; ++i)
        if ((levels.codes[begin + i] & (1 << b)) != 0) plane[i / 8] |= static_cast<std::byte>(1 << (i % 8));
      out.insert(out.end(), plane.begin(), plane.end());
    }
  }
  return out;
}

inline Bytes SlowOneBit(const std::vector<float>& p) {
  Bytes out, signs((p.size() + 7) / 8);
  for (size_t begin = 0; begin < p.size(); begin += 256) {
    const size_t m = std::min<size_t>(256, p.size() - begin);
    float sums[32] = {};
    for (size_t i = 0; i < m; ++i) sums[i % 32] += std::abs(p[begin + i]) / 256;
    for (size_t half : {16, 8, 4, 2, 1})
      for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
    const float scale = m == 256 ? sums[0] : sums[0] * (256.0f / static_cast<float>(m));
    Append(std::min(scale, std::numeric_limits<float>::max()), &out);
  }
  for (size_t i = 0; i < p.size(); ++i)
    if (p[i] < 0) signs[i / 8] |= static_cast<std::byte>(1 << (i % 8));
  out.insert(out.end(), signs.begin(), signs.end());
  return out;
}

// The nearest E4M3 code, ties to the even one.
inline uint8_t SlowE4M3(double value) {
  const auto magnitude_of = [](int code) {
    return code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + (code & 7), (code >> 3) - 10);
  };
  const double magnitude = std::abs(value);
  if (magnitude < 0x1p-10) return std::signbit(value) ? 0x80 : 0;
  int best = 0;
  for (int code = 1; code < 0x7F; ++code) {
    const double distance = std::abs(magnitude_of(code) - magnitude), least = std::abs(magnitude_of(best) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

inline Bytes SlowMxfp8(const std::vector<float>& p) {
  Bytes out, codes;
  for (size_t begin = 0; begin < p.size(); begin += 32) {
    const size_t end = std::min(p.size(), begin + 32);
    double amax = 0;
    for (size_t i = begin; i < end; ++i) amax = std::max(amax, std::abs(double{p[i]}));
    int byte = 0;
    while (byte < 246 && std::ldexp(448.0, byte - 127) < amax) ++byte;
    Append(static_cast<uint8_t>(byte), &out);
    for (size_t i = begin; i < end; ++i) Append(SlowE4M3(std::ldexp(double{p[i]}, 127 - byte)), &codes);
  }
  out.insert(out.end(), codes.begin(), codes.end());
  return out;
}

// "Indices" of the page: gaps or a bitmap, the smaller.
inline Bytes SlowIndices(const std::vector<size_t>& order, size_t n, bool* use_bitmap) {
  Bytes gaps;
  for (size_t first = 0; first < order.size(); first += 64) {
    std::vector<size_t> group;
    for (size_t j = first; j < std::min(first + 64, order.size()); ++j)
      group.push_back(order[j] - (j == 0 ? 0 : order[j - 1] + 1));
    int width = 0;
    while (*std::max_element(group.begin(), group.end()) >> width != 0) ++width;
    Append(static_cast<uint8_t>(width), &gaps);
    const size_t start = gaps.size();
    gaps.resize(start + (group.size() * static_cast<size_t>(width) + 7) / 8);
    for (size_t bit = 0; bit < group.size() * static_cast<size_t>(width); ++bit)
      if (group[bit / static_cast<size_t>(width)] >> (bit % static_cast<size_t>(width)) & 1)
        gaps[start + bit / 8] |= static_cast<std::byte>(1 << (bit % 8));
  }
  Bytes bitmap((n + 7) / 8);
  for (size_t i : order) bitmap[i / 8] |= static_cast<std::byte>(1 << (i % 8));
  *use_bitmap = bitmap.size() < gaps.size();
  return *use_bitmap ? bitmap : gaps;
}

inline Bytes SlowTopK(const std::vector<float>& p, double ratio) {
  const size_t n = p.size();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return std::abs(p[a]) > std::abs(p[b]); });
  order.resize(n == 0 ? 0 : std::max<size_t>(1, static_cast<size_t>(std::ceil(ratio * static_cast<double>(n)))));
  std::erase_if(order, [&](size_t i) { return p[i] == 0; });
  int exponent = 0;
  if (!order.empty()) exponent = std::max(std::ilogb(p[order[0]]) - 15, -126);
  std::sort(order.begin(), order.end());

  bool use_bitmap = false;
  const Bytes indices = SlowIndices(order, n, &use_bitmap);
  Bytes out;
  Append(static_cast<uint32_t>(order.size()), &out);
  Append(static_cast<int16_t>(exponent), &out);
  Append(static_cast<uint8_t>(use_bitmap), &out);
  Append(uint8_t{0}, &out);
  for (size_t i : order) Append(Fp16FromFloat(std::ldexp(p[i], -exponent)), &out);
  out.insert(out.end(), indices.begin(), indices.end());
  return out;
}

// Indices of randk: "Drawn indices" of the page.
inline std::vector<size_t> SlowDrawn(uint64_t k, uint64_t n, uint64_t* key) {
  const PhiloxBlock round = Philox4x32({5, 0, kTestKey.tensor, 1}, {static_cast<uint32_t>(kTestKey.seed), 0});
  const PhiloxBlock partition =
      Philox4x32({static_cast<uint32_t>(kTestKey.first_element), 0, 0, 1}, {round[0], round[1]});
  *key = partition[0] + (uint64_t{partition[1]} << 32);
  std::vector<size_t> indices;
  for (uint64_t j = 0; j < k; ++j) {
    const uint64_t draw = Philox4x32({static_cast<uint32_t>(j / 4), 0, 0, 0}, {partition[0], partition[1]})[j % 4];
    const uint64_t begin = j * n / k, size = (j + 1) * n / k - begin;
    indices.push_back(begin + draw * size / 4294967296);
  }
  return indices;
}

enum class Picks { kLargest, kThreshold, kDrawn };

// The values' codec itself is compared elsewhere: here its encoder makes the inner bytes.
inline Bytes SlowSparse(const std::vector<float>& p, Picks picks, double parameter, const char* values) {
  const size_t n = p.size();
  const size_t k = n == 0 ? 0 : std::max<size_t>(1, static_cast<size_t>(std::ceil(parameter * static_cast<double>(n))));
  std::vector<size_t> order;
  uint64_t key = 0;
  if (picks == Picks::kDrawn) {
    order = SlowDrawn(k, n, &key);
  } else {
    order.resize(n);
    std::iota(order.begin(), order.end(), size_t{0});
    if (picks == Picks::kThreshold) {
      std::erase_if(order, [&](size_t i) { return std::abs(p[i]) < static_cast<float>(parameter); });
    } else {
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return std::abs(p[a]) > std::abs(p[b]); });
      order.resize(k);
      std::erase_if(order, [&](size_t i) { return p[i] == 0; });
      std::sort(order.begin(), order.end());
    }
  }
  std::vector<float> picked;
  for (const size_t i : order) picked.push_back(p[i]);
  const std::unique_ptr<Codec> codec = Named(values);
  const Bytes encoded = Encode(*codec, picked, {}, 1).bytes;
  bool bitmap = false;
  Bytes indices = SlowIndices(order, n, &bitmap);
  if (picks == Picks::kDrawn) {
    indices.clear();
    Append(key, &indices);
  }
  Bytes out;
  Append(static_cast<uint32_t>(order.size()), &out);
  Append(static_cast<uint8_t>(picks == Picks::kDrawn ? 2 : bitmap), &out);
  Append(static_cast<uint8_t>(codec->id()), &out);
  Append(uint16_t{0}, &out);
  out.insert(out.end(), encoded.begin(), encoded.end());
  out.insert(out.end(), indices.begin(), indices.end());
  return out;
}

inline Bytes SlowNvfp4(const std::vector<float>& p) {
  static constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  float amax = 0;
  for (const float v : p) amax = std::max(amax, std::abs(v));
  const float s = amax < 0x1p-100f ? 0.0f : std::min(amax / 2688.0f, 0x1.8p116f);
  Bytes out, codes;
  Append(s, &out);
  std::vector<int> nibbles;
  for (size_t begin = 0; begin < p.size(); begin += 16) {
    const size_t end = std::min(p.size(), begin + 16);
    float bmax = 0;
    for (size_t i = begin; i < end; ++i) bmax = std::max(bmax, std::abs(p[i]));
    const uint8_t block = s == 0 ? 0 : SlowE4M3(double{bmax / 6.0f / s});
    const float b = static_cast<float>(block < 8 ? std::ldexp(block, -9) : std::ldexp(8 + (block & 7), (block >> 3) - 10));
    const float d = b * s;
    Append(d == 0 ? uint8_t{0} : block, &out);
    for (size_t i = begin; i < end; ++i) {
      const double wanted = d == 0 ? 0.0 : double{std::abs(p[i]) * (1.0f / d)};
      int best = 0;
      for (int code = 1; code < 8; ++code) {
        const double distance = std::abs(kValues[code] - wanted), least = std::abs(kValues[best] - wanted);
        if (distance < least || (distance == least && code % 2 == 0)) best = code;
      }
      nibbles.push_back(best != 0 && p[i] < 0 ? best + 8 : best);
    }
  }
  if (nibbles.size() % 2 != 0) nibbles.push_back(0);
  for (size_t i = 0; i < nibbles.size(); i += 2) Append(static_cast<uint8_t>(nibbles[i] + 16 * nibbles[i + 1]), &codes);
  out.insert(out.end(), codes.begin(), codes.end());
  return out;
}

}  // namespace sluice::compression
