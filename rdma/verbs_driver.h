// Paths of queue pairs for multipath links: rails, the exchange that makes a queue pair, completions, and its end.
//
//   1. Create opens every rail that may be used (rdma/device.h) and watches its completions and events on the loop.
//   2. Offer to Ready: see proto/rails.proto and transport/multipath/multipath_endpoint.h. The acceptor pairs each of the
//      connector's rails with the one of its own whose GID is most alike; after a failure with the next.
//   3. Completions are taken in bursts: all there are, then the owner sends what has become possible, then a short spin,
//      then the queue is armed and polled once more.
//   4. A bad completion, a work request that takes longer than the watchdog allows, a port that goes down, or the peer's
//      word break a queue pair: it goes to ERR, what still comes of it is taken, it is destroyed, and the owner told.
//   5. A port that comes back is looked at again (its GID may have moved), and the owner is told that there is a rail.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "rdma/device.h"
#include "rdma/memory.h"
#include "rdma/queue_pair.h"
#include "rdma/verbs.h"
#include "transport/loop.h"
#include "transport/multipath/path_driver.h"

namespace sluice::rdma {

struct DriverOptions {
  RailOptions rails;
  GatherOptions gather;
  uint32_t queue_pairs = 2;         // on each rail, to each peer, as connector; at most, as acceptor
  QueuePairOptions queue_pair;
  int cq_entries = 1 << 17;         // or as many as the device has: room for a thousand queue pairs
  TimeNs watchdog = 3 * kSecond;
  TimeNs spin = 20 * kMicrosecond;
  std::function<void(const std::string&)> log;
};

class VerbsDriver : public transport::multipath::PathDriver {
 public:
  // Loop and clock outlive it. NOT_FOUND: the host has no
  // device. FAILED_PRECONDITION: none can be used; the message has all findings.
  static absl::StatusOr<std::unique_ptr<VerbsDriver>> Create(transport::Loop* loop, const Clock* clock,
                                                            std::shared_ptr<Verbs> verbs, DriverOptions options);

  virtual std::vector<Rail> rails() const = 0;
  // Of all queue pairs that there are and were.
  virtual QpCounters Totals() const = 0;
  virtual uint64_t queue_pairs_broken() const = 0;
  virtual uint64_t registered_bytes() const = 0;
};

// All findings in one line, for errors and logs.
std::string FindingsText(const std::vector<Finding>& findings);

}  // namespace sluice::rdma
