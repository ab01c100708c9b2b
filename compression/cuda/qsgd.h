// qsgd and terngrad as seen by one lane of a warp that has a block of 128 elements (docs/codecs.md). A lane's four
// elements are half a byte of each plane: two lanes share a byte.
#pragma once

#include <cstdint>

#include "compression/cuda/levels.h"

namespace sluice::compression::cuda {

inline constexpr uint32_t kQsgdHeader = 4, kMostQsgdLevels = 127;

SLUICE_DEVICE uint64_t QsgdBytes(uint64_t n, uint32_t bits) {
  return kQsgdHeader + ScaleBytes(n) + (n + 7) / 8 * bits;
}

// Where the planes of a row lie, and how many bytes each has.
struct QsgdRow {
  SLUICE_DEVICE QsgdRow(uint64_t row, uint64_t n, uint32_t bits)
      : at(kQsgdHeader + ScaleBytes(n) + row * (kRow / 8) * bits),
        plane_bytes(n - row * kRow < kRow ? static_cast<uint32_t>((n - row * kRow + 7) / 8) : uint32_t{kRow / 8}) {}
  uint64_t at;
  uint32_t plane_bytes;
};

struct QsgdEncoder {
  SLUICE_DEVICE QsgdEncoder(const EncodeTask& task, uint32_t count, float most)
      : rounding(task), out(task.out), n(task.n), levels(static_cast<float>(count)), max_scale(most),
        bits(device::BitWidth(2 * count)), aligned(device::IsAligned<uint32_t>(task.out)) {
    if (device::BlockX() == 0 && device::ThreadIndex() == 0) device::StoreBytes<uint32_t>(out, count, aligned);
  }
  SLUICE_DEVICE Quad Encode(uint64_t row, uint64_t at, uint32_t, const Quad& p) const {
    float scale;
    const Codes codes = Quantize(rounding, levels, max_scale, at, p, &scale);
    if (device::Lane() == 0) device::StoreBytes<float>(out + kQsgdHeader + 4 * row, scale, aligned);
    uint32_t mine = 0;   // half a byte of each plane, the lowest first; zeros behind the last element
    for (uint32_t b = 0; b < bits; ++b)
      for (uint32_t j = 0; j < 4; ++j) mine |= (codes.bits[j] >> b & 1) << (4 * b + j);
    const uint32_t other = device::ShuffleXor(mine, 1);
    const bool odd = device::Lane() % 2 != 0;
    const uint32_t low = odd ? other : mine, high = odd ? mine : other;
    const QsgdRow place(row, n, bits);
    if (device::Lane() / 2 < place.plane_bytes)
      for (uint32_t b = odd; b < bits; b += 2)   // the two lanes take turns
        out[place.at + b * place.plane_bytes + device::Lane() / 2] =
            static_cast<uint8_t>((low >> (4 * b) & 15) | (high >> (4 * b) & 15) << 4);
    return codes.wholes;
  }
  Stochastic rounding;
  uint8_t* out;
  uint64_t n;
  float levels, max_scale;
  uint32_t bits;
  bool aligned;
};

struct QsgdFormat {
  // A header that makes no sense, or another size than it asks for, decodes to zeros.
  struct Decoder {
    SLUICE_DEVICE explicit Decoder(const DecodeTask& task)
        : in(task.in), n(task.n), bits(0), aligned(device::IsAligned<uint32_t>(task.in)) {
      if (task.bytes < kQsgdHeader) return;
      const uint32_t levels = device::LoadBytes<uint32_t>(in, aligned);
      if (levels == 0 || levels > kMostQsgdLevels) return;
      const uint32_t width = device::BitWidth(2 * levels);
      if (task.bytes == QsgdBytes(n, width)) bits = width;
    }
    SLUICE_DEVICE Quad Decode(uint64_t row, uint64_t, uint32_t count) const {
      Quad values = {{0.0f, 0.0f, 0.0f, 0.0f}};
      if (bits == 0 || count == 0) return values;
      const float scale = device::LoadBytes<float>(in + kQsgdHeader + 4 * row, aligned);
      const QsgdRow place(row, n, bits);
      uint32_t mine = 0;
      for (uint32_t b = 0; b < bits; ++b) {
        const uint32_t both = in[place.at + b * place.plane_bytes + device::Lane() / 2];
        mine |= (both >> (4 * (device::Lane() % 2)) & 15) << (4 * b);
      }
      const int32_t sign = 1 << (bits - 1);
      for (uint32_t j = 0; j < 4; ++j) {
        uint32_t code = 0;
        for (uint32_t b = 0; b < bits; ++b) code |= (mine >> (4 * b + j) & 1) << b;
        values.v[j] = device::Mul(static_cast<float>((static_cast<int32_t>(code) ^ sign) - sign), scale);
      }
      return values;
    }
    const uint8_t* in;
    uint64_t n;
    uint32_t bits;
    bool aligned;
  };
};

}  // namespace sluice::compression::cuda
