#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "rdma/fake/fabric.h"
#include "rdma/verbs_driver.h"
#include "transport/conformance/loop_environment.h"
#include "transport/conformance/suite.h"
#include "transport/multipath/multipath_endpoint.h"

namespace sluice::transport::conformance {
namespace {

std::function<bool(LinkId)> HasPaths(const Endpoint* endpoint, size_t count) {
  const auto* multipath = static_cast<const MultipathEndpoint*>(endpoint);
  return [=](LinkId link) {
    size_t found = 0;
    for (const PathReport& path : multipath->Paths()) found += path.link == link ? 1 : 0;
    return found >= count;
  };
}

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

// Hosts of a fabric in memory, each with so many rails of two queue pairs to a peer.
class Rdma {
 public:
  explicit Rdma(int rails) : rails_(rails) {
    char folder[] = "/tmp/sluice-rdma-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~Rdma() { std::filesystem::remove_all(folder_); }

  absl::StatusOr<Node> MakeNode(Loop* loop, const Clock* clock, const Hello& self, EndpointLimits limits, bool everywhere,
                                bool wait) {
    const int number = ++hosts_;
    rdma::fake::Host& host = fabric_.AddHost(absl::StrCat("host", number));
    for (int i = 0; i < rails_; ++i)
      host.AddDevice({.name = absl::StrCat("fake", i), .address = absl::StrCat("10.0.", i, ".", number)});
    rdma::DriverOptions options;
    options.gather.sysfs = absl::StrCat(folder_, "/", number);
    std::filesystem::create_directory(options.gather.sysfs);
    std::filesystem::create_directory(absl::StrCat(folder_, "/dev"));
    std::filesystem::create_directory(absl::StrCat(folder_, "/dev/infiniband"));
    options.gather.dev = absl::StrCat(folder_, "/dev");
    host.WriteSysfs(options.gather.sysfs);
    options.gather.addresses = host.Addresses();
    auto driver = rdma::VerbsDriver::Create(loop, clock, std::shared_ptr<rdma::Verbs>(std::shared_ptr<void>(), &host), options);
    if (!driver.ok()) return driver.status();
    MultipathOptions endpoint_options;
    endpoint_options.tcp.self = self;
    endpoint_options.tcp.limits = limits;
    endpoint_options.driver = *std::move(driver);
    endpoint_options.chunk_bytes = 64 << 10;
    auto endpoint = MultipathEndpoint::Create(loop, clock, std::move(endpoint_options));
    if (!endpoint.ok()) return endpoint.status();
    // The whole of this process may be sent from and granted, as if every buffer came from Allocate.
    if (everywhere) handles_.push_back((*endpoint)->Register({reinterpret_cast<std::byte*>(4096), size_t{1} << 47}));
    Node node;
    node.address.host = "127.0.0.1";
    node.address.port = (*endpoint)->port();
    node.other = node.address;
    if (wait) node.grown = HasPaths(endpoint->get(), 1 + 2 * static_cast<size_t>(rails_));
    node.endpoint = *std::move(endpoint);
    return node;
  }

 private:
  const int rails_;
  int hosts_ = 0;
  std::string folder_;
  rdma::fake::Fabric fabric_;
  std::vector<std::shared_ptr<void>> handles_;
};

Transport MakeRdma(const std::string& name, int rails, bool everywhere, bool wait) {
  return {name, [=] {
            const auto rdma = std::make_shared<Rdma>(rails);
            return MakeLoopEnvironment([=](Loop* loop, const Clock* clock, const Hello& self, EndpointLimits limits) {
              return rdma->MakeNode(loop, clock, self, limits, everywhere, wait);
            });
          }};
}

INSTANTIATE_TEST_SUITE_P(Rdma, ConformanceTest,
                         ::testing::Values(MakeRdma("OneRail", 1, true, true), MakeRdma("TwoRails", 2, true, true),
                                           MakeRdma("AllocatedMemoryAlone", 1, false, true),
                                           MakeRdma("WhileItGrows", 2, true, false)),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Multipath, ConformanceTest,
                         ::testing::Values(Make("BaseAlone", {}), Make("ThreeAddresses", {"127.0.0.2", "127.0.0.3"})),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::transport::conformance
