// none, fp16 and bf16, as seen by one lane of a warp that has a row of 128 elements. As all formats of a fixed size
// (levels.h, mxfp8.h) they have
//   Encoder(task).Encode(row, at, count, p): writes count elements from `at` on, returns what they decode to
//   Decoder(task).Decode(row, at, count): the values
// with all lanes of the warp there. docs/codecs.md has the bytes.
#pragma once

#include <cstdint>

#include "compression/cuda/device.h"
#include "compression/cuda/elements.h"
#include "compression/cuda/grid.h"

namespace sluice::compression::cuda {

using device::Quad;

// fp16 and bf16.
template <typename Rules>
struct HalfFormat {
  static constexpr bool kKeepsBits = false;

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

struct NoneFormat {
  static constexpr bool kKeepsBits = true;   // without a residual, -0 stays -0

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
