// A trace of every partition's way (fuse, encode, queue, send, aggregate, reply, decode) in the Chrome/Perfetto format.
//
// A thread that traces owns a TraceTrack: a ring of fixed size, so tracing never allocates and never waits, and a long
// run keeps its newest events. Without --trace there are no tracks and a TraceTrack* is null: the helpers below test
// for that. Times are wall-clock microseconds: the offset between the steady clock and CLOCK_REALTIME is measured once
// at start, so the files of processes on one host (or on hosts with synchronised clocks) line up. deploy/trace_merge
// joins such files.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"

namespace sluice {

// What an event is about; fields that do not apply are left at kTraceNone.
inline constexpr uint32_t kTraceNone = UINT32_MAX;
struct TraceArgs {
  uint32_t tensor = kTraceNone;
  uint32_t partition = kTraceNone;
  uint64_t round = 0;
  uint32_t rank = kTraceNone;
};

class TraceTrack {
 public:
  TraceTrack(std::string name, uint32_t number, size_t capacity);

  // For the owning thread. `name` must be a literal (its address is kept).
  // Work: this thread was busy; such events of one track nest.
  void Work(const char* name, TimeNs begin, TimeNs end, const TraceArgs& args = {}) {
    Add(name, begin, end, args, false);
  }
  // Wait: something was in a queue or on its way meanwhile; such events overlap freely.
  void Wait(const char* name, TimeNs begin, TimeNs end, const TraceArgs& args = {}) {
    Add(name, begin, end, args, true);
  }

 private:
  friend class Tracer;
  // Atomics, because Tracer::Write may read while the owner goes on; an event that was overtaken meanwhile is left out.
  struct Slot {
    std::atomic<const char*> name{nullptr};
    std::atomic<TimeNs> begin{0}, end{0};
    std::atomic<uint64_t> round{0};
    std::atomic<uint32_t> tensor{0}, partition{0}, rank{0};
    std::atomic<bool> wait{false};
  };
  void Add(const char* name, TimeNs begin, TimeNs end, const TraceArgs& args, bool wait);

  const std::string name_;
  const uint32_t number_;
  std::vector<Slot> slots_;
  std::atomic<uint64_t> started_{0};   // events whose writing began
  std::atomic<uint64_t> finished_{0};  // events that are complete
};

class Tracer {
 public:
  struct Options {
    std::string process;                // "server 0"; shown beside the pid
    const Clock* clock = nullptr;       // the clock whose times the events carry
    int64_t unix_ns = 0;                // the wall clock at this moment; 0 = read CLOCK_REALTIME
    uint32_t pid = 0;                   // 0 = getpid()
    size_t events_per_track = 1 << 16;  // 56 bytes each
  };
  explicit Tracer(Options options);

  // Thread-safe. The track lives as long as the tracer.
  TraceTrack* AddTrack(std::string name);

  // Writes everything that the rings hold to `path`, through a temporary file beside it. May be called more than once.
  absl::Status Write(const std::string& path) const;
  std::string ToJson() const;

 private:
  const Options options_;
  const int64_t offset_ns_;  // wall clock minus clock
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<TraceTrack>> tracks_;  // guarded by mutex_
};

// Adds a Work event for its own life time; nothing at all without a track.
class TraceScope {
 public:
  TraceScope(TraceTrack* track, const Clock* clock, const char* name, const TraceArgs& args = {})
      : track_(track), clock_(clock), name_(name), args_(args), begin_(track == nullptr ? 0 : clock->Now()) {}
  ~TraceScope() {
    if (track_ != nullptr) track_->Work(name_, begin_, clock_->Now(), args_);
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceTrack* const track_;
  const Clock* const clock_;
  const char* const name_;
  const TraceArgs args_;
  const TimeNs begin_;
};

inline void TraceWait(TraceTrack* track, const char* name, TimeNs begin, TimeNs end, const TraceArgs& args = {}) {
  if (track != nullptr) track->Wait(name, begin, end, args);
}

}  // namespace sluice
