// One event loop, one thread: epoll, timers, and closures posted from other threads.
//
// A turn: (1) wait for events, at most until the next timer; (2) their callbacks; (3) posted closures; (4) due timers, then
// After(0); (5) the hooks of AtTurnEnd. What (2) to (5) post or schedule runs in the next turn, so no turn is endless.
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
  // Thread-safe; Run returns at the end of the turn in which the closures posted before it have run. Before Run: the
  // next Run makes one turn.
  virtual void Stop() = 0;
  // Thread-safe, never blocks: fn runs on the loop's thread, in order of posting.
  virtual void Post(std::function<void()> fn) = 0;

  // The rest is for the loop's own thread (or before Run).
  // events: EPOLLIN | EPOLLOUT…, level-triggered. fn(events). fn may Unwatch itself or others: nothing is called for a
  // descriptor after Unwatch, even if its event was of the same burst. Unwatch before closing the descriptor.
  virtual absl::Status Watch(int fd, uint32_t events, std::function<void(uint32_t)> fn) = 0;
  virtual void Rewatch(int fd, uint32_t events) = 0;
  virtual void Unwatch(int fd) = 0;
  // fn runs once, not before `delay` has passed. 0 = after the events at hand. Returns an id for CancelTimer.
  virtual uint64_t After(TimeNs delay, std::function<void()> fn) = 0;
  virtual void CancelTimer(uint64_t id) = 0;
  // fn runs at the end of every turn that did something (a burst of events, posted closures and due timers), in order of
  // registration, as long as the loop lives: the place to flush what the turn has queued. Hooks with a larger `stage` run
  // after those with a smaller one: cores queue frames at 0, transports write them at 1.
  virtual void AtTurnEnd(std::function<void()> fn, int stage = 0) = 0;
  // Busy-polls this long before it sleeps (default 0: never).
  virtual void set_spin(TimeNs spin) = 0;
};

}  // namespace sluice::transport
