// What an encoding cost: norms of one push, for statistics of tensors.
#pragma once

#include "compression/codec.h"

namespace sluice::compression {

// Squares of L2 norms, summed in fp64.
struct EncodingNorms {
  double gradient = 0;
  double point = 0;      // p = gradient + scale * residual (or velocity + …), what was encoded
  double error = 0;      // p - decoded
  double residual = 0;   // the new residual; 0 where none is kept

  EncodingNorms& operator+=(const EncodingNorms& other) {
    gradient += other.gradient, point += other.point, error += other.error, residual += other.residual;
    return *this;
  }
};

// Square of the L2 norm, summed in fp64 in an order that depends on the size alone.
double SquaredNorm(std::span<const float> values);

// input: as it was encoded, residual_out written. Decodes the encoding.
EncodingNorms MeasureEncoding(const EncodeInput& input, const Codec& codec, ConstBytes encoded);

}  // namespace sluice::compression
