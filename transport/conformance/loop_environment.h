// Transports on an epoll loop: all nodes share one loop, which the test's own thread runs step by step.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "transport/conformance/environment.h"
#include "transport/loop.h"

namespace sluice::transport::conformance {

using NodeMaker =
    std::function<absl::StatusOr<Node>(Loop* loop, const Clock* clock, const Hello& self, EndpointLimits limits)>;

// raw: connects a stranger, or null where the transport is no byte stream.
std::unique_ptr<Environment> MakeLoopEnvironment(
    NodeMaker maker, std::function<std::unique_ptr<RawPeer>(const Address&)> raw = nullptr);

}  // namespace sluice::transport::conformance
