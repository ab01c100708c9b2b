#include "transport/conformance/loop_environment.h"
#include "transport/conformance/suite.h"
#include "transport/multipath/multipath_endpoint.h"

namespace sluice::transport::conformance {
namespace {

// Loopback has a network of addresses: each is a way of its own.
absl::StatusOr<Node> MakeNode(Loop* loop, const Clock* clock, const Hello& self, EndpointLimits limits,
                              std::vector<std::string> rails) {
  MultipathOptions options;
  options.tcp.self = self;
  options.tcp.limits = limits;
  options.tcp.bind_host = "0.0.0.0";
  options.rails = std::move(rails);
  options.chunk_bytes = 64 << 10;
  auto endpoint = MultipathEndpoint::Create(loop, clock, std::move(options));
  if (!endpoint.ok()) return endpoint.status();
  Node node;
  node.address.host = "127.0.0.1";
  node.address.port = (*endpoint)->port();
  node.other = node.address;
  node.other.host = "localhost";
  node.endpoint = *std::move(endpoint);
  return node;
}

Transport Make(const std::string& name, const std::vector<std::string>& rails) {
  return {name, [=] {
            return MakeLoopEnvironment([=](Loop* loop, const Clock* clock, const Hello& self, EndpointLimits limits) {
              return MakeNode(loop, clock, self, limits, rails);
            });
          }};
}

INSTANTIATE_TEST_SUITE_P(Multipath, ConformanceTest,
                         ::testing::Values(Make("BaseAlone", {}), Make("ThreeAddresses", {"127.0.0.2", "127.0.0.3"})),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::transport::conformance
