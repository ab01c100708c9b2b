// How int8 and int4 make codes of a block: scale of the block to nearest, of the block at random, or one scale for all.
//
//   CODEC              the block's own range, to nearest          (block_quantize.h)
//   CODEC:stochastic   the block's own range, at random
//   CODEC:static:R     one range for all blocks, all rounds and all workers, from a calibration (calibrate.h), to nearest:
//                      scale = the smallest power of two with L * scale >= R; values beyond L * scale are held to it, and the
//                      rest stays in the residual. So codes * scale are exact, and their sum over up to 2^16 workers too, in
//                      any order: adding codes as integers gives the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "compression/block_quantize.h"
#include "compression/draws.h"

namespace sluice::compression {

class Quantizer {
 public:
  // parameter: what stands behind the codec's ':', or "".
  static absl::StatusOr<Quantizer> Parse(std::string_view codec, std::string_view parameter, Levels levels);

  const std::string& name() const { return name_; }
  bool stochastic() const { return stochastic_; }
  bool is_static() const { return scale_ > 0; }

  // Encodes one block of n <= 128 elements; p becomes the residual. Returns the scale. draws: one an element, if stochastic.
  float Quantize(float* p, size_t n, const uint32_t* draws, int8_t* codes) const {
    if (scale_ > 0) return QuantizeStatic(p, n, codes);
    return stochastic_ ? QuantizeStochastic(p, n, levels_, draws, codes) : QuantizeNearest(p, n, levels_, codes);
  }

 private:
  float QuantizeStatic(float* __restrict p, size_t n, int8_t* __restrict codes) const {
    constexpr float kRounder = 12582912.0f;   // as in QuantizeNearest
    const float inverse = 1.0f / scale_, limit = levels_.count;
    for (size_t i = 0; i < n; ++i) {
      const float wanted = std::max(-limit, std::min(p[i] * inverse, limit));
      const float shifted = wanted + kRounder;
      codes[i] = static_cast<int8_t>(std::bit_cast<uint32_t>(shifted));
      p[i] = p[i] - (shifted - kRounder) * scale_;
    }
    return scale_;
  }

  std::string name_;
  Levels levels_;
  bool stochastic_ = false;
  float scale_ = 0;   // of all blocks; 0 = each block has its own
};

}  // namespace sluice::compression
