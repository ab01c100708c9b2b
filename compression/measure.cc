#include "compression/measure.h"

#include <vector>

#include "compression/encode_blocks.h"

namespace sluice::compression {
double SquaredNorm(std::span<const float> values) {
  double lanes[8] = {};
  const size_t n = values.size();
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (size_t j = 0; j < 8; ++j) lanes[j] += static_cast<double>(values[i + j]) * static_cast<double>(values[i + j]);
  for (; i < n; ++i) lanes[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

EncodingNorms MeasureEncoding(const EncodeInput& input, const Codec& codec, ConstBytes encoded) {
  EncodingNorms norms;
  const size_t n = input.gradient.size();
  norms.gradient = SquaredNorm(input.gradient);
  std::vector<float> decoded(n);
  if (!codec.Decode(encoded, decoded).ok()) decoded.assign(n, 0.0f);   // our own encoding: it cannot fail
  const bool kept = !input.residual_out.empty();
  if (kept) norms.error = norms.residual = SquaredNorm(input.residual_out);
  EncodeInput encoded_input = input;
  encoded_input.gradient = codec.GradientOf(input);
  alignas(64) float p[kCompensateBlock];
  for (size_t begin = 0; begin < n; begin += kCompensateBlock) {
    const size_t length = std::min(kCompensateBlock, n - begin);
    if (kept) {   // whatever the codec made of the gradient before it encoded, as momentum correction does
      for (size_t i = 0; i < length; ++i) p[i] = input.residual_out[begin + i] + decoded[begin + i];
    } else {
      Compensate(encoded_input, begin, length, p);
    }
    norms.point += SquaredNorm({p, length});
    if (kept) continue;
    for (size_t i = 0; i < length; ++i) p[i] -= decoded[begin + i];
    norms.error += SquaredNorm({p, length});
  }
  return norms;
}

}  // namespace sluice::compression
