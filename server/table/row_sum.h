// The sum of a round's row gradients over its contributions: contributions go in one after the other, sums come out.
//
// One fp32 addition a contribution and element in the order of the calls; a row's first contribution assigns. Rows keep the
// order of their first appearance. Memory is kept from round to round and grows with the largest one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::server {

class RowSum {
 public:
  explicit RowSum(uint32_t dim);
  ~RowSum();

  // ids are unique within one call; values: ids.size() x dim.
  void Add(std::span<const uint64_t> ids, std::span<const float> values);
  void Divide(float by);   // IEEE division of every sum (the mean over contributors)
  void Reset();

  std::span<const uint64_t> ids() const { return ids_; }
  std::span<const float> sums() const { return sums_; }
  std::span<const uint32_t> sightings() const { return sightings_; }   // contributions that had the row
  size_t bytes() const;

 private:
  const uint32_t dim_;
  std::vector<uint64_t> ids_;
  std::vector<float> sums_;
  std::vector<uint32_t> sightings_;
  std::vector<uint32_t> index_;   // open addressing: 1 + position in ids_, 0 = free
};

}  // namespace sluice::server
