// Reproducible sums of fp32 values: any order of additions and any tree of merges gives the same bits.
//
// After Demmel & Nguyen, "Parallel Reproducible Summation" (2015), with integers for bins. The line of fp32 exponents
// is cut into a fixed grid of 32-bit bins: bin j counts units of 2^(32 j - 149). A finite value is M * 2^(p - 149) with
// a whole |M| < 2^24 and 0 <= p <= 253; its home bin is p / 32, and M << (p % 32) falls exactly into that bin (the low
// 32 bits) and the one above (at most 23 bits).
//
// An element keeps a window of three bins, top-1, top and top+1, where top is the highest home bin that it has seen.
// When a higher one arrives the window moves up and the bins below it are dropped; parts of later values that lie below
// the window are dropped too. At the end bin j of the window holds exactly the sum of all values' parts in bin j,
// because whatever window a value met was not above the last one: hence no order can be seen in the result. What is
// dropped is below 2^-55 of the largest magnitude for each value; the rest is rounded once (half to even).
//
// Bins are int64 and take parts below 2^32: 2^31 additions, merges included, cannot overflow. A NaN or infinity makes
// its element NaN whatever else comes. Sums of zeros of any sign are +0. Memory: 28 bytes an element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::server {

class ExactSum {
 public:
  static constexpr size_t kBytesPerElement = 3 * sizeof(int64_t) + sizeof(int32_t);

  ExactSum() = default;
  explicit ExactSum(size_t elements) { Assign(elements); }

  void Assign(size_t elements);   // `elements` sums of nothing
  void Clear();                   // all sums to nothing; memory is kept
  void Release();                 // no elements, no memory

  void Add(std::span<const float> values);   // requires size() values
  void Merge(const ExactSum& other);         // requires the same size
  void Round(std::span<float> out) const;    // requires size() values

  size_t size() const { return top_.size(); }
  // What it consists of, for whoever writes and reads it: server/math/exact_wire.h.
  std::span<const int64_t> below() const { return below_; }
  std::span<const int64_t> home() const { return home_; }
  std::span<const int64_t> above() const { return above_; }
  std::span<const int32_t> top() const { return top_; }
  std::span<int64_t> below() { return below_; }
  std::span<int64_t> home() { return home_; }
  std::span<int64_t> above() { return above_; }
  std::span<int32_t> top() { return top_; }
  size_t MemoryBytes() const;

 private:
  std::vector<int64_t> below_, home_, above_;   // bins top-1, top, top+1
  std::vector<int32_t> top_;                    // 0 to 7; kNonfinite
};

}  // namespace sluice::server
