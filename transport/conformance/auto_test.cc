#include "transport/auto/auto_endpoint.h"
#include "transport/conformance/loop_environment.h"
#include "transport/conformance/suite.h"

namespace sluice::transport::conformance {
namespace {

// Shared memory by choice of its own, TCP as the transport that a stream moves to.
absl::StatusOr<Node> MakeNode(Loop* loop, const Clock* clock, const Hello& self, EndpointLimits limits) {
  auto endpoint = AutoEndpoint::Create(loop, clock, MakeAutoOptions(self, limits));
  if (!endpoint.ok()) return endpoint.status();
  Node node;
  node.address = node.other = (*endpoint)->local_address();
  node.other.unix_socket.clear();
  EXPECT_FALSE(node.address.unix_socket.empty()) << "no shared memory here";
  node.endpoint = *std::move(endpoint);
  return node;
}

INSTANTIATE_TEST_SUITE_P(Auto, ConformanceTest,
                         ::testing::Values(Transport{"Both", [] { return MakeLoopEnvironment(MakeNode); }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::transport::conformance
