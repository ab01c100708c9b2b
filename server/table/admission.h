// How often ids that have no row yet were sighted, approximately and in fixed memory: a count-min sketch (Cormode &
// Muthukrishnan 2005) with conservative update (Estan & Varghese 2002) that forgets by halves.
//
// Four rows of 2^18 counters of 8 bits, 1 MiB. Counter of id in row k: MixId(id + k 0x9E3779B97F4A7C15) mod 2^18. An
// id's estimate is the smallest of its four. n sightings of an id raise its estimate by n (at most to 255) and its
// counters to at least that, none of them further. After 2^17 sightings (of all ids, in whole calls) every counter is
// halved, rounding down.
//
// Error: the counts in a row add up to less than 2^18 at any time (2^17 + 2^16 + ...), that is one a counter. So, for
// ids spread evenly, an estimate is too high by one or more with probability at most (1 - 1/e)^4 = 16 %, by two or more
// with (1 - 2/e)^4 = 0.5 %; just after halving 2.4 % and 0.01 %. It is never too low for sightings since the last
// halving; older ones count half, a quarter, and so on. An id that is seen less than once in some 10^5 sightings of a
// segment may thus never be admitted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compression/row_payload.h"

namespace sluice::server {

class Admission {
 public:
  static constexpr uint32_t kMostSightings = 255;  // what can be asked for
  static constexpr size_t kRows = 4;
  static constexpr size_t kWidth = size_t{1} << 18;
  static constexpr size_t kHalveAfter = kWidth / 2;
  static constexpr size_t kBytes = kRows * kWidth;

  explicit Admission(uint32_t after) : after_(after), counters_(after > 1 ? kBytes : 0) {}

  // Counts n sightings of an id; true if it has enough of them now. Always true for after <= 1.
  bool Sight(uint64_t id, uint32_t n) {
    if (after_ <= 1) return true;
    if (counted_ >= kHalveAfter) Halve();
    counted_ += n;
    uint8_t* cells[kRows];
    uint32_t estimate = kMostSightings;
    for (size_t k = 0; k < kRows; ++k) {
      cells[k] = &counters_[k * kWidth + compression::MixId(id + k * 0x9E3779B97F4A7C15) % kWidth];
      estimate = std::min<uint32_t>(estimate, *cells[k]);
    }
    estimate = static_cast<uint32_t>(std::min<uint64_t>(uint64_t{estimate} + n, kMostSightings));
    for (uint8_t* cell : cells) *cell = std::max(*cell, static_cast<uint8_t>(estimate));
    return estimate >= after_;
  }

  size_t bytes() const { return counters_.capacity(); }

  // For copies.
  std::span<const uint8_t> counters() const { return counters_; }
  uint64_t counted() const { return counted_; }
  void Restore(std::span<const uint8_t> counters, uint64_t counted) {
    counters_.assign(counters.begin(), counters.end());
    counted_ = counted;
  }

 private:
  void Halve() {
    for (uint8_t& counter : counters_) counter = static_cast<uint8_t>(counter >> 1);
    counted_ = 0;
  }

  const uint32_t after_;
  std::vector<uint8_t> counters_;
  uint64_t counted_ = 0;  // since the last halving
};

}  // namespace sluice::server
