#include "ctl/doctor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/version.h"
#include "ctl/render.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace sluice::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A listening socket on a free loopback port.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(fd_); }
  int port() const { return port_; }

 private:
  int fd_, port_;
};

TEST(Doctor, NamesAndPorts) {
  EXPECT_EQ(CheckName("127.0.0.1:1").level, Check::kOk);
  EXPECT_EQ(CheckName("[::1]:1").level, Check::kOk);
  EXPECT_EQ(CheckName("no colon").level, Check::kFail);
  EXPECT_EQ(CheckName("no..name:1").level, Check::kFail);
  int port;
  {
    Listener listener;
    port = listener.port();
    EXPECT_EQ(CheckReachable(absl::StrCat("127.0.0.1:", port), 5000).level, Check::kOk);
    const Check taken = CheckPortFree("node.port", "127.0.0.1", port);
    EXPECT_EQ(taken.level, Check::kFail);
    EXPECT_THAT(taken.to_do, HasSubstr("ss -ltnp"));
  }
  const Check refused = CheckReachable(absl::StrCat("127.0.0.1:", port), 5000);
  EXPECT_EQ(refused.level, Check::kFail);
  EXPECT_THAT(refused.to_do, HasSubstr("start sluice-scheduler"));
  EXPECT_EQ(CheckPortFree("node.port", "127.0.0.1", port).level, Check::kOk);
  EXPECT_EQ(CheckPortFree("node.port", "127.0.0.1", 70000).level, Check::kFail);
  EXPECT_EQ(CheckPortFree("node.port", "192.0.2.1", port).level, Check::kFail);   // no address of this machine
}

TEST(Doctor, ReleaseAndTime) {
  EXPECT_EQ(CheckRelease(kVersion).level, Check::kOk);
  EXPECT_EQ(CheckRelease("9.9").level, Check::kWarn);
  proto::Cluster cluster;
  cluster.set_uptime_ms(5000);
  proto::EventList events;
  EXPECT_EQ(CheckTime(cluster, events, 0).level, Check::kWarn);
  events.add_events()->set_kind("scheduler_started");
  events.mutable_events(0)->set_unix_ms(1000);
  events.add_events()->set_kind("scheduler_started");
  events.mutable_events(1)->set_unix_ms(100'000);   // the newest counts
  EXPECT_EQ(CheckTime(cluster, events, 105'900).level, Check::kOk);
  const Check ahead = CheckTime(cluster, events, 110'000);
  EXPECT_EQ(ahead.level, Check::kWarn);
  EXPECT_THAT(ahead.text, HasSubstr("5.0 s ahead"));
  EXPECT_THAT(CheckTime(cluster, events, 100'000).text, HasSubstr("5.0 s behind"));
}

TEST(Doctor, ListeningOnLoopbackWithARemoteScheduler) {
  proto::NodeConfig node;
  node.set_listen("127.0.0.1");
  node.set_scheduler("127.0.0.1:7700");
  EXPECT_EQ(CheckListen(node).level, Check::kOk);
  node.set_scheduler("10.0.0.1:7700");
  EXPECT_EQ(CheckListen(node).level, Check::kFail);
  node.set_advertise("10.0.0.2");
  EXPECT_EQ(CheckListen(node).level, Check::kOk);
}

TEST(Doctor, StateFileAndInterfaces) {
  std::string directory = testing::TempDir() + "/sluice-doctor-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  EXPECT_NE(CheckStateFile(directory + "/s.db").level, Check::kFail);
  EXPECT_EQ(CheckStateFile(directory + "/no/s.db").level, Check::kFail);

  for (const char* name : {"lo", "ethX"}) {
    std::filesystem::create_directories(directory + "/net/" + name);
    std::ofstream(directory + "/net/" + name + "/operstate") << "down\n";
    std::ofstream(directory + "/net/" + name + "/mtu") << "9000\n";
    std::ofstream(directory + "/net/" + name + "/speed") << "100000\n";
  }
  const std::vector<Check> checks = CheckInterfaces(directory + "/net");
  ASSERT_EQ(checks.size(), 2u);
  EXPECT_THAT(checks[0].text, HasSubstr("100000 Mb/s, MTU 9000"));
  EXPECT_THAT(checks[0].text, HasSubstr("not usable"));
  EXPECT_EQ(checks[1].level, Check::kWarn);
  std::filesystem::remove_all(directory);
}

// One device on eth0 with 10.0.0.1 that can be used.
rdma::HostFacts GoodRdma() {
  rdma::HostFacts facts;
  facts.device_files = true;
  facts.kernel_devices = {"mlx5_0"};
  rdma::Gid gid{};
  gid[10] = gid[11] = 0xff;
  gid[12] = 10;
  gid[15] = 1;
  rdma::PortFacts port;
  port.queried = true;
  port.state = IBV_PORT_ACTIVE;
  port.link_layer = IBV_LINK_LAYER_ETHERNET;
  port.active_mtu = port.max_mtu = IBV_MTU_4096;
  port.gids = {{3, gid, rdma::GidType::kRoceV2, "eth0"}};
  rdma::DeviceFacts device;
  device.name = "mlx5_0";
  device.ports = {port};
  facts.devices = {device};
  facts.netdevs["eth0"] = {9000, true, {gid}};
  return facts;
}

TEST(Doctor, NoRdmaDeviceIsOneRowThatIsFine) {
  rdma::HostFacts facts;
  facts.library = absl::NotFoundError("libibverbs.so.1 is not installed");
  for (const bool library : {false, true}) {
    if (library) facts.library = absl::OkStatus();
    const std::vector<Check> checks = CheckRdma(facts, {}, /*wanted=*/false);
    ASSERT_EQ(checks.size(), 1u);
    EXPECT_EQ(checks[0].level, Check::kOk);
    EXPECT_EQ(checks[0].text, "no RDMA device: TCP and shared memory are used");
    EXPECT_EQ(checks[0].to_do, "");
    EXPECT_EQ(CheckRdma(facts, {}, /*wanted=*/true)[0].level, Check::kFail);
  }
  EXPECT_EQ(CheckLockedMemory(false).level, Check::kOk);
}

TEST(Doctor, EachFindingAboutRdmaHasItsMend) {
  const std::vector<Check> good = CheckRdma(GoodRdma(), {}, true);
  ASSERT_EQ(good.size(), 1u);
  EXPECT_EQ(good[0].level, Check::kOk);
  EXPECT_EQ(good[0].name, "RDMA mlx5_0");
  EXPECT_THAT(good[0].text, HasSubstr("::ffff:10.0.0.1"));

  rdma::HostFacts closed = GoodRdma();
  closed.devices[0].open_errno = EACCES;
  rdma::HostFacts no_library = GoodRdma();
  no_library.devices.clear();
  no_library.library = absl::NotFoundError("libibverbs.so.1 is not installed");
  rdma::HostFacts container = GoodRdma();
  container.devices.clear();
  container.device_files = false;
  rdma::HostFacts old = GoodRdma();
  old.devices[0].ports[0].gids[0].type = rdma::GidType::kRoceV1;
  const std::vector<std::pair<rdma::HostFacts, std::string>> cases = {
      {closed, "/dev/infiniband/uverbs"}, {no_library, "ibverbs-providers"}, {container, "--device=/dev/infiniband"}, {old, "RoCE v2"}};
  for (const auto& [facts, mend] : cases) {
    const std::vector<Check> checks = CheckRdma(facts, {}, false);
    ASSERT_EQ(checks.size(), 2u) << mend;
    EXPECT_EQ(checks[0].level, Check::kWarn);
    EXPECT_THAT(checks[0].to_do, HasSubstr(mend));
    EXPECT_THAT(checks[1].text, HasSubstr("TCP and shared memory are used"));
    for (const Check& check : CheckRdma(facts, {}, true)) EXPECT_EQ(check.level, Check::kFail) << check.text;
  }
  // The small MTU of an interface costs speed alone.
  rdma::HostFacts slow = GoodRdma();
  slow.netdevs["eth0"].mtu = 1500;
  slow.devices[0].ports[0].active_mtu = IBV_MTU_1024;
  const std::vector<Check> checks = CheckRdma(slow, {}, true);
  ASSERT_EQ(checks.size(), 2u);
  EXPECT_EQ(checks[1].level, Check::kOk);
  EXPECT_THAT(checks[1].to_do, HasSubstr("ip link set dev eth0 mtu"));
}

TEST(Doctor, ReportsAsTextAndJson) {
  const std::vector<Check> checks = {{Check::kOk, "a", "fine", ""}, {Check::kFail, "name", "bad\xff", "do this"}};
  EXPECT_EQ(Render(checks),
            "OK    a     fine\nFAIL  name  bad\xff\n            -> do this\n2 checks, 0 warnings, 1 failed\n");
  EXPECT_EQ(nlohmann::json::parse(Json(checks))["checks"][1]["level"], "FAIL");
  EXPECT_TRUE(AnyFailed(checks));
  EXPECT_FALSE(AnyFailed({checks[0]}));
}

TEST(Doctor, ExaminesARoleWithoutAScheduler) {
  proto::Config config;
  config.mutable_node()->set_listen("127.0.0.1");
  int port;
  {
    Listener listener;
    port = listener.port();
  }
  config.mutable_node()->set_scheduler(absl::StrCat("127.0.0.1:", port));
  EXPECT_TRUE(AnyFailed(Examine(config, "worker")));
  config.mutable_node()->set_port(port);
  int tested = 0;
  for (const Check& check : Examine(config, "scheduler")) {
    if (check.name != "node.port") continue;
    EXPECT_EQ(check.level, Check::kOk) << check.text;
    ++tested;
  }
  EXPECT_EQ(tested, 1);
}

}  // namespace
}  // namespace sluice::ctl
