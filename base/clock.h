// Time is handed in: cores and tests own no clock of their own.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

// Nanoseconds since an arbitrary start that does not move while the process lives.
using TimeNs = int64_t;

inline constexpr TimeNs kMicrosecond = 1000;
inline constexpr TimeNs kMillisecond = 1000 * kMicrosecond;
inline constexpr TimeNs kSecond = 1000 * kMillisecond;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimeNs Now() const = 0;
};

// CLOCK_MONOTONIC; thread-safe.
class SteadyClock final : public Clock {
 public:
  TimeNs Now() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// A clock that a test or the simulator moves by hand; not thread-safe.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(TimeNs now = kSecond) : now_(now) {}
  TimeNs Now() const override { return now_; }
  void Set(TimeNs now) { now_ = now; }
  void Advance(TimeNs by) { now_ += by; }

 private:
  TimeNs now_;
};

}  // namespace sluice
