// What one path really carries: bytes that were done over the time in which it had something to do.
//
// Windows of 20 ms of busy time, smoothed by half, so that a path that slows down or recovers is known within a few of
// them. A path on which nothing completes loses its rate as time passes, without waiting for a completion.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace sluice::transport::multipath {

class Goodput {
 public:
  // Something was handed to the path; busy: it had something already.
  void Began(bool busy, TimeNs now) {
    if (!busy) Restart(now);
    last_used_ = now;
  }
  // bytes were done; busy: there is more in flight.
  void Finished(size_t bytes, bool busy, TimeNs now) {
    window_bytes_ += bytes;
    const TimeNs elapsed = std::max<TimeNs>(now - window_start_, 1);
    if (elapsed < kWindow && busy) return;
    const double sample = static_cast<double>(window_bytes_) * 1e9 / static_cast<double>(elapsed);
    // A lone chunk is mostly waiting time: it may show that the path has recovered, but not that it has become slow.
    if (rate_ == 0 || elapsed >= kWindow / 20 || sample > rate_) rate_ = rate_ == 0 ? sample : (rate_ + sample) / 2;
    Restart(now);
  }
  // Bytes a second; 0 = not known. in_flight: bytes that have not been done.
  double Rate(size_t in_flight, TimeNs now) const {
    const TimeNs elapsed = now - window_start_;
    if (in_flight == 0 || rate_ == 0 || elapsed < kWindow) return rate_;
    // At best all that is in flight is done at this moment.
    return std::min(rate_, static_cast<double>(window_bytes_ + in_flight) * 1e9 / static_cast<double>(elapsed));
  }
  double last_rate() const { return rate_; }
  TimeNs last_used() const { return last_used_; }

 private:
  static constexpr TimeNs kWindow = 20 * kMillisecond;
  void Restart(TimeNs now) {
    window_start_ = now;
    window_bytes_ = 0;
  }
  double rate_ = 0;
  TimeNs window_start_ = 0, last_used_ = 0;
  uint64_t window_bytes_ = 0;
};

}  // namespace sluice::transport::multipath
