// The sum of a round's row gradients over its contributions: contributions go in one after the other, sums come out.
//
// One fp32 addition a contribution and element in the order of the calls; a row's first contribution assigns. Rows keep
// the order of their first appearance. Memory is kept from round to round and grows with the largest one; Reset takes
// time by the rows of its round, not by the largest. Rows of one round: fewer than 2^31.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::server {

class RowSum {
 public:
  explicit RowSum(uint32_t dim) : dim_(dim) {}

  // ids are unique within one call; values: ids.size() x dim.
  void Add(std::span<const uint64_t> ids, std::span<const float> values);
  void Divide(float by);  // IEEE division of every sum (the mean over contributors)
  void Reset();

  std::span<const uint64_t> ids() const { return ids_; }
  std::span<const float> sums() const { return sums_; }
  std::span<const uint32_t> sightings() const { return sightings_; }  // contributions that had the row
  size_t bytes() const;

 private:
  void Reserve(size_t rows);             // in the index
  uint32_t FindOrAppend(uint64_t id);    // position in ids_; a new row has 0 sightings
  uint32_t FreeSlot(uint64_t id) const;  // of an id that is not there

  const uint32_t dim_;
  std::vector<uint64_t> ids_;
  std::vector<float> sums_;
  std::vector<uint32_t> sightings_;
  std::vector<uint32_t> slots_;  // where in index_ each row is, so that Reset need not clear all of it
  std::vector<uint32_t> index_;  // open addressing, linear, at most half full: 1 + position in ids_, 0 = free
};

}  // namespace sluice::server
