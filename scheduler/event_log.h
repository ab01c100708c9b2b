// The scheduler's history for people: numbered, bounded, written with the state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "proto/admin.pb.h"
#include "scheduler/records.h"

namespace sluice::scheduler {

class EventLog {
 public:
  static constexpr size_t kKept = 2000;

  // A gap after a restart: events that were noted but never written must not share numbers with new ones.
  explicit EventLog(std::deque<proto::Event> saved) : events_(std::move(saved)) {
    if (!events_.empty()) last_ = events_.back().number() + kKept;
    written_ = last_;
  }

  void Note(int64_t unix_ms, std::string kind, std::string job, std::string text) {
    proto::Event event;
    event.set_number(++last_);
    event.set_unix_ms(unix_ms);
    event.set_kind(std::move(kind));
    event.set_job(std::move(job));
    event.set_text(std::move(text));
    events_.push_back(std::move(event));
    if (events_.size() > kKept) {
      erased_.push_back(events_.front().number());
      events_.pop_front();
    }
  }

  // What the next write to the store takes along; Written() when it succeeded.
  void AppendChanges(std::vector<std::pair<std::string, std::string>>* changes) const {
    for (const proto::Event& event : events_)
      if (event.number() > written_) changes->emplace_back(EventKey(event.number()), event.SerializeAsString());
    for (uint64_t number : erased_)
      if (number <= written_) changes->emplace_back(EventKey(number), "");
  }
  void Written() {
    written_ = last_;
    erased_.clear();
  }
  bool unwritten() const { return written_ != last_; }
  uint64_t last() const { return last_; }

  proto::EventList List(uint64_t after, uint32_t limit) const {
    proto::EventList list;
    auto it = std::upper_bound(events_.begin(), events_.end(), after,
                               [](uint64_t number, const proto::Event& event) { return number < event.number(); });
    const int most = static_cast<int>(std::min<uint64_t>(limit == 0 ? 1000 : limit, kKept));
    for (; it != events_.end() && list.events_size() < most; ++it) *list.add_events() = *it;
    return list;
  }

 private:
  std::deque<proto::Event> events_;
  std::vector<uint64_t> erased_;
  uint64_t last_ = 0;
  uint64_t written_ = 0;
};

}  // namespace sluice::scheduler
