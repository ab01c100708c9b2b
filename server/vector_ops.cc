#include "server/vector_ops.h"

#include <cstddef>

namespace sluice::server {

void Divide(std::span<float> values, float by) {
  for (float& value : values) value /= by;
}

void Multiply(std::span<float> values, float by) {
  for (float& value : values) value *= by;
}

void AddBytes(ConstBytes a, ConstBytes b, std::span<float> out) {
  const std::byte* __restrict x = a.data();
  const std::byte* __restrict y = b.data();
  float* __restrict sum = out.data();
  const size_t n = out.size();
  for (size_t i = 0; i < n; ++i) sum[i] = LoadLe<float>(x + 4 * i) + LoadLe<float>(y + 4 * i);
}

void Subtract(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = a[i] - b[i];
}

}  // namespace sluice::server
