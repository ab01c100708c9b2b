// Loops over fp32 values, one rounding an element.
#pragma once

#include <span>

namespace sluice::server {

void Divide(std::span<float> values, float by);       // IEEE division, as REDUCTION_MEAN in server/math/reduce.h
void Multiply(std::span<float> values, float by);
void Subtract(std::span<const float> a, std::span<const float> b, std::span<float> out);   // out = a - b

}  // namespace sluice::server
