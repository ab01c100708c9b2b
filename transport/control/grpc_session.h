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
  // Cancels the stream, waits for gRPC's threads to let go. On the loop's thread, or after the loop stopped; the loop
  // outlives the session. No callback follows; it may be destroyed from inside one.
  virtual ~GrpcSession() = default;
  // (Re)opens the stream after delay; up or down follows. A stream that is still open is given up without a down.
  virtual void Open(TimeNs delay) = 0;
  virtual void Send(const proto::MemberMessage& message) = 0;   // dropped if no stream is up
};

// One call, blocking, with a deadline: a plan from any peer that has it.
absl::StatusOr<proto::Plan> FetchPlan(const std::string& address, uint32_t job, uint64_t newer_than, TimeNs timeout);

}  // namespace sluice::control
