#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "rdma/device.h"
#include "rdma/fake/fabric.h"

namespace sluice::rdma {
namespace {

class GatherFactsTest : public testing::Test {
 protected:
  GatherFactsTest() : root_(std::filesystem::path(testing::TempDir()) / "gather_facts"), host_(fabric_.AddHost("a")) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ / "dev/infiniband");
  }
  ~GatherFactsTest() override {
    std::filesystem::remove_all(root_);
    EXPECT_EQ(fabric_.live(), fake::Live{});
  }
  HostFacts Gather() {
    host_.WriteSysfs((root_ / "sys").string());
    return GatherFacts(&host_, absl::OkStatus(), Options());
  }
  GatherOptions Options() const { return {(root_ / "sys").string(), (root_ / "dev").string(), host_.Addresses()}; }

  const std::filesystem::path root_;
  fake::Fabric fabric_;
  fake::Host& host_;
};

TEST_F(GatherFactsTest, ReadsDevicesPortsAndInterfaces) {
  host_.AddDevice({.name = "rxe1", .address = "10.0.1.1", .netdev = "eth1", .netdev_mtu = 1500, .ports = 2, .mtu = 3});
  host_.AddDevice({.name = "ib0", .address = "10.0.2.1", .infiniband = true});
  const HostFacts facts = Gather();
  EXPECT_TRUE(facts.device_files);
  EXPECT_EQ(facts.kernel_devices, (std::vector<std::string>{"ib0", "rxe1"}));
  ASSERT_EQ(facts.devices.size(), 2u);
  EXPECT_EQ(facts.devices[0].name, "ib0");
  const DeviceFacts& device = facts.devices[1];
  EXPECT_EQ(device.open_errno, 0);
  ASSERT_EQ(device.ports.size(), 2u);
  const PortFacts& port = device.ports[0];
  EXPECT_TRUE(port.queried);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.active_mtu, IBV_MTU_1024);
  EXPECT_EQ(port.megabits, 100000u);
  ASSERT_EQ(port.gids.size(), 3u);
  EXPECT_EQ(port.gids[1].type, GidType::kRoceV1);
  EXPECT_EQ(port.gids[2].type, GidType::kRoceV2);
  EXPECT_EQ(port.gids[2].index, 2);
  EXPECT_EQ(port.gids[2].netdev, "eth1");
  EXPECT_EQ(GidText(port.gids[2].gid), "::ffff:10.0.1.1");
  EXPECT_EQ(facts.netdevs.at("eth1").mtu, 1500u);
  EXPECT_TRUE(facts.netdevs.at("eth1").up);
  EXPECT_EQ(facts.netdevs.at("eth1").addresses.size(), 2u);
  EXPECT_EQ(facts.devices[0].ports[0].gids[0].type, GidType::kInfiniBand);
  EXPECT_NE(facts.devices[0].ports[0].lid, 0);
}

TEST_F(GatherFactsTest, ChoosesAsTheFakeSays) {
  host_.AddDevice({});
  const RailChoice choice = ChooseRails(Gather(), {});
  ASSERT_EQ(choice.rails.size(), 1u);
  EXPECT_EQ(choice.rails[0].ToString(), host_.RailOf("fake0").ToString());
}

TEST_F(GatherFactsTest, WhatCannotBeOpenedOrReadIsLeftOut) {
  host_.AddDevice({});
  HostFacts facts = Gather();
  host_.FailOpen("fake0", EACCES);
  facts = Gather();
  ASSERT_EQ(facts.devices.size(), 1u);
  EXPECT_EQ(facts.devices[0].open_errno, EACCES);
  EXPECT_TRUE(facts.devices[0].ports.empty());
  host_.FailOpen("fake0", 0);
  std::filesystem::remove_all(root_);
  facts = GatherFacts(&host_, absl::OkStatus(), Options());
  EXPECT_FALSE(facts.device_files);
  EXPECT_TRUE(facts.kernel_devices.empty());
  ASSERT_EQ(facts.devices[0].ports.size(), 1u);
  EXPECT_EQ(facts.devices[0].ports[0].gids[2].type, GidType::kUnknown);
  EXPECT_EQ(facts.devices[0].ports[0].megabits, 0u);
}

TEST_F(GatherFactsTest, StrangeFilesDoNoHarm) {
  host_.AddDevice({});
  host_.WriteSysfs((root_ / "sys").string());
  const auto port = root_ / "sys/class/infiniband/fake0/ports/1";
  std::ofstream(port / "rate") << "nan Gb/sec";
  std::ofstream(port / "gid_attrs/types/2") << std::string(100000, 'x');
  std::ofstream(root_ / "sys/class/net/ethfake0/mtu") << "-5";
  const HostFacts facts = GatherFacts(&host_, absl::OkStatus(), Options());
  EXPECT_EQ(facts.devices[0].ports[0].megabits, 0u);
  EXPECT_EQ(facts.devices[0].ports[0].gids[2].type, GidType::kUnknown);
  EXPECT_EQ(facts.netdevs.at("ethfake0").mtu, 0u);
  EXPECT_TRUE(ChooseRails(facts, {}).rails.empty());
}

TEST_F(GatherFactsTest, WithoutLibraryAndOnThisHost) {
  const absl::Status missing = absl::NotFoundError("none");
  HostFacts facts = GatherFacts(nullptr, missing, Options());
  EXPECT_EQ(facts.library, missing);
  EXPECT_TRUE(facts.devices.empty());
  auto verbs = LoadVerbs();
  facts = GatherFacts(verbs.ok() ? verbs->get() : nullptr, verbs.status());
  EXPECT_EQ(facts.library.code(), verbs.status().code());
  for (const Finding& finding : ChooseRails(facts, {}).findings) EXPECT_FALSE(finding.mend.empty());
}

}  // namespace
}  // namespace sluice::rdma
