// The scheduler behind gRPC: Control and Admin, health (grpc.health.v1) and reflection.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "scheduler/host.h"

namespace sluice::scheduler {

class SchedulerService {
 public:
  // Listens on host:port (0 = any). Calls run on the host's loop, which must run until Shutdown returned. `config` is
  // what Admin.GetConfig answers. UNAVAILABLE says why it cannot listen.
  static absl::StatusOr<std::unique_ptr<SchedulerService>> Start(const std::string& host, uint32_t port,
                                                                 SchedulerHost* scheduler,
                                                                 proto::EffectiveConfig config);
  // Not on the loop's thread: ends every stream with UNAVAILABLE and waits for gRPC's threads to let go.
  virtual void Shutdown() = 0;
  virtual ~SchedulerService() = default;   // Shutdown has returned
  virtual int port() const = 0;
};

}  // namespace sluice::scheduler
