// Calls to a scheduler's admin service. No gRPC type shows here. Errors name the scheduler and say what to do next.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/admin.pb.h"

namespace sluice::ctl {

class AdminClient {
 public:
  // Each call may take `timeout`.
  static std::unique_ptr<AdminClient> Create(const std::string& scheduler, TimeNs timeout);
  virtual ~AdminClient() = default;

  virtual absl::StatusOr<proto::Cluster> GetCluster() = 0;
  virtual absl::StatusOr<proto::ShardList> ListShards(const std::string& job) = 0;
  virtual absl::StatusOr<proto::WorkerList> ListWorkers(const std::string& job) = 0;
  virtual absl::StatusOr<proto::TensorList> ListTensors(const std::string& job) = 0;
  virtual absl::StatusOr<proto::TableList> ListTables(const std::string& job) = 0;
  virtual absl::StatusOr<proto::LinkList> ListLinks() = 0;
  virtual absl::StatusOr<proto::ProbeLinksAnswer> ProbeLinks(const proto::ProbeLinksRequest& request) = 0;
  virtual absl::StatusOr<proto::Plan> GetPlan(const std::string& job) = 0;
  virtual absl::StatusOr<proto::Explanation> ExplainPlan(const std::string& job) = 0;
  virtual absl::StatusOr<proto::EffectiveConfig> GetConfig(const std::string& job) = 0;
  virtual absl::StatusOr<proto::EventList> ListEvents(uint64_t after, uint32_t limit) = 0;
  virtual absl::StatusOr<proto::JobStatus> AbortJob(const std::string& job, const std::string& reason) = 0;
  virtual absl::StatusOr<proto::MoveList> MoveShard(const std::string& job, uint32_t shard,
                                                    const std::string& server) = 0;
  virtual absl::StatusOr<proto::RebalanceAnswer> Rebalance(const std::string& job, bool dry_run) = 0;
  virtual absl::StatusOr<proto::MoveList> ListMoves(const std::string& job) = 0;
  virtual absl::StatusOr<proto::MoveList> PauseMoves(const std::string& job) = 0;
  virtual absl::StatusOr<proto::MoveList> ResumeMoves(const std::string& job) = 0;
  virtual absl::StatusOr<proto::MoveList> CancelMoves(const std::string& job) = 0;
  virtual absl::StatusOr<proto::DrainStatus> Drain(const std::string& server) = 0;
  virtual absl::StatusOr<proto::DrainStatus> Undrain(const std::string& server) = 0;
  virtual absl::StatusOr<proto::DrainStatus> GetDrain(const std::string& server) = 0;
  // Calls `each` for every event after `after`, those to come too, until it returns false or the stream breaks.
  virtual absl::Status WatchEvents(uint64_t after, const std::function<bool(const proto::Event&)>& each) = 0;
};

}  // namespace sluice::ctl
