// A server's gRPC port: Control.GetPlan (a plan can be had from any peer that has it), health (grpc.health.v1) and
// reflection. No gRPC type shows here.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/plan_store.h"

namespace sluice::server {

class GrpcService {
 public:
  // Listens on host:port (0 = any). `plans` outlives it. UNAVAILABLE says why it cannot listen.
  static absl::StatusOr<std::unique_ptr<GrpcService>> Start(const std::string& host, uint32_t port,
                                                            const PlanStore* plans);
  virtual ~GrpcService() = default;   // ends what runs, waits for gRPC's threads to let go
  virtual int port() const = 0;
};

}  // namespace sluice::server
