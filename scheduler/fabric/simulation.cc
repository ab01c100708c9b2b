#include "scheduler/fabric/simulation.h"

#include <algorithm>
#include <functional>

#include "scheduler/fabric/flows.h"

namespace sluice::fabric {

// 1. Tasks whose dependencies are done start: a computation, or a transfer without bytes, is an event later on; a transfer
//    joins those on their way.
// 2. If these changed, rates are computed anew.
// 3. Time goes on to the first event or end of a transfer; all that end at about that time end together.
class SimulationRun {
 public:
  explicit SimulationRun(const Simulation& simulation) : sim_(simulation) {
    const size_t count = sim_.tasks_.size();
    result_.finish.assign(count, std::numeric_limits<double>::infinity());
    result_.arc_bytes.assign(sim_.capacity_.size(), 0);
    waits_for_.assign(count, 0);
    first_.assign(2 * count + 1, 0);
    for (const uint32_t on : sim_.after_) ++first_[Slot(on) + 1];
    for (size_t i = 0; i < 2 * count; ++i) first_[i + 1] += first_[i];
    dependents_.resize(sim_.after_.size());
    std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
    for (uint32_t t = 0; t < count; ++t)
      for (const uint32_t on : sim_.After(t)) {
        dependents_[next[Slot(on)]++] = t;
        ++waits_for_[t];
      }
    // Only arcs that are used take part in the rates.
    compact_.assign(sim_.capacity_.size(), ~0u);
    for (const Simulation::Use& use : sim_.uses_) {
      if (compact_[use.arc] != ~0u) continue;
      compact_[use.arc] = static_cast<uint32_t>(capacity_.size());
      capacity_.push_back(sim_.capacity_[use.arc]);
    }
  }

  Simulation::Result Run() {
    for (uint32_t t = 0; t < sim_.tasks_.size(); ++t)
      if (waits_for_[t] == 0) Start(t);
    while (true) {
      if (changed_) SetRates();
      double next = events_.empty() ? std::numeric_limits<double>::infinity() : events_.front().at;
      for (const Moving& m : moving_)
        if (m.rate > 0) next = std::min(next, now_ + m.left / m.rate);
      if (next == std::numeric_limits<double>::infinity()) return std::move(result_);
      Advance(next);
    }
  }

 private:
  static constexpr double kSlack = 1e-9;   // of a transfer's bytes: what ends so nearly together ends together

  struct Event {
    double at;
    uint32_t task;
    bool operator>(const Event& other) const { return at != other.at ? at > other.at : task > other.task; }
  };
  struct Moving {
    uint32_t task;
    double left, rate;
  };

  static uint32_t Slot(uint32_t on) { return 2 * (on & ~Simulation::kSent) + (on & Simulation::kSent ? 1 : 0); }

  void Start(uint32_t t) {
    const Simulation::Task& task = sim_.tasks_[t];
    if (!task.transfer) return Later(now_ + task.amount, t);
    if (task.amount > 0 && !sim_.Way(t).empty()) {
      moving_.push_back({t, task.amount, 0});
      changed_ = true;
      return;
    }
    Later(now_ + task.latency, t);
    Done(Slot(Simulation::Sent(t)));
  }

  void Later(double at, uint32_t task) {
    events_.push_back({at, task});
    std::push_heap(events_.begin(), events_.end(), std::greater<>());
  }

  void Done(uint32_t slot) {
    for (uint32_t i = first_[slot]; i < first_[slot + 1]; ++i)
      if (--waits_for_[dependents_[i]] == 0) Start(dependents_[i]);
  }

  void SetRates() {
    changed_ = false;
    flows_.Clear();
    for (const Moving& m : moving_) {
      flows_.Add();
      for (const Simulation::Use& use : sim_.Way(m.task)) flows_.Use(compact_[use.arc], use.share);
    }
    const std::vector<double> rates = MaxMinRates(capacity_, flows_);
    for (size_t i = 0; i < moving_.size(); ++i) moving_[i].rate = rates[i];
  }

  void Advance(double to) {
    const double seconds = to - now_;
    now_ = to;
    std::vector<uint32_t> sent;
    std::erase_if(moving_, [&](Moving& m) {
      m.left -= m.rate * seconds;
      // What is left may be too little to move the time on by.
      if (m.left > kSlack * sim_.tasks_[m.task].amount && !(m.rate > 0 && now_ + m.left / m.rate == now_)) return false;
      sent.push_back(m.task);
      return true;
    });
    changed_ = changed_ || !sent.empty();
    for (const uint32_t t : sent) {
      for (const Simulation::Use& use : sim_.Way(t)) result_.arc_bytes[use.arc] += use.share * sim_.tasks_[t].amount;
      Later(now_ + sim_.tasks_[t].latency, t);
      Done(Slot(Simulation::Sent(t)));
    }
    while (!events_.empty() && events_.front().at <= now_) {
      std::pop_heap(events_.begin(), events_.end(), std::greater<>());
      const uint32_t t = events_.back().task;
      events_.pop_back();
      result_.finish[t] = now_;
      result_.end = std::max(result_.end, now_);
      Done(Slot(t));
      if (!sim_.tasks_[t].transfer) Done(Slot(Simulation::Sent(t)));
    }
  }

  const Simulation& sim_;
  Simulation::Result result_;
  double now_ = 0;
  bool changed_ = false;                        // moving_, since SetRates
  std::vector<uint32_t> waits_for_;             // of each task
  std::vector<uint32_t> first_, dependents_;    // of each task's arrival and, beside it, its last byte's leaving
  std::vector<uint32_t> compact_;               // of each arc
  std::vector<double> capacity_;
  std::vector<Moving> moving_;
  std::vector<Event> events_;
  Flows flows_;
};

uint32_t Simulation::Add(const Task& task, std::span<const uint32_t> after) {
  tasks_.push_back(task);
  tasks_.back().first_after = static_cast<uint32_t>(after_.size());
  after_.insert(after_.end(), after.begin(), after.end());
  return static_cast<uint32_t>(tasks_.size() - 1);
}

uint32_t Simulation::Compute(double seconds, std::span<const uint32_t> after) {
  return Add({.amount = seconds, .first_use = static_cast<uint32_t>(uses_.size())}, after);
}

uint32_t Simulation::Transfer(double bytes, std::span<const Use> way, double latency, std::span<const uint32_t> after) {
  const uint32_t first = static_cast<uint32_t>(uses_.size());
  uses_.insert(uses_.end(), way.begin(), way.end());
  return Add({.transfer = true, .amount = bytes, .latency = latency, .first_use = first}, after);
}

std::span<const Simulation::Use> Simulation::Way(uint32_t task) const {
  const size_t end = task + 1 < tasks_.size() ? tasks_[task + 1].first_use : uses_.size();
  return std::span(uses_).subspan(tasks_[task].first_use, end - tasks_[task].first_use);
}

std::span<const uint32_t> Simulation::After(uint32_t task) const {
  const size_t end = task + 1 < tasks_.size() ? tasks_[task + 1].first_after : after_.size();
  return std::span(after_).subspan(tasks_[task].first_after, end - tasks_[task].first_after);
}

Simulation::Result Simulation::Run() const { return SimulationRun(*this).Run(); }

}  // namespace sluice::fabric
