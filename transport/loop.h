// One event loop, one thread: epoll, timers, and closures posted from other threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace sluice::transport {

class Loop {
 public:
  static absl::StatusOr<std::unique_ptr<Loop>> Create();
  virtual ~Loop() = default;

  // Runs until Stop(). Call it on the thread that is to own everything on the loop.
  virtual void Run() = 0;
  // Thread-safe; Run returns after the closures posted before it have run.
  virtual void Stop() = 0;
  // Thread-safe, never blocks: fn runs on the loop's thread, in order of posting.
  virtual void Post(std::function<void()> fn) = 0;

  // The rest is for the loop's own thread (or before Run).
  // events: EPOLLIN | EPOLLOUT…, level-triggered. fn(events).
  virtual absl::Status Watch(int fd, uint32_t events, std::function<void(uint32_t)> fn) = 0;
  virtual void Rewatch(int fd, uint32_t events) = 0;
  virtual void Unwatch(int fd) = 0;
  // fn runs once, not before `delay` has passed. 0 = after the events at hand. Returns an id for CancelTimer.
  virtual uint64_t After(TimeNs delay, std::function<void()> fn) = 0;
  virtual void CancelTimer(uint64_t id) = 0;
  // Busy-polls this long before it sleeps (default 0: never).
  virtual void set_spin(TimeNs spin) = 0;
};

}  // namespace sluice::transport
