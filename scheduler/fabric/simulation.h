// Tasks that depend on each other, on a network: computations, and transfers at the max-min fair rates of those that are on
// their way (fabric/flows.h). Rates change whenever a transfer begins or ends. Exact within the model, slow: for thousands
// of tasks. No clock: time is what it computes.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace sluice::fabric {

class Simulation {
 public:
  // capacity: of each arc, bytes a second.
  explicit Simulation(std::vector<double> capacity) : capacity_(std::move(capacity)) {}

  // A dependency "when its last byte has left" instead of "when it is there": after = {Sent(task)}.
  static constexpr uint32_t kSent = 1u << 31;
  static uint32_t Sent(uint32_t task) { return task | kSent; }

  struct Use {
    uint32_t arc = 0;
    double share = 1;
  };
  // Each starts when all of `after` are done, and returns its number, from 0 on. `after` names tasks that there are.
  uint32_t Compute(double seconds, std::span<const uint32_t> after);
  // Its last byte arrives `latency` after it left. An empty way takes no time but that.
  uint32_t Transfer(double bytes, std::span<const Use> way, double latency, std::span<const uint32_t> after);
  size_t tasks() const { return tasks_.size(); }

  struct Result {
    std::vector<double> finish;      // of each task; infinite: it never ends (an arc without capacity is in its way)
    double end = 0;                  // of the last
    std::vector<double> arc_bytes;   // of each arc
  };
  Result Run() const;

 private:
  friend class SimulationRun;
  struct Task {
    bool transfer = false;
    double amount = 0;    // seconds, or bytes
    double latency = 0;
    uint32_t first_use = 0, first_after = 0;   // up to those of the next
  };
  uint32_t Add(const Task& task, std::span<const uint32_t> after);
  std::span<const Use> Way(uint32_t task) const;
  std::span<const uint32_t> After(uint32_t task) const;

  std::vector<double> capacity_;
  std::vector<Task> tasks_;
  std::vector<Use> uses_;
  std::vector<uint32_t> after_;
};

}  // namespace sluice::fabric
