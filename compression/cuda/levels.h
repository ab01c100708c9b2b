// Whole numbers with one scale for each block of 128 elements (docs/codecs.md, "Levels"), as seen by one lane of a warp
// that has a block: what int8, int4 and qsgd share. They differ in the levels, in rounding and in how codes are packed.
#pragma once

#include <cstdint>

#include "compression/block_quantize.h"
#include "compression/cuda/draws.h"
#include "compression/cuda/elements.h"
#include "compression/cuda/grid.h"

namespace sluice::compression::cuda {

using device::Quad;

SLUICE_DEVICE uint64_t ScaleBytes(uint64_t n) { return 4 * ((n + kRow - 1) / kRow); }

// What Round leaves of a lane's elements: codes in two's complement, of which the low 8 bits count, and their values.
struct Codes {
  uint32_t bits[4];
  Quad wholes;
};

struct Nearest {
  SLUICE_DEVICE explicit Nearest(const EncodeTask&) {}
  SLUICE_DEVICE Codes Round(uint64_t, const Quad& p, float inverse, float) const {
    constexpr float kRounder = 12582912.0f;   // 1.5 * 2^23 leaves a whole number, half to even, in the low bits
    Codes codes;
    for (uint32_t j = 0; j < 4; ++j) {
      const float shifted = device::Add(device::Mul(p.v[j], inverse), kRounder);
      codes.bits[j] = device::BitsOf(shifted);
      codes.wholes.v[j] = device::Sub(shifted, kRounder);
    }
    return codes;
  }
};

struct Stochastic {
  SLUICE_DEVICE explicit Stochastic(const EncodeTask& task) : key(task.draw_key), first(task.first_element) {}
  SLUICE_DEVICE Codes Round(uint64_t at, const Quad& p, float inverse, float levels) const {
    const Draws draws = FourDraws(key, first + at);
    Codes codes;
    for (uint32_t j = 0; j < 4; ++j) {
      const float u = device::Mul(static_cast<float>(static_cast<int32_t>(draws.v[j] >> 8)), 0x1p-24f);
      const float wanted = device::Add(device::Mul(device::FloatOf(device::Magnitude(p.v[j])), inverse), u);
      const int32_t magnitude = static_cast<int32_t>(levels < wanted ? levels : wanted);
      const int32_t code = p.v[j] < 0 ? -magnitude : magnitude;
      codes.bits[j] = static_cast<uint32_t>(code);
      codes.wholes.v[j] = static_cast<float>(code);
    }
    return codes;
  }
  uint64_t key, first;
};

// Chooses the block's scale, alike in all lanes, and rounds this lane's elements; their wholes become what they decode
// to. All lanes of the warp are there.
template <typename Rounding>
SLUICE_DEVICE Codes Quantize(const Rounding& rounding, float levels, float max_scale, uint64_t at, const Quad& p,
                             float* scale) {
  constexpr float kMinAmax = 0x1p-118f;
  uint32_t largest = 0;
  for (uint32_t j = 0; j < 4; ++j) {
    const uint32_t magnitude = device::Magnitude(p.v[j]);
    largest = magnitude > largest ? magnitude : largest;
  }
  const float amax = device::FloatOf(device::WarpMax(largest));
  float inverse = 0;
  *scale = 0;
  if (amax >= kMinAmax) {
    const float quotient = device::Div(amax, levels);
    *scale = quotient < max_scale ? quotient : max_scale;
    inverse = device::Div(levels, amax);
  }
  Codes codes = rounding.Round(at, p, inverse, levels);
  for (uint32_t j = 0; j < 4; ++j) codes.wholes.v[j] = device::Mul(codes.wholes.v[j], *scale);
  return codes;
}

// int8: a byte a code.
struct BytePacking {
  static constexpr int kLevels = 127;
  SLUICE_DEVICE static void Store(uint8_t* codes, uint64_t at, const uint32_t (&bits)[4], uint32_t count, bool aligned) {
    uint8_t bytes[4];
    for (uint32_t j = 0; j < 4; ++j) bytes[j] = static_cast<uint8_t>(bits[j]);
    StoreElements<uint8_t, uint32_t>(codes + at, bytes, count, aligned);
  }
  SLUICE_DEVICE static void Load(const uint8_t* codes, uint64_t at, int32_t (&values)[4], uint32_t count, bool aligned) {
    uint8_t bytes[4];
    LoadElements<uint8_t, uint32_t>(codes + at, bytes, count, aligned);
    for (uint32_t j = 0; j < 4; ++j) values[j] = static_cast<int8_t>(bytes[j]);
  }
};

// int4: two codes a byte, the even element in the lower half.
struct NibblePacking {
  static constexpr int kLevels = 7;
  SLUICE_DEVICE static void Store(uint8_t* codes, uint64_t at, const uint32_t (&bits)[4], uint32_t count, bool aligned) {
    uint32_t packed = 0;
    for (uint32_t j = 0; j < 4; ++j)
      if (j < count) packed |= (bits[j] & 15) << (4 * j);
    if (count == 4) return device::StoreBytes<uint16_t>(codes + at / 2, static_cast<uint16_t>(packed), aligned);
    for (uint32_t j = 0; j < 2; ++j)
      if (2 * j < count) codes[at / 2 + j] = static_cast<uint8_t>(packed >> (8 * j));
  }
  SLUICE_DEVICE static void Load(const uint8_t* codes, uint64_t at, int32_t (&values)[4], uint32_t count, bool aligned) {
    uint32_t packed = 0;
    if (count == 4) {
      packed = device::LoadBytes<uint16_t>(codes + at / 2, aligned);
    } else {
      for (uint32_t j = 0; j < 2; ++j)
        if (2 * j < count) packed |= uint32_t{codes[at / 2 + j]} << (8 * j);
    }
    for (uint32_t j = 0; j < 4; ++j) values[j] = static_cast<int32_t>((packed >> (4 * j) & 15) ^ 8) - 8;
  }
};

// int8 and int4: all scales, then all codes.
template <typename Packing, typename Rounding>
struct LevelsFormat {
  static constexpr bool kKeepsBits = false;
  static constexpr float kLevels = Packing::kLevels, kMaxScale = LevelsOf(Packing::kLevels).max_scale;

  struct Encoder {
    SLUICE_DEVICE explicit Encoder(const EncodeTask& task)
        : rounding(task), scales(task.out), codes(task.out + ScaleBytes(task.n)),
          aligned(device::IsAligned<uint32_t>(task.out)) {}
    SLUICE_DEVICE Quad Encode(uint64_t row, uint64_t at, uint32_t count, const Quad& p) const {
      float scale;
      const Codes made = Quantize(rounding, kLevels, kMaxScale, at, p, &scale);
      if (device::Lane() == 0) device::StoreBytes<float>(scales + 4 * row, scale, aligned);
      Packing::Store(codes, at, made.bits, count, aligned);
      return made.wholes;
    }
    Rounding rounding;
    uint8_t *scales, *codes;
    bool aligned;
  };

  struct Decoder {
    SLUICE_DEVICE explicit Decoder(const DecodeTask& task)
        : scales(task.in), codes(task.in + ScaleBytes(task.n)), aligned(device::IsAligned<uint32_t>(task.in)) {}
    SLUICE_DEVICE Quad Decode(uint64_t row, uint64_t at, uint32_t count) const {
      const float scale = device::LoadBytes<float>(scales + 4 * row, aligned);
      int32_t wholes[4];
      Packing::Load(codes, at, wholes, count, aligned);
      Quad values;
      for (uint32_t j = 0; j < 4; ++j) values.v[j] = device::Mul(static_cast<float>(wholes[j]), scale);
      return values;
    }
    const uint8_t *scales, *codes;
    bool aligned;
  };
};

using Int8Format = LevelsFormat<BytePacking, Nearest>;
using Int8StochasticFormat = LevelsFormat<BytePacking, Stochastic>;
using Int4Format = LevelsFormat<NibblePacking, Nearest>;
using Int4StochasticFormat = LevelsFormat<NibblePacking, Stochastic>;

}  // namespace sluice::compression::cuda
