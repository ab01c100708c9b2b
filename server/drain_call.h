// Asks the scheduler's admin service to drain this server (docs/admin.md). No gRPC type shows here.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"

namespace sluice::server {

class DrainCall {
 public:
  // done is called once, on a thread of its own, with the scheduler's answer: OK, or why the server cannot be drained.
  static std::unique_ptr<DrainCall> Start(const std::string& scheduler, const std::string& server, TimeNs timeout,
                                          std::function<void(absl::Status)> done);
  virtual ~DrainCall() = default;   // cancels the call, and waits for done to have returned
};

}  // namespace sluice::server
