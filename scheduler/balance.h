// Which shards a rebalance would move, and when the scheduler begins one by itself. No clock: times are handed in.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "scheduler/loads.h"
#include "scheduler/replicas.h"
#include "scheduler/state.pb.h"

namespace sluice::scheduler {

inline constexpr double kBalanced = 1.1;           // the largest server over the mean

struct Balance {
  std::vector<proto::MoveRecord> moves;
  // Bytes that each server owns, once the moves under way are done, and after these.
  std::map<uint32_t, uint64_t> before, after;
  uint64_t moved_bytes = 0;
  // By load: what each server spends; empty where shards were weighed by bytes.
  std::map<uint32_t, Cost> cost_before, cost_after;
  double largest_before = 0, largest_after = 0;    // load, or bytes
  double mean = 0;
};

// The moves that bring the largest server within 10 % of the mean, as few as the sizes of shards allow: from the
// largest to the smallest server, the largest shard that brings neither beyond the mean (or, where there is none, the
// smallest that still helps). What is large says `loads`; without it the bytes of shards, and while nothing has a size
// their number. A shard that goes to a server with a copy of it changes roles with that copy. extra: bytes of shards
// beyond what the plan says (rows of tables).
Balance PlanRebalance(const proto::JobRecord& record, const CopyRules& rules, const std::map<uint32_t, uint64_t>& extra,
                      const Loads* loads = nullptr);

// When to rebalance without being asked:
//   t=0        one server's load is more than `over` times the mean, and it does not idle
//   t=after    it has been the same server all the time: now, unless something has moved within `cooldown`
// A load that swings, or goes from server to server, begins anew each time.
class BottleneckWatch {
 public:
  struct Rule {
    TimeNs after = 0;
    double over = 1.3;
    TimeNs cooldown = 0;
  };

  // loads: of all servers that may own shards; nullptr while they cannot be measured.
  bool Observe(const std::map<uint32_t, double>* loads, const Rule& rule, TimeNs now);
  void Moves(TimeNs now) { moved_ = now; server_.reset(); }   // something does, or did a moment ago
  std::optional<uint32_t> server() const { return server_; }
  TimeNs since() const { return since_; }

 private:
  std::optional<uint32_t> server_;   // the bottleneck
  TimeNs since_ = 0;
  std::optional<TimeNs> moved_;
};

// Whether an automatic rebalance pays: it takes off the largest server more than a twentieth of its load, and within
// `horizon` more of its time than the moves cost.
bool Worth(const Balance& balance, TimeNs horizon);

}  // namespace sluice::scheduler
