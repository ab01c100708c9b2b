// Which elements a sparse codec sends. A selector makes p (compression/encode_blocks.h) and picks in the same passes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "compression/codec.h"

namespace sluice::compression {

class Selector {
 public:
  virtual ~Selector() = default;
  virtual std::string name() const = 0;             // as in configuration, e.g. "topk:0.01"
  virtual bool drawn() const { return false; }      // DrawnIndices gives the elements: their key is all that is sent
  virtual size_t StateBytes(uint64_t /*n*/) const { return 0; }   // as Codec's
  virtual uint64_t MostEntries(uint64_t n) const = 0;
  // Writes all of p, fewer than 2^32 elements, and returns rising indices, at most MostEntries.
  virtual std::vector<uint32_t> Select(const EncodeInput& input, float* p) const = 0;
};

absl::StatusOr<std::unique_ptr<Selector>> MakeTopKSelector(std::string_view ratio);
absl::StatusOr<std::unique_ptr<Selector>> MakeRandomSelector(std::string_view ratio);
absl::StatusOr<std::unique_ptr<Selector>> MakeThresholdSelector(std::string_view value);   // or "auto:<ratio>"
std::unique_ptr<Selector> MakeAdaptiveThreshold(double ratio, std::string name);

// k = max(1, ceil(ratio n)), the product in fp64; 0 of nothing.
uint64_t EntriesFor(double ratio, uint64_t n);

// The k largest magnitudes but for zeros, ties to the lower index, in rising order of index.
std::vector<uint32_t> LargestOf(std::span<const float> p, size_t k);

// Appends begin + i for each element of the block with |block[i]| >= least, a finite value above 0.
void AppendReaching(const float* block, size_t begin, size_t length, float least, std::vector<uint32_t>* indices);

// One random element of each of `count` strata: entry j lies in [floor(j n / count), floor((j + 1) n / count)), at the
// stratum's first element plus draw j times its size / 2^32. Fills out with entries first, first + 1, ...
// count <= n < 2^32.
void DrawnIndices(uint64_t key, uint64_t count, uint64_t n, uint64_t first, std::span<uint32_t> out);
uint64_t SelectionKey(const RandomKey& random);

}  // namespace sluice::compression
