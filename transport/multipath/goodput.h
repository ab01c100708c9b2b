// What one path really carries: bytes that were done over the time in which it had something to do.
//
// A window is closed once it has 20 ms of busy time and four chunks, or 100 ms and one; windows are smoothed by half, so that
// a path that slows down or recovers is known within a few of them. Busy time is summed over pauses. A window ends with all
// that was done at its last moment: acknowledgements come in bursts, and one that is cut would be bytes of no time.
// A path on which nothing completes loses its rate as time passes, without waiting for a completion.
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
    last_used_ = now;
    if (busy) {
      ++stretch_chunks_;
      return;
    }
    counted_to_ = stretch_began_ = now;
    stretch_chunks_ = 1;
  }
  // bytes were done; busy: there is more in flight.
  void Finished(size_t bytes, bool busy, TimeNs now) {
    if (!busy && stretch_chunks_ == 1 && Lone(bytes, now - stretch_began_)) return;
    if (now > counted_to_ && Full()) Close();
    busy_time_ += std::max<TimeNs>(now - counted_to_, 0);
    counted_to_ = now;
    bytes_ += bytes;
    ++chunks_;
    if (!busy && Full()) Close();
  }
  // Bytes a second, to choose by; 0 = not known. in_flight: bytes that have not been done.
  double Rate(size_t in_flight, TimeNs now) const {
    const TimeNs still = now - counted_to_;
    if (in_flight == 0 || rate_ == 0 || still < kWindow) return rate_;
    // At best all that is in flight is done at this moment.
    return std::min(rate_, static_cast<double>(in_flight) * 1e9 / static_cast<double>(still));
  }
  // As measured over whole windows, for people; 0 = nothing yet.
  double measured() const { return measured_; }
  TimeNs last_used() const { return last_used_; }

 private:
  static constexpr TimeNs kWindow = 20 * kMillisecond, kLongWindow = 100 * kMillisecond;
  static constexpr uint32_t kLeastChunks = 4;

  bool Full() const { return chunks_ > 0 && (busy_time_ >= kLongWindow || (busy_time_ >= kWindow && chunks_ >= kLeastChunks)); }
  void Close() {
    const double sample = static_cast<double>(bytes_) * 1e9 / static_cast<double>(busy_time_);
    const double weight = busy_time_ >= kLongWindow ? 0.75 : 0.5;
    rate_ = rate_ == 0 ? sample : rate_ + weight * (sample - rate_);
    measured_ = measured_ == 0 ? sample : measured_ + weight * (sample - measured_);
    busy_time_ = 0;
    bytes_ = 0;
    chunks_ = 0;
  }
  // One chunk on an idle path. It is mostly waiting time: it may show that the path has recovered, but not that it has become
  // slow, unless it took long. Nor does it show how much better the path is: the first bytes may pass faster than others
  // (a token bucket). True: it says no more.
  bool Lone(size_t bytes, TimeNs took) {
    const double sample = static_cast<double>(bytes) * 1e9 / static_cast<double>(std::max<TimeNs>(took, 1));
    if (rate_ == 0 || sample > rate_) rate_ = rate_ == 0 ? sample : std::min(sample, 2 * rate_);
    return took < kWindow;
  }

  double rate_ = 0, measured_ = 0;
  TimeNs last_used_ = 0;
  TimeNs stretch_began_ = 0;       // since when it has had something to do
  uint32_t stretch_chunks_ = 0;    // handed to it since then
  // The window.
  TimeNs busy_time_ = 0, counted_to_ = 0;
  uint64_t bytes_ = 0;
  uint32_t chunks_ = 0;
};

// The least of what was seen in the last 5 to 10 s.
class LeastTime {
 public:
  void Add(TimeNs time, TimeNs now) {
    if (now - epoch_ >= kEpoch) {
      before_ = now - epoch_ < 2 * kEpoch ? least_ : 0;
      least_ = 0;
      epoch_ = now;
    }
    if (least_ == 0 || time < least_) least_ = std::max<TimeNs>(time, 1);
  }
  // 0 = nothing seen.
  TimeNs Get() const { return before_ == 0 ? least_ : least_ == 0 ? before_ : std::min(before_, least_); }

 private:
  static constexpr TimeNs kEpoch = 5 * kSecond;
  TimeNs epoch_ = 0, least_ = 0, before_ = 0;
};

}  // namespace sluice::transport::multipath
