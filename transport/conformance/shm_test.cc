#include "transport/conformance/loop_environment.h"
#include "transport/conformance/suite.h"
#include "transport/shm/shm_endpoint.h"

namespace sluice::transport::conformance {
namespace {

absl::StatusOr<Node> MakeNode(Loop* loop, const Clock*, const Hello& self, EndpointLimits limits) {
  ShmOptions options;
  options.self = self;
  options.limits = limits;
  auto endpoint = ShmEndpoint::Create(loop, options);
  if (!endpoint.ok()) return endpoint.status();
  Node node;
  node.address = node.other = (*endpoint)->local_address();
  node.endpoint = *std::move(endpoint);
  return node;
}

INSTANTIATE_TEST_SUITE_P(Shm, ConformanceTest,
                         ::testing::Values(Transport{"Plain", [] { return MakeLoopEnvironment(MakeNode); }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::transport::conformance
