// The suite over queue pairs of a device that this host really has: both nodes in this process, on one rail, their TCP
// connections at the address of its interface. Without a device all is skipped, with the reason.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rdma/verbs_driver.h"
#include "transport/conformance/loop_environment.h"
#include "transport/conformance/suite.h"
#include "transport/multipath/multipath_endpoint.h"

namespace sluice::transport::conformance {
namespace {

struct Found {
  std::string device, host;   // "rxe0", "10.7.0.1"
  std::string why;            // there is none
};

Found Find() {
  auto verbs = rdma::LoadVerbs();
  if (!verbs.ok()) return {.device = "", .host = "", .why = std::string(verbs.status().message())};
  const rdma::RailChoice choice = rdma::ChooseRails(rdma::GatherFacts(verbs->get(), absl::OkStatus()), {});
  for (const rdma::Rail& rail : choice.rails) {
    if (!rdma::IsIpv4Mapped(rail.gid)) continue;
    const rdma::Gid& gid = rail.gid;
    return {.device = absl::StrCat(rail.device, ":", rail.port),
            .host = absl::StrCat(gid[12], ".", gid[13], ".", gid[14], ".", gid[15]),
            .why = ""};
  }
  return {.device = "", .host = "", .why = absl::StrCat("no device with an IPv4 address: ", rdma::FindingsText(choice.findings))};
}

class Device {
 public:
  Device(Found found, bool wait) : found_(std::move(found)), wait_(wait) {}

  absl::StatusOr<Node> MakeNode(Loop* loop, const Clock* clock, const Hello& self, EndpointLimits limits) {
    auto verbs = rdma::LoadVerbs();
    if (!verbs.ok()) return verbs.status();
    rdma::DriverOptions options;
    options.rails.devices = {found_.device};
    options.queue_pair.sends = options.queue_pair.receives = 64;
    options.queue_pair.timeout = 10;   // 4 ms: what breaks here breaks soon
    auto driver = rdma::VerbsDriver::Create(loop, clock, *std::move(verbs), options);
    if (!driver.ok()) return driver.status();
    MultipathOptions endpoint_options;
    endpoint_options.tcp.self = self;
    endpoint_options.tcp.limits = limits;
    endpoint_options.tcp.bind_host = found_.host;
    endpoint_options.driver = *std::move(driver);
    endpoint_options.chunk_bytes = 64 << 10;
    auto endpoint = MultipathEndpoint::Create(loop, clock, std::move(endpoint_options));
    if (!endpoint.ok()) return endpoint.status();
    Node node;
    node.address.host = found_.host;
    node.address.port = (*endpoint)->port();
    node.other = node.address;
    if (wait_) {
      node.grown = [multipath = endpoint->get()](LinkId link) {
        size_t paths = 0;
        for (const PathReport& path : multipath->Paths()) paths += path.link == link && path.kind == "rdma" ? 1 : 0;
        return paths == 2;
      };
    }
    node.endpoint = *std::move(endpoint);
    return node;
  }

 private:
  const Found found_;
  const bool wait_;
};

const Found& TheDevice() {
  static const Found found = Find();
  return found;
}

TEST(DeviceTest, IsThere) {
  if (!TheDevice().why.empty()) GTEST_SKIP() << TheDevice().why << "; the suite is skipped";
  std::printf("device %s, address %s\n", TheDevice().device.c_str(), TheDevice().host.c_str());
}

std::vector<Transport> Transports() {
  const Found found = TheDevice();
  std::vector<Transport> transports;
  if (!found.why.empty()) return transports;
  for (const bool wait : {true, false}) {
    transports.push_back({wait ? "Device" : "DeviceWhileItGrows", [=] {
                            const auto device = std::make_shared<Device>(found, wait);
                            return MakeLoopEnvironment(
                                [=](Loop* loop, const Clock* clock, const Hello& self, EndpointLimits limits) {
                                  return device->MakeNode(loop, clock, self, limits);
                                });
                          }});
  }
  return transports;
}

INSTANTIATE_TEST_SUITE_P(Rdma, ConformanceTest, ::testing::ValuesIn(Transports()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ConformanceTest);

}  // namespace
}  // namespace sluice::transport::conformance
