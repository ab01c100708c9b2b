// Exact selection of the k largest magnitudes, ties to the lower index, while the values pass by: no sort, no second pass.
//
// A magnitude is the 31 bits of a float without its sign; finite magnitudes compare as their bits do.
//   1. Gather() keeps the values that reach a bound. A good bound comes from outside (last round's threshold, a sample) and
//      lets through a little more than k.
//   2. Where it was too low and the list is full (4 k), the list is cut to its k largest and the bound becomes what lies
//      above the smallest of them: a later value that equals it has a higher index and loses the tie.
//   3. At the end the list is cut to k. If it has fewer, the bound was too high: begin again with kAnyMagnitude.
// Cutting counts, too: histograms find the k-th magnitude to the last bit, and how many that equal it are taken. Zeros are never
// selected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::compression {

inline constexpr uint32_t kAnyMagnitude = 1;   // all but zeros

// Elements in rising order of index.
struct Picked {
  std::vector<uint32_t> indices;
  std::vector<float> values;
};

// Appends what reaches a bound. The lists are kept longer than what is in them, so that vectors may be stored at their end.
class ReachList {
 public:
  // Element i of the block, first + i of all, if |block[i]| >= the float of the bits `bound`, which are above 0.
  void Append(const float* block, size_t first, size_t length, uint32_t bound);
  // Keeps the k largest and returns the least magnitude of them; 0, and keeps all, if there are fewer.
  uint32_t KeepLargest(size_t k);
  size_t size() const { return size_; }
  Picked Take();

 private:
  std::vector<uint32_t> indices_;
  std::vector<float> values_;
  size_t size_ = 0;
};

class TopKSelector {
 public:
  // bound: bits of a magnitude, above 0.
  TopKSelector(size_t k, uint32_t bound) : k_(k), bound_(bound) {}

  // Blocks in order.
  void Gather(const float* block, size_t first, size_t length);

  // How many reached the bound so far; SIZE_MAX if the list has been cut.
  size_t reached() const { return complete_ ? SIZE_MAX : list_.size(); }

  // False: the bound was too high. Else the k largest are left, fewer if there are fewer that are not zero.
  bool Finish();
  uint32_t least() const { return least_; }   // the k-th magnitude; 0 if there are fewer than k
  Picked Take() { return list_.Take(); }

 private:
  const size_t k_;
  uint32_t bound_;
  bool complete_ = false;   // there are k
  uint32_t least_ = 0;
  ReachList list_;
};

}  // namespace sluice::compression
