// The scheduler's decisions: members and leases, jobs and their life, the plan and its terms, barriers, events.
//
// No I/O, no thread, no clock of its own. Every change that must survive is handed to the Store before any message that
// depends on it is sent. Protocol: proto/control.proto.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/topology.pb.h"
#include "scheduler/network/network.h"

namespace sluice::scheduler {

struct TreeChoice;   // scheduler/trees.h

using SessionId = uint64_t;

// Durable key-value state, written in one transaction a call. In memory for tests and the simulator, SQLite in the
// daemon.
class Store {
 public:
  virtual ~Store() = default;
  // An empty value erases. An error (disk full) is a status with path and cause; nothing of the call was written then.
  virtual absl::Status Write(const std::vector<std::pair<std::string, std::string>>& changes) = 0;
  virtual absl::StatusOr<std::map<std::string, std::string>> ReadAll() = 0;
};

struct SchedulerOutput {
  std::function<void(SessionId, const proto::SchedulerMessage&)> send;
  std::function<void(SessionId, const absl::Status&)> close;     // ends the stream with this status
};

class SchedulerCore {
 public:
  // wall_ms: milliseconds since 1970, for events. random: for job uids. network: of the topology's files; null = of none.
  static absl::StatusOr<std::unique_ptr<SchedulerCore>> Create(proto::NodeConfig config, Store* store,
                                                               const Clock* clock, std::function<int64_t()> wall_ms,
                                                               uint64_t random, SchedulerOutput output,
                                                               std::unique_ptr<network::Network> network = nullptr);
  virtual ~SchedulerCore() = default;

  virtual void OnSessionOpen(SessionId session, const std::string& peer) = 0;
  virtual void OnMessage(SessionId session, const proto::MemberMessage& message) = 0;
  virtual void OnSessionClosed(SessionId session) = 0;
  virtual void OnTick() = 0;     // leases; every 20 to 200 ms

  // An operator ends a job, by name or number, whatever it waits for: FAILED with this reason (may be empty), as after any
  // failure. Its status then. NOT_FOUND, FAILED_PRECONDITION (it has ended already), INVALID_ARGUMENT; UNAVAILABLE if it
  // could not be written: nothing has changed then.
  virtual absl::StatusOr<proto::JobStatus> AbortJob(const std::string& job, const std::string& reason) = 0;

  // Moving shards (docs/admin.md). UNAVAILABLE: not written, nothing has changed.
  virtual absl::StatusOr<proto::MoveList> MoveShard(const std::string& job, uint32_t shard,
                                                    const std::string& server) = 0;
  virtual absl::StatusOr<proto::RebalanceAnswer> Rebalance(const std::string& job, bool dry_run) = 0;
  virtual absl::StatusOr<proto::MoveList> SetMovesPaused(const std::string& job, bool paused) = 0;
  virtual absl::StatusOr<proto::MoveList> CancelMoves(const std::string& job) = 0;
  virtual absl::StatusOr<proto::MoveList> ListMoves(const std::string& job) const = 0;
  virtual absl::StatusOr<proto::DrainStatus> SetDraining(const std::string& server, bool draining) = 0;
  virtual absl::StatusOr<proto::DrainStatus> GetDrain(const std::string& server) const = 0;

  // Aggregation trees of a running job, in the place of those that it has. NOT_FOUND, FAILED_PRECONDITION (why it cannot have trees),
  // INVALID_ARGUMENT; UNAVAILABLE: not written.
  virtual absl::Status SetTrees(const std::string& job, const TreeChoice& choice) = 0;
  // Jobs that start from now on have an aggregator on each host (RackTrees).
  virtual void set_rack_trees(bool on) = 0;

  // Lets servers send to each other along the links that training has not measured (probing.cc); what comes of it is told by events
  // and ListLinks. INVALID_ARGUMENT (bytes), FAILED_PRECONDITION (another probing goes on, or there are no servers on two hosts).
  virtual absl::StatusOr<proto::ProbeLinksAnswer> ProbeLinks(const proto::ProbeLinksRequest& request) = 0;

  virtual proto::Cluster GetCluster() const = 0;
  virtual absl::StatusOr<proto::ShardList> ListShards(const std::string& job) const = 0;
  virtual absl::StatusOr<proto::WorkerList> ListWorkers(const std::string& job) const = 0;
  virtual absl::StatusOr<proto::TableList> ListTables(const std::string& job) const = 0;
  virtual absl::StatusOr<proto::TensorList> ListTensors(const std::string& job) const = 0;
  virtual proto::LinkList ListLinks() const = 0;
  virtual absl::StatusOr<proto::Explanation> ExplainPlan(const std::string& job) const = 0;
  virtual absl::StatusOr<proto::Plan> GetPlan(const std::string& job) const = 0;
  virtual absl::StatusOr<proto::Plan> GetPlanByNumber(uint32_t job) const = 0;
  virtual absl::StatusOr<proto::JobConfig> GetJobConfig(const std::string& job) const = 0;
  virtual proto::EventList ListEvents(uint64_t after, uint32_t limit) const = 0;
  virtual bool AllJobsEnded() const = 0;   // at least one job, and none forming or running
};

}  // namespace sluice::scheduler
