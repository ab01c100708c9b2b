// Prometheus samples of what paths have carried (transport/multipath/path_totals.h) and of what the ports of their devices
// count. docs/metrics.md lists them. Labels are kinds, rails, statuses and names of the kernel's counters: never peers.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/metrics.h"
#include "transport/multipath/path_totals.h"

namespace sluice::rdma {

// Of one process. Thread-safe.
class PathMetrics {
 public:
  explicit PathMetrics(const Clock* clock, std::string sysfs = "/sys") : clock_(clock), sysfs_(std::move(sysfs)) {}

  // totals: of all endpoints of the process, summed. Ports are read here, at most once a second, since some devices are slow
  // to answer.
  void Sample(const transport::PathTotals& totals, MetricSamples* out);

 private:
  struct Port {
    TimeNs at = 0;   // 0: never
    std::map<std::string, uint64_t> counters;
  };

  const Clock* const clock_;
  const std::string sysfs_;
  std::mutex mutex_;
  std::map<std::pair<std::string, uint32_t>, Port> ports_;   // guarded by mutex_
};

}  // namespace sluice::rdma
