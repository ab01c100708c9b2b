// The gRPC side of MemberCore: keeps a Session stream to the scheduler and runs the core's callbacks on a loop.
// No gRPC type shows here.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/control.pb.h"
#include "transport/loop.h"

namespace sluice::control {

class GrpcSession {
 public:
  struct Callbacks {   // all on the loop's thread
    std::function<void()> up;
    std::function<void(absl::Status)> down;
    std::function<void(proto::SchedulerMessage)> message;
  };
  static std::unique_ptr<GrpcSession> Create(std::string address, transport::Loop* loop, Callbacks callbacks);
  virtual ~GrpcSession() = default;              // cancels the stream, waits for gRPC's threads to let go
  virtual void Open(TimeNs delay) = 0;           // (re)opens the stream after delay; up or down follows
  virtual void Send(const proto::MemberMessage& message) = 0;   // dropped if no stream is up
};

// One call, blocking, with a deadline: a plan from any peer that has it.
absl::StatusOr<proto::Plan> FetchPlan(const std::string& address, uint32_t job, uint64_t newer_than, TimeNs timeout);

}  // namespace sluice::control
