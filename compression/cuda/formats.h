// The formats of a fixed size, as seen by one lane of a warp that has a row of 128 elements. Each has
//   Encoder(task).Encode(row, at, count, p): writes count elements from `at` on, returns what they decode to
//   Decoder(task).Decode(row, at, count): the values
// with all lanes of the warp there. docs/codecs.md has the bytes.
#pragma once

#include <cstdint>

#include "compression/cuda/device.h"
#include "compression/cuda/grid.h"

namespace sluice::compression::cuda {

using device::Quad;

// Elements of `Element` bits, four in a `Four`.
template <typename Element, typename Four>
SLUICE_DEVICE void StoreElements(uint8_t* to, const Element (&elements)[4], uint32_t count, bool aligned) {
  if (count == 4 && aligned) {
    Four four = 0;
    for (uint32_t j = 0; j < 4; ++j) four |= static_cast<Four>(elements[j]) << (8 * sizeof(Element) * j);
    return device::StoreAligned<Four>(to, four);
  }
  for (uint32_t j = 0; j < 4; ++j)
    if (j < count) device::StoreBytes<Element>(to + j * sizeof(Element), elements[j], false);
}

template <typename Element, typename Four>
SLUICE_DEVICE void LoadElements(const uint8_t* from, Element (&elements)[4], uint32_t count, bool aligned) {
  if (count == 4 && aligned) {
    const Four four = device::LoadAligned<Four>(from);
    for (uint32_t j = 0; j < 4; ++j) elements[j] = static_cast<Element>(four >> (8 * sizeof(Element) * j));
    return;
  }
  for (uint32_t j = 0; j < 4; ++j) {
    elements[j] = 0;
    if (j < count) elements[j] = device::LoadBytes<Element>(from + j * sizeof(Element), false);
  }
}

// fp16 and bf16.
template <typename Rules>
struct HalfFormat {
  static constexpr bool kKeepsGradientBits = false;

  struct Encoder {
    SLUICE_DEVICE explicit Encoder(const EncodeTask& task) : out(task.out), aligned(device::IsAligned<uint64_t>(out)) {}
    SLUICE_DEVICE Quad Encode(uint64_t, uint64_t at, uint32_t count, const Quad& p) const {
      uint16_t halves[4];
      Quad decoded;
      for (uint32_t j = 0; j < 4; ++j) {
        halves[j] = Rules::Encode(p.v[j]);
        decoded.v[j] = Rules::Decode(halves[j]);
      }
      StoreElements<uint16_t, uint64_t>(out + 2 * at, halves, count, aligned);
      return decoded;
    }
    uint8_t* out;
    bool aligned;
  };

  struct Decoder {
    SLUICE_DEVICE explicit Decoder(const DecodeTask& task) : in(task.in), aligned(device::IsAligned<uint64_t>(in)) {}
    SLUICE_DEVICE Quad Decode(uint64_t, uint64_t at, uint32_t count) const {
      uint16_t halves[4];
      LoadElements<uint16_t, uint64_t>(in + 2 * at, halves, count, aligned);
      Quad values;
      for (uint32_t j = 0; j < 4; ++j) values.v[j] = Rules::Decode(halves[j]);
      return values;
    }
    const uint8_t* in;
    bool aligned;
  };
};

struct Fp16Rules {
  SLUICE_DEVICE static uint16_t Encode(float p) { return device::HalfOf(device::Saturate(p, 65504.0f)); }
  SLUICE_DEVICE static float Decode(uint16_t half) { return device::FloatOfHalf(half); }
};

struct Bf16Rules {
  SLUICE_DEVICE static uint16_t Encode(float p) {
    const uint32_t bits = device::BitsOf(device::Saturate(p, 0x1.FEp127f));
    return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
  SLUICE_DEVICE static float Decode(uint16_t half) { return device::FloatOf(uint32_t{half} << 16); }
};

struct Int8Format {
  static constexpr bool kKeepsGradientBits = false;
  static constexpr float kMaxScale = 0x1.020406p121f, kMinAmax = 0x1p-118f;
  static constexpr float kRounder = 12582912.0f;   // 1.5 * 2^23 leaves a whole number, half to even, in the low bits

  // A row is a block: its scale is computed by all lanes alike, and written by the first.
  struct Encoder {
    SLUICE_DEVICE explicit Encoder(const EncodeTask& task)
        : scales(task.out), codes(task.out + 4 * ((task.n + kRow - 1) / kRow)),
          aligned(device::IsAligned<uint32_t>(task.out)) {}
    SLUICE_DEVICE Quad Encode(uint64_t row, uint64_t at, uint32_t count, const Quad& p) const {
      uint32_t largest = 0;
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t magnitude = device::Magnitude(p.v[j]);
        largest = magnitude > largest ? magnitude : largest;
      }
      const float amax = device::FloatOf(device::WarpMax(largest));
      float scale = 0, inverse = 0;
      if (amax >= kMinAmax) {
        const float quotient = device::Div(amax, 127.0f);
        scale = quotient < kMaxScale ? quotient : kMaxScale;
        inverse = device::Div(127.0f, amax);
      }
      if (device::Lane() == 0) device::StoreBytes<float>(scales + 4 * row, scale, aligned);
      uint8_t bytes[4];
      Quad decoded;
      for (uint32_t j = 0; j < 4; ++j) {
        const float shifted = device::Add(device::Mul(p.v[j], inverse), kRounder);
        bytes[j] = static_cast<uint8_t>(device::BitsOf(shifted));
        decoded.v[j] = device::Mul(device::Sub(shifted, kRounder), scale);
      }
      StoreElements<uint8_t, uint32_t>(codes + at, bytes, count, aligned);
      return decoded;
    }
    uint8_t *scales, *codes;
    bool aligned;
  };

  struct Decoder {
    SLUICE_DEVICE explicit Decoder(const DecodeTask& task)
        : scales(task.in), codes(task.in + 4 * ((task.n + kRow - 1) / kRow)),
          aligned(device::IsAligned<uint32_t>(task.in)) {}
    SLUICE_DEVICE Quad Decode(uint64_t row, uint64_t at, uint32_t count) const {
      const float scale = device::LoadBytes<float>(scales + 4 * row, aligned);
      uint8_t bytes[4];
      LoadElements<uint8_t, uint32_t>(codes + at, bytes, count, aligned);
      Quad values;
      for (uint32_t j = 0; j < 4; ++j)
        values.v[j] = device::Mul(static_cast<float>(static_cast<int8_t>(bytes[j])), scale);
      return values;
    }
    const uint8_t *scales, *codes;
    bool aligned;
  };
};

struct NoneFormat {
  static constexpr bool kKeepsGradientBits = true;   // without a residual, -0 stays -0

  struct Encoder {
    SLUICE_DEVICE explicit Encoder(const EncodeTask& task) : out(task.out), aligned(device::IsAligned<Quad>(out)) {}
    SLUICE_DEVICE Quad Encode(uint64_t, uint64_t at, uint32_t count, const Quad& p) const {
      if (count == 4 && aligned)
        device::StoreAligned<Quad>(out + 4 * at, p);
      else
        for (uint32_t j = 0; j < 4; ++j)
          if (j < count) device::StoreBytes<float>(out + 4 * (at + j), p.v[j], false);
      return p;
    }
    uint8_t* out;
    bool aligned;
  };

  struct Decoder {
    SLUICE_DEVICE explicit Decoder(const DecodeTask& task) : in(task.in), aligned(device::IsAligned<Quad>(in)) {}
    SLUICE_DEVICE Quad Decode(uint64_t, uint64_t at, uint32_t count) const {
      if (count == 4 && aligned) return device::LoadAligned<Quad>(in + 4 * at);
      Quad values = {{0.0f, 0.0f, 0.0f, 0.0f}};
      for (uint32_t j = 0; j < 4; ++j)
        if (j < count) values.v[j] = device::LoadBytes<float>(in + 4 * (at + j), false);
      return values;
    }
    const uint8_t* in;
    bool aligned;
  };
};

}  // namespace sluice::compression::cuda
