#include "server/vector_ops.h"

#include <cstddef>

namespace sluice::server {

void Divide(std::span<float> values, float by) {
  for (float& value : values) value /= by;
}

void Multiply(std::span<float> values, float by) {
  for (float& value : values) value *= by;
}

void Subtract(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = a[i] - b[i];
}

}  // namespace sluice::server
