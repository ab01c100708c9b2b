// onebit as seen by a warp: a block of 256 elements a turn. Lane j has elements j, j + 32, ... of it, so that its sum is
// sum j of docs/codecs.md, and a ballot is four bytes of signs.
#pragma once

#include <cstdint>

#include "compression/cuda/grid.h"

namespace sluice::compression::cuda {

using device::Quad;

inline constexpr uint32_t kOneBitBlock = 256;

SLUICE_DEVICE uint64_t OneBitBlocks(uint64_t n) { return (n + kOneBitBlock - 1) / kOneBitBlock; }

// The mean magnitude of a block of m elements, from the sums of all lanes.
SLUICE_DEVICE float OneBitScale(float sum, uint32_t m) {
  for (uint32_t half = device::kWarpLanes / 2; half > 0; half /= 2)
    sum = device::Add(sum, device::ShuffleDown(sum, half));
  constexpr float kLargest = 3.402823466e+38f;
  const float longer = m == kOneBitBlock ? 1.0f : device::Div(256.0f, static_cast<float>(m));
  const float mean = device::Mul(device::Shuffle(sum, 0), longer);
  return mean < kLargest ? mean : kLargest;
}

// Encodes n elements of a source (rows.h) to `out`.
template <typename Source>
SLUICE_DEVICE void EncodeOneBitBlocks(uint8_t* out, uint64_t n, const Source& source) {
  constexpr uint32_t kEach = kOneBitBlock / device::kWarpLanes;
  uint8_t* const signs = out + 4 * OneBitBlocks(n);
  const bool aligned = device::IsAligned<uint32_t>(out);
  const uint64_t stride = uint64_t{device::GridX()} * kWarps;
  for (uint64_t block = uint64_t{device::BlockX()} * kWarps + device::WarpIndex(); block < OneBitBlocks(n);
       block += stride) {
    const uint64_t begin = block * kOneBitBlock, left = n - begin;
    const uint32_t m = left < kOneBitBlock ? static_cast<uint32_t>(left) : kOneBitBlock;
    float p[kEach], sum = 0;
    for (uint32_t k = 0; k < kEach; ++k) {
      const uint32_t i = k * device::kWarpLanes + device::Lane();
      p[k] = i < m ? source.LoadOne(begin + i) : 0.0f;
    }
    uint32_t mine = 0;   // lane k keeps the signs of elements 32 k to 32 k + 31
    for (uint32_t k = 0; k < kEach; ++k) {
      sum = device::Add(sum, device::Mul(device::FloatOf(device::Magnitude(p[k])), 0x1p-8f));   // +0 adds nothing
      const uint32_t word = device::Ballot(p[k] < 0);
      mine = device::Lane() == k ? word : mine;
    }
    const float scale = OneBitScale(sum, m);
    for (uint32_t k = 0; k < kEach; ++k) {
      const uint32_t i = k * device::kWarpLanes + device::Lane();
      if (i < m) source.LeaveOne(begin + i, p[k], p[k] < 0 ? -scale : scale);
    }
    if (device::Lane() == 0) device::StoreBytes<float>(out + 4 * block, scale, aligned);
    const uint32_t bytes = (m + 7) / 8, first = 4 * device::Lane();
    uint8_t* const to = signs + block * (kOneBitBlock / 8) + first;
    if (first + 4 <= bytes) {
      device::StoreBytes<uint32_t>(to, mine, aligned);
    } else {
      for (uint32_t b = 0; first + b < bytes; ++b) to[b] = static_cast<uint8_t>(mine >> (8 * b));
    }
  }
}

// Of rows, as the other formats: a lane's four signs are half a byte.
struct OneBitFormat {
  struct Decoder {
    SLUICE_DEVICE explicit Decoder(const DecodeTask& task)
        : scales(task.in), signs(task.in + 4 * OneBitBlocks(task.n)), aligned(device::IsAligned<uint32_t>(task.in)) {}
    SLUICE_DEVICE Quad Decode(uint64_t, uint64_t at, uint32_t count) const {
      Quad values = {{0.0f, 0.0f, 0.0f, 0.0f}};
      if (count == 0) return values;
      const uint32_t scale = device::LoadBytes<uint32_t>(scales + 4 * (at / kOneBitBlock), aligned);
      const uint32_t negative = uint32_t{signs[at / 8]} >> (at % 8);
      for (uint32_t j = 0; j < 4; ++j) values.v[j] = device::FloatOf(scale ^ (negative >> j & 1) << 31);
      return values;
    }
    const uint8_t *scales, *signs;
    bool aligned;
  };
};

}  // namespace sluice::compression::cuda
