// The epoll loop behind transport/loop.h.
#include "transport/loop.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice::transport {
namespace {

absl::Status SystemError(const char* what) {
  return absl::InternalError(absl::StrCat("event loop: ", what, ": ", strerror(errno)));
}

class EpollLoop final : public Loop {
 public:
  EpollLoop(int epoll_fd, int wake_fd) : epoll_fd_(epoll_fd), wake_fd_(wake_fd) {}

  ~EpollLoop() override {
    close(wake_fd_);
    close(epoll_fd_);
  }

  void Run() override {
    thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    stop_ = false;
    posted_here_ = true;  // what was queued before Run is flushed by a first turn
    first_turn_ = true;
    idle_since_ = clock_.Now();
    while (!stop_) Turn();
    thread_.store(std::thread::id(), std::memory_order_relaxed);
  }

  void Stop() override {
    Post([this] { stop_ = true; });
  }

  void Post(std::function<void()> fn) override {
    bool was_empty;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      was_empty = posted_.empty();
      posted_.push_back(std::move(fn));
    }
    // The loop empties the queue in every turn, so only the first closure needs the system call.
    if (thread_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
      posted_here_ = true;
    } else if (was_empty) {
      Wake();
    }
  }

  absl::Status Watch(int fd, uint32_t events, std::function<void(uint32_t)> fn) override {
    const uint64_t id = next_watch_++;
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) return SystemError("cannot watch a descriptor");
    ids_[fd] = id;
    watches_.emplace(id, std::make_shared<std::function<void(uint32_t)>>(std::move(fn)));
    return absl::OkStatus();
  }

  void Rewatch(int fd, uint32_t events) override {
    const auto it = ids_.find(fd);
    if (it == ids_.end()) return;
    epoll_event event{};
    event.events = events;
    event.data.u64 = it->second;
    epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event);
  }

  void Unwatch(int fd) override {
    const auto it = ids_.find(fd);
    if (it == ids_.end()) return;
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
    watches_.erase(it->second);
    ids_.erase(it);
  }

  uint64_t After(TimeNs delay, std::function<void()> fn) override {
    const uint64_t id = next_timer_++;
    // After(0) sorts before every real timer, in order of calls.
    const TimeNs due = delay <= 0 ? 0 : clock_.Now() + delay;
    timers_.emplace(std::pair(due, id), std::move(fn));
    due_.emplace(id, due);
    return id;
  }

  void CancelTimer(uint64_t id) override {
    const auto it = due_.find(id);
    if (it == due_.end()) return;
    timers_.erase({it->second, id});
    due_.erase(it);
  }

  void AtTurnEnd(std::function<void()> fn, int stage) override { turn_end_.emplace(stage, std::move(fn)); }

  void set_spin(TimeNs spin) override { spin_ = spin; }

 private:
  static constexpr int kMaxEvents = 128;

  void Turn() {
    epoll_event events[kMaxEvents];
    const int count = Wait(events);
    bool busy = std::exchange(first_turn_, false);
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[i].data.u64;   // a copy: epoll_event is packed, so nothing may refer into it
      if (key == 0) {
        uint64_t ignored;
        [[maybe_unused]] const ssize_t n = read(wake_fd_, &ignored, sizeof(ignored));
        continue;
      }
      const auto it = watches_.find(key);
      if (it == watches_.end()) continue;  // unwatched by a callback of the same burst
      busy = true;
      const auto fn = it->second;          // keeps the closure alive if it unwatches itself
      (*fn)(events[i].events);
    }
    busy |= RunPosted();
    busy |= RunTimers();
    if (!busy) return;
    if (spin_ > 0) idle_since_ = clock_.Now();
    for (const auto& [stage, fn] : turn_end_) fn();
  }

  int Wait(epoll_event* events) {
    TimeNs timeout = -1;
    if (posted_here_) {
      timeout = 0;
    } else if (!timers_.empty()) {
      const TimeNs due = timers_.begin()->first.first;
      timeout = due == 0 ? 0 : std::max<TimeNs>(0, due - clock_.Now());
    }
    if (spin_ > 0 && timeout != 0 && clock_.Now() - idle_since_ < spin_) timeout = 0;
    const timespec spec{timeout / kSecond, timeout % kSecond};
    const int count = epoll_pwait2(epoll_fd_, events, kMaxEvents, timeout < 0 ? nullptr : &spec, nullptr);
    if (count >= 0 || errno != ENOSYS) return std::max(count, 0);
    // Kernels before 5.11: whole milliseconds, rounded up so that a timer never makes the loop spin.
    const TimeNs ms = timeout < 0 ? -1 : (timeout + kMillisecond - 1) / kMillisecond;
    return std::max(0, epoll_wait(epoll_fd_, events, kMaxEvents,
                                  static_cast<int>(std::min<TimeNs>(ms, std::numeric_limits<int>::max()))));
  }

  bool RunPosted() {
    std::vector<std::function<void()>> batch;
    posted_here_ = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      batch.swap(posted_);
    }
    for (auto& fn : batch) fn();
    return !batch.empty();
  }

  bool RunTimers() {
    if (timers_.empty()) return false;
    // What is due is fixed before the first of them runs: what a timer schedules waits for the next turn.
    const TimeNs now = clock_.Now();
    ready_.clear();
    for (auto it = timers_.begin(); it != timers_.end() && it->first.first <= now; ++it) ready_.push_back(it->first);
    for (const auto& key : ready_) {
      const auto it = timers_.find(key);
      if (it == timers_.end()) continue;  // cancelled by one before it
      const auto fn = std::move(it->second);
      due_.erase(key.second);
      timers_.erase(it);
      fn();
    }
    return !ready_.empty();
  }

  void Wake() {
    const uint64_t one = 1;
    // Fails only if the counter is full, and then the loop is awake already.
    [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof(one));
  }

  const int epoll_fd_;
  const int wake_fd_;
  const SteadyClock clock_;

  // Any thread.
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by mutex_
  std::atomic<std::thread::id> thread_{};

  // The loop's thread.
  bool stop_ = false;
  bool posted_here_ = false;
  bool first_turn_ = false;
  TimeNs spin_ = 0;
  TimeNs idle_since_ = 0;
  uint64_t next_watch_ = 1;  // 0 is the wake-up descriptor
  uint64_t next_timer_ = 1;
  std::unordered_map<int, uint64_t> ids_;
  std::unordered_map<uint64_t, std::shared_ptr<std::function<void(uint32_t)>>> watches_;
  std::map<std::pair<TimeNs, uint64_t>, std::function<void()>> timers_;
  std::unordered_map<uint64_t, TimeNs> due_;
  std::vector<std::pair<TimeNs, uint64_t>> ready_;
  std::multimap<int, std::function<void()>> turn_end_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loop>> Loop::Create() {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd < 0) return SystemError("epoll_create1");
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) {
    const absl::Status status = SystemError("eventfd");
    close(epoll_fd);
    return status;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) != 0) {
    const absl::Status status = SystemError("cannot watch the wake-up descriptor");
    close(wake_fd);
    close(epoll_fd);
    return status;
  }
  return std::make_unique<EpollLoop>(epoll_fd, wake_fd);
}

}  // namespace sluice::transport
