// The values of a sparse encoding: any format of a fixed size, with entries for elements.
#pragma once

#include <cstdint>

#include "compression/cuda/formats.h"
#include "compression/cuda/levels.h"
#include "compression/cuda/mxfp8.h"
#include "compression/cuda/onebit.h"
#include "compression/cuda/sparse_state.h"

namespace sluice::compression::cuda {

// The codec's id on the wire (compression/codec.h); none of 8 bits for what carries no values.
inline constexpr uint8_t kNoId = 255;

inline uint8_t WireId(Format values) {
  switch (values) {
    case Format::kNone: return 0;
    case Format::kFp16: return 1;
    case Format::kBf16: return 2;
    case Format::kInt8:
    case Format::kInt8Stochastic: return 3;
    case Format::kInt4:
    case Format::kInt4Stochastic: return 5;
    case Format::kOneBit: return 6;
    case Format::kMxfp8: return 8;
    default: return kNoId;
  }
}

SLUICE_DEVICE uint64_t ValueBytes(uint8_t id, uint64_t count) {
  switch (id) {
    case 0: return 4 * count;
    case 1:
    case 2: return 2 * count;
    case 3: return count + ScaleBytes(count);
    case 5: return (count + 1) / 2 + ScaleBytes(count);
    case 6: return (count + 7) / 8 + 4 * OneBitBlocks(count);
    case 8: return count + Mxfp8Format::Blocks(count);
    default: return UINT64_MAX;
  }
}

// A source (rows.h): p of the entries, which lies in the new residual.
template <bool kKeepsBits>
struct SparseSource {
  SLUICE_DEVICE SparseSource(const SparseTask& task, const SparseWorkspace& work)
      : p(task.residual_out), indices(work.indices) {}
  SLUICE_DEVICE float LoadOne(uint64_t at) const {
    const float value = p[indices[at]];
    return kKeepsBits ? value : device::Add(value, 0.0f);
  }
  // A zero that is sent keeps its sign in the residual.
  SLUICE_DEVICE void LeaveOne(uint64_t at, float value, float decoded) const {
    const float rest = kKeepsBits ? 0.0f : device::Sub(value, decoded);
    if (rest != 0 || value != 0) p[indices[at]] = rest;
  }
  SLUICE_DEVICE Quad Load(uint64_t at, uint32_t count) const {
    Quad values = {{0.0f, 0.0f, 0.0f, 0.0f}};
    for (uint32_t j = 0; j < 4; ++j)
      if (j < count) values.v[j] = LoadOne(at + j);
    return values;
  }
  SLUICE_DEVICE void Leave(uint64_t at, uint32_t count, const Quad& values, const Quad& decoded) const {
    for (uint32_t j = 0; j < 4; ++j)
      if (j < count) LeaveOne(at + j, values.v[j], decoded.v[j]);
  }
  float* p;
  const uint32_t* indices;
};

// topk's halves, with a power of two for all.
inline constexpr int kMinTopKExponent = -126, kMaxTopKExponent = 112;

// E of the format: the largest magnitude lands in [2^15, 2^16).
SLUICE_DEVICE int ExponentFor(uint32_t largest) {
  if (largest == 0) return 0;
  const int exponent = static_cast<int>(largest >> 23) - 127 - 15;
  return exponent < kMinTopKExponent ? kMinTopKExponent : exponent;
}

SLUICE_DEVICE float PowerOfTwo(int exponent) { return device::FloatOf(static_cast<uint32_t>(exponent + 127) << 23); }

struct TopKEncoder {
  SLUICE_DEVICE TopKEncoder(const EncodeTask& values, int exponent)
      : halves(values), up(PowerOfTwo(-exponent)), unit(PowerOfTwo(exponent)) {}
  SLUICE_DEVICE Quad Encode(uint64_t row, uint64_t at, uint32_t count, Quad p) const {
    for (uint32_t j = 0; j < 4; ++j) p.v[j] = device::Mul(p.v[j], up);
    Quad decoded = halves.Encode(row, at, count, p);
    for (uint32_t j = 0; j < 4; ++j) decoded.v[j] = device::Mul(decoded.v[j], unit);
    return decoded;
  }
  HalfFormat<Fp16Rules>::Encoder halves;
  float up, unit;
};

struct TopKDecoder {
  SLUICE_DEVICE TopKDecoder(const DecodeTask& values, int exponent) : halves(values), unit(PowerOfTwo(exponent)) {}
  SLUICE_DEVICE Quad Decode(uint64_t row, uint64_t at, uint32_t count) const {
    Quad values = halves.Decode(row, at, count);
    for (uint32_t j = 0; j < 4; ++j) values.v[j] = device::Mul(values.v[j], unit);
    return values;
  }
  HalfFormat<Fp16Rules>::Decoder halves;
  float unit;
};

}  // namespace sluice::compression::cuda
