// Exact selection of the k largest magnitudes, ties to the lower index, by counting: no sort.
//
// A magnitude is the 31 bits of a float without its sign; finite magnitudes compare as their bits do.
//   1. Count(): a histogram of the upper 11 bits, while the values are made (they are still in the cache).
//   2. Select(): the bin in which the k-th magnitude lies; one pass gathers the indices of that bin and those above.
//   3. Two more histograms of 10 bits each, over that bin's members only, find the k-th magnitude to the last bit, and
//      how many that equal it are taken.
// Cost: two passes over the values plus work for the candidates. Zeros are never selected.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::compression {

class TopKSelector {
 public:
  void Count(std::span<const float> values);

  // Indices in rising order, at most k (fewer if there are fewer that are not zero). `values` are those that were
  // counted, in the same order; fewer than 2^32.
  std::vector<uint32_t> Select(std::span<const float> values, size_t k) const;

  // The same among `candidates` alone (rising indices of values that are not zero), without Count().
  static std::vector<uint32_t> SelectAmong(std::span<const float> values, std::vector<uint32_t> candidates, size_t k);

 private:
  static constexpr size_t kBins = 2048;
  // Neighbouring values often share a bin; four tables keep their increments from waiting for each other.
  std::array<std::array<uint32_t, kBins>, 4> counts_{};
};

}  // namespace sluice::compression
