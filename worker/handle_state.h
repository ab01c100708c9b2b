// What a Handle shares with the loop: one operation's end, seen from any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "worker/client.h"

namespace sluice {

struct Handle::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;  // guarded by mutex, as the rest
  bool released = false;
  Status status;
  OpInfo info;
  std::function<void()> cancel;  // constant after Submit; thread-safe, never blocks

  void Finish(Status why, const OpInfo& what) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (done) return;
      done = true;
      status = std::move(why);
      info = what;
    }
    changed.notify_all();
  }
  void Release() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      released = true;
    }
    changed.notify_all();
  }
};

}  // namespace sluice
