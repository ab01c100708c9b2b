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

  Picked Select(const EncodeInput& input) const override {
    const size_t n = input.gradient.size(), k = EntriesFor(ratio_, n), most = MostEntries(n);
    const float last = input.state.empty() ? 0.0f : LoadLe<float>(input.state.data());
    const auto keep = [&](float next) {
      if (!input.state_out.empty()) StoreLe(input.state_out.data(), next);
    };
    float least = 0;
    Picked picked;
    bool found = false;
    if (last > 0 && std::isfinite(last)) {
      TopKSelector selector(k, std::bit_cast<uint32_t>(last));
      CompensateInBlocks(input, [&](size_t begin, size_t length, const float* block) { selector.Gather(block, begin, length); });
      if (const size_t count = selector.reached(); count > 0 && count <= most && 2 * count >= k) {
        const float off = static_cast<float>(count) / static_cast<float>(k);
        keep(last * std::sqrt(std::sqrt(std::sqrt(off))));
        return selector.Take();
      }
      found = selector.Finish();
      least = std::bit_cast<float>(selector.least());
      if (found) picked = selector.Take();
    }
    if (!found) picked = PickLargest(input, k, 0.0f, &least);
    if (least == 0)   // fewer than k
      for (const float v : picked.values) least = least == 0 ? std::fabs(v) : std::min(least, std::fabs(v));
    keep(least);
    return picked;
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
