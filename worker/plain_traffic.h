// What this worker's links carry when no codec slows them or makes them look quick: bytes of large uncompressed pushes, and for
// how long any was on its way, from the hand-over to the sender until the owner has all of it. Bytes over time is the goodput
// that the choice of codecs reckons with (docs/policy.md, "auto"). Small pushes measure latency, and do not count.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace sluice::worker {

class PlainTraffic {
 public:
  static constexpr size_t kLeastBytes = 64 << 10;

  void Begin(TimeNs now) {
    if (under_way_++ == 0) since_ = now;
  }
  // delivered: 0 if it was given up.
  void End(TimeNs now, uint64_t delivered) {
    bytes_ += delivered;
    if (--under_way_ == 0) busy_ += now - since_;
  }
  uint64_t bytes() const { return bytes_; }
  TimeNs busy(TimeNs now) const { return busy_ + (under_way_ > 0 ? now - since_ : 0); }

 private:
  size_t under_way_ = 0;
  TimeNs since_ = 0, busy_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace sluice::worker
