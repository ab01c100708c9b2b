// Loops over fp32 values, one rounding an element.
#pragma once

#include <span>

#include "base/bytes.h"

namespace sluice::server {

void Divide(std::span<float> values, float by);       // IEEE division, as REDUCTION_MEAN in server/math/reduce.h
void Multiply(std::span<float> values, float by);
// out = a + b, or (a + b) / by, for little-endian fp32 at any alignment; each of their bytes is loaded once (a peer may be
// writing them). True if every value written is finite. Writes past the cache: out is for others to read.
bool AddBytes(ConstBytes a, ConstBytes b, std::span<float> out);
bool MeanOfBytes(ConstBytes a, ConstBytes b, float by, std::span<float> out);
void Subtract(std::span<const float> a, std::span<const float> b, std::span<float> out);   // out = a - b

}  // namespace sluice::server
