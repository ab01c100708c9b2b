// threshold:auto:<ratio>: the threshold of the last round, corrected towards the ratio, instead of a selection.
//
// State: the fp32 threshold t; 0, or what is not positive and finite, is none. With k = max(1, ceil(ratio n)):
//   1. With a threshold: every element with |p| >= t. If there are between k / 2 and 2 k of them, they are sent, and the
//      next threshold is t * (count / k)^(1/8): a root, since the tail of gradients is steep; eight times too many in a
//      normal distribution's is a third more threshold.
//   2. Else (the first round, or gradients changed at once): the k largest, as topk would; the next threshold is the
//      smallest magnitude that was sent, 0 if nothing was.
// So the count is never above 2 k, and a round at most as slow as topk's.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "compression/encode_blocks.h"
#include "compression/selection.h"

namespace sluice::compression {
namespace {

class AdaptivePicks final : public Selector {
 public:
  AdaptivePicks(double ratio, std::string name) : ratio_(ratio), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  size_t StateBytes(uint64_t) const override { return sizeof(float); }
  uint64_t MostEntries(uint64_t n) const override { return std::min(n, 2 * EntriesFor(ratio_, n)); }

  std::vector<uint32_t> Select(const EncodeInput& input, float* p) const override {
    const size_t n = input.gradient.size(), k = EntriesFor(ratio_, n), most = MostEntries(n);
    const float last = input.state.empty() ? 0.0f : LoadLe<float>(input.state.data());
    const bool known = last > 0 && std::isfinite(last);
    std::vector<uint32_t> indices;
    CompensateAll(input, p, [&](size_t begin, size_t length, const float* block) {
      if (known && indices.size() <= most) AppendReaching(block, begin, length, last, &indices);
    });
    float next = 0;
    if (known && !indices.empty() && indices.size() <= most && 2 * indices.size() >= k) {
      const float off = static_cast<float>(indices.size()) / static_cast<float>(k);
      next = last * std::sqrt(std::sqrt(std::sqrt(off)));
    } else {
      indices = LargestOf({p, n}, k);
      for (const uint32_t i : indices) next = next == 0 ? std::fabs(p[i]) : std::min(next, std::fabs(p[i]));
    }
    if (!input.state_out.empty()) StoreLe(input.state_out.data(), next);
    return indices;
  }

 private:
  const double ratio_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<Selector> MakeAdaptiveThreshold(double ratio, std::string name) {
  return std::make_unique<AdaptivePicks>(ratio, std::move(name));
}

}  // namespace sluice::compression
