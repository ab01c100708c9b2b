// Which elements a sparse codec sends. A selector makes p (compression/encode_blocks.h) and picks while a block of it is in the
// first-level cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "compression/codec.h"
#include "compression/topk_select.h"

namespace sluice::compression {

class Selector {
 public:
  virtual ~Selector() = default;
  virtual std::string name() const = 0;             // as in configuration, e.g. "topk:0.01"
  virtual bool drawn() const { return false; }      // DrawnIndices gives the elements: their key is all that is sent
  virtual size_t StateBytes(uint64_t /*n*/) const { return 0; }   // as Codec's
  virtual uint64_t MostEntries(uint64_t n) const = 0;
  // p of all elements, fewer than 2^32, goes to the new residual if that is wanted: what is not picked is thereby done. Returns
  // at most MostEntries.
  virtual Picked Select(const EncodeInput& input) const = 0;
};

absl::StatusOr<std::unique_ptr<Selector>> MakeTopKSelector(std::string_view ratio);
absl::StatusOr<std::unique_ptr<Selector>> MakeRandomSelector(std::string_view ratio);
absl::StatusOr<std::unique_ptr<Selector>> MakeThresholdSelector(std::string_view value);   // or "auto:<ratio>"
std::unique_ptr<Selector> MakeAdaptiveThreshold(double ratio, std::string name);

// k = max(1, ceil(ratio n)), the product in fp64; 0 of nothing.
uint64_t EntriesFor(double ratio, uint64_t n);

// The k largest magnitudes of p but for zeros, ties to the lower index. hint: a magnitude that a little more than k elements
// are thought to reach; what is not finite and positive is none. It changes the speed alone. *least: the k-th magnitude, 0 if there are fewer.
Picked PickLargest(const EncodeInput& input, size_t k, float hint, float* least);

// Puts what the entries leave into the new residual, if there is one: residual[indices[j]] = rest[j].
void StoreRest(const EncodeInput& input, std::span<const uint32_t> indices, std::span<const float> rest);

// One random element of each of `count` strata: entry j lies in [floor(j n / count), floor((j + 1) n / count)), at the
// stratum's first element plus draw j times its size / 2^32. Fills out with entries first, first + 1, ...
// count <= n < 2^32.
void DrawnIndices(uint64_t key, uint64_t count, uint64_t n, uint64_t first, std::span<uint32_t> out);
uint64_t SelectionKey(const RandomKey& random);

}  // namespace sluice::compression
