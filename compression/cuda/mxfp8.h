// mxfp8 as seen by one lane of a warp that has a row of 128 elements: four blocks of 32, eight lanes each. docs/codecs.md
// has the bytes, compression/fp8.h tells how the rounding works.
#pragma once

#include <cstdint>

#include "compression/cuda/elements.h"
#include "compression/cuda/grid.h"

namespace sluice::compression::cuda {

using device::Quad;

struct Mxfp8Format {
  static constexpr bool kKeepsBits = false;
  static constexpr uint64_t kBlock = 32;
  static constexpr uint32_t kMaxScale = 246;

  SLUICE_DEVICE static uint64_t Blocks(uint64_t n) { return (n + kBlock - 1) / kBlock; }

  // 2^(byte - 127), for bytes up to 254.
  SLUICE_DEVICE static float PowerOf(uint32_t byte) { return device::FloatOf(byte == 0 ? 1u << 22 : byte << 23); }

  SLUICE_DEVICE static uint8_t RoundToE4M3(float value, float* decoded) {
    constexpr uint32_t kLargest = 0x43E00000, kLeastNormal = 0x3C800000;   // 448, 2^-6
    const uint32_t sign = device::BitsOf(value) & 0x80000000, plain = device::Magnitude(value);
    const uint32_t magnitude = plain < kLargest ? plain : kLargest;
    const uint32_t exponent = (magnitude > kLeastNormal ? magnitude : kLeastNormal) & 0x7F800000;
    const uint32_t rounder = exponent + (20u << 23) + 0x400000;
    const float shifted = device::Add(device::FloatOf(magnitude), device::FloatOf(rounder));
    const uint32_t steps = device::BitsOf(shifted) - rounder;
    *decoded = device::FloatOf(sign | device::BitsOf(device::Sub(shifted, device::FloatOf(rounder))));
    return static_cast<uint8_t>(sign >> 24 | ((exponent >> 20) - (121u << 3) + steps));
  }

  SLUICE_DEVICE static float FloatFromE4M3(uint8_t code) {
    const uint32_t magnitude = code & 0x7Fu, sign = (code & 0x80u) << 24;
    const float small = device::Mul(static_cast<float>(static_cast<int32_t>(magnitude)), 0x1p-9f);
    return device::FloatOf(sign | (magnitude < 8 ? device::BitsOf(small) : (magnitude << 20) + (120u << 23)));
  }

  struct Encoder {
    SLUICE_DEVICE explicit Encoder(const EncodeTask& task)
        : scales(task.out), codes(task.out + Blocks(task.n)), aligned(device::IsAligned<uint32_t>(codes)) {}
    SLUICE_DEVICE Quad Encode(uint64_t, uint64_t at, uint32_t count, const Quad& p) const {
      uint32_t largest = 0;
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t magnitude = device::Magnitude(p.v[j]);
        largest = magnitude > largest ? magnitude : largest;
      }
      for (uint32_t with = 1; with < kBlock / 4; with *= 2) {   // over the block's eight lanes
        const uint32_t other = device::ShuffleXor(largest, with);
        largest = other > largest ? other : largest;
      }
      const uint32_t exponent = (largest + 0x1FFFFF) >> 23, wanted = exponent < 8 ? 0 : exponent - 8;
      const uint32_t byte = wanted < kMaxScale ? wanted : kMaxScale;
      if (at % kBlock == 0 && count > 0) scales[at / kBlock] = static_cast<uint8_t>(byte);
      const float scale = PowerOf(byte), inverse = PowerOf(254 - byte);
      uint8_t bytes[4];
      Quad decoded;
      for (uint32_t j = 0; j < 4; ++j) {
        float value;
        bytes[j] = RoundToE4M3(device::Mul(p.v[j], inverse), &value);
        decoded.v[j] = device::Mul(value, scale);
      }
      StoreElements<uint8_t, uint32_t>(codes + at, bytes, count, aligned);
      return decoded;
    }
    uint8_t *scales, *codes;
    bool aligned;
  };

  struct Decoder {
    SLUICE_DEVICE explicit Decoder(const DecodeTask& task)
        : scales(task.in), codes(task.in + Blocks(task.n)), aligned(device::IsAligned<uint32_t>(codes)) {}
    SLUICE_DEVICE Quad Decode(uint64_t, uint64_t at, uint32_t count) const {
      Quad values = {{0.0f, 0.0f, 0.0f, 0.0f}};
      if (count == 0) return values;
      const uint32_t byte = scales[at / kBlock];
      const float scale = PowerOf(byte < 254 ? byte : 254);
      uint8_t bytes[4];
      LoadElements<uint8_t, uint32_t>(codes + at, bytes, count, aligned);
      for (uint32_t j = 0; j < 4; ++j) values.v[j] = device::Mul(FloatFromE4M3(bytes[j]), scale);
      return values;
    }
    const uint8_t *scales, *codes;
    bool aligned;
  };
};

}  // namespace sluice::compression::cuda
