#include "compression/topk_select.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace sluice::compression {
namespace {

inline uint32_t Magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7FFFFFFF; }

// The bin in which the need-th largest lies; *need becomes its place within that bin (from 1). Requires enough members.
template <typename Histogram>
uint32_t FindBin(const Histogram& count, size_t bins, size_t* need) {
  for (size_t bin = bins; bin-- > 0;) {
    const size_t members = count(bin);
    if (members >= *need) return static_cast<uint32_t>(bin);
    *need -= members;
  }
  return 0;
}

// The candidates lie in `bin` and above; `need` of those in it are taken.
std::vector<uint32_t> Refine(std::span<const float> values, std::vector<uint32_t> candidates, uint32_t bin, size_t need) {
  // The k-th magnitude: `need` counts down through ever narrower bins of the candidates.
  uint32_t prefix = bin;
  for (const uint32_t shift : {10u, 0u}) {
    std::array<uint32_t, 1024> counts{};
    for (const uint32_t i : candidates)
      if (const uint32_t m = Magnitude(values[i]); m >> (shift + 10) == prefix) ++counts[(m >> shift) & 1023];
    prefix = prefix << 10 | FindBin([&](size_t b) { return counts[b]; }, counts.size(), &need);
  }
  const uint32_t threshold = prefix;
  size_t kept = 0;
  for (const uint32_t i : candidates) {
    const uint32_t m = Magnitude(values[i]);
    const bool tie = m == threshold && need > 0;
    need -= tie;
    candidates[kept] = i;   // kept never overtakes the reading
    kept += m > threshold || tie;
  }
  candidates.resize(kept);
  return candidates;
}

}  // namespace

void TopKSelector::Count(std::span<const float> values) {
  const size_t n = values.size();
  size_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (size_t t = 0; t < 4; ++t) ++counts_[t][Magnitude(values[i + t]) >> 20];
  for (; i < n; ++i) ++counts_[0][Magnitude(values[i]) >> 20];
}

std::vector<uint32_t> TopKSelector::Select(std::span<const float> values, size_t k) const {
  const size_t n = values.size();
  k = std::min(k, n);
  if (k == 0) return {};
  const auto members = [this](size_t bin) {
    return size_t{counts_[0][bin]} + counts_[1][bin] + counts_[2][bin] + counts_[3][bin];
  };
  size_t need = k;
  const uint32_t bin = FindBin(members, kBins, &need);

  std::vector<uint32_t> candidates(k - need + members(bin) + 1);   // one more: the loop below writes ahead
  const uint32_t floor = std::max(bin << 20, 1u);                  // without zeros
  size_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    candidates[found] = static_cast<uint32_t>(i);
    found += Magnitude(values[i]) >= floor;
  }
  candidates.resize(found);
  if (found <= k) return candidates;

  return Refine(values, std::move(candidates), bin, need);
}

std::vector<uint32_t> TopKSelector::SelectAmong(std::span<const float> values, std::vector<uint32_t> candidates, size_t k) {
  if (candidates.size() <= k) return candidates;
  if (k == 0) return {};
  std::array<uint32_t, kBins> counts{};
  for (const uint32_t i : candidates) ++counts[Magnitude(values[i]) >> 20];
  size_t need = k;
  const uint32_t bin = FindBin([&](size_t b) { return counts[b]; }, kBins, &need);
  std::erase_if(candidates, [&](uint32_t i) { return Magnitude(values[i]) < bin << 20; });
  return candidates.size() <= k ? candidates : Refine(values, std::move(candidates), bin, need);
}

}  // namespace sluice::compression
