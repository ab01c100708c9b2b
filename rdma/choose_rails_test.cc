// Each trap that users fall into, from made-up facts: it is named, and so is its mend.
#include <gtest/gtest.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "rdma/device.h"

namespace sluice::rdma {
namespace {

Gid Ipv4(uint8_t last, uint8_t first = 10) {
  Gid gid{};
  gid[10] = gid[11] = 0xff;
  gid[12] = first;
  gid[15] = last;
  if (first == 169) gid[13] = 254;
  return gid;
}

Gid Ipv6(uint8_t first, uint8_t second, uint8_t last) {
  Gid gid{};
  gid[0] = first;
  gid[1] = second;
  gid[15] = last;
  return gid;
}

const Gid kLinkLocal = Ipv6(0xfe, 0x80, 1);
const Gid kGlobal = Ipv6(0x20, 0x01, 1);

PortFacts EthernetPort(const std::string& netdev, std::vector<GidFacts> gids) {
  PortFacts port;
  port.queried = true;
  port.state = IBV_PORT_ACTIVE;
  port.link_layer = IBV_LINK_LAYER_ETHERNET;
  port.active_mtu = port.max_mtu = IBV_MTU_4096;
  port.megabits = 100000;
  for (GidFacts& gid : gids) gid.netdev = netdev;
  port.gids = std::move(gids);
  return port;
}

// One good device, mlx5_0 on eth0 with 10.0.0.1.
HostFacts Good() {
  HostFacts facts;
  facts.device_files = true;
  facts.kernel_devices = {"mlx5_0"};
  DeviceFacts device;
  device.name = "mlx5_0";
  device.ports = {EthernetPort("eth0", {{0, kLinkLocal, GidType::kRoceV1},
                                        {1, kLinkLocal, GidType::kRoceV2},
                                        {2, Ipv4(1), GidType::kRoceV1},
                                        {3, Ipv4(1), GidType::kRoceV2},
                                        {5, kGlobal, GidType::kRoceV2}})};
  facts.devices = {device};
  facts.netdevs["eth0"] = {9000, true, {Ipv4(1), kGlobal, kLinkLocal}};
  return facts;
}

PortFacts& Port(HostFacts& facts) { return facts.devices[0].ports[0]; }

std::string Text(const RailChoice& choice) {
  std::string text;
  for (const Finding& finding : choice.findings) {
    absl::StrAppend(&text, static_cast<int>(finding.severity), "|", finding.device, "|", finding.what, "|",
                    finding.mend, "\n");
  }
  return text;
}

bool Says(const RailChoice& choice, const std::string& what, const std::string& mend) {
  for (const Finding& finding : choice.findings) {
    if (finding.what.find(what) != std::string::npos && finding.mend.find(mend) != std::string::npos) return true;
  }
  return false;
}

TEST(ChooseRails, TakesTheGidOfTheInterfacesAddress) {
  const RailChoice choice = ChooseRails(Good(), {});
  ASSERT_EQ(choice.rails.size(), 1u);
  EXPECT_EQ(choice.rails[0].gid_index, 3);
  EXPECT_EQ(choice.rails[0].ToString(), "mlx5_0 port 1, RoCE v2, GID 3 ::ffff:10.0.0.1, eth0");
  EXPECT_EQ(choice.rails[0].megabits, 100000u);
  EXPECT_EQ(Text(choice), "");
}

TEST(ChooseRails, ElseAGlobalIpv6Address) {
  HostFacts facts = Good();
  facts.netdevs["eth0"].addresses = {kGlobal, kLinkLocal};
  const RailChoice choice = ChooseRails(facts, {});
  ASSERT_EQ(choice.rails.size(), 1u);
  EXPECT_EQ(choice.rails[0].gid_index, 5);
}

TEST(ChooseRails, NeverLinkLocal) {
  HostFacts facts = Good();
  Port(facts).gids = {{0, kLinkLocal, GidType::kRoceV2, "eth0"}, {1, Ipv4(9, 169), GidType::kRoceV2, "eth0"}};
  facts.netdevs["eth0"].addresses = {kLinkLocal, Ipv4(9, 169)};
  const RailChoice choice = ChooseRails(facts, {});
  EXPECT_TRUE(choice.rails.empty());
  EXPECT_TRUE(Says(choice, "only link-local", "ip address add")) << Text(choice);
  EXPECT_EQ(choice.findings[0].severity, Severity::kError);
}

TEST(ChooseRails, NoGidAtAll) {
  HostFacts facts = Good();
  Port(facts).gids.clear();
  EXPECT_TRUE(Says(ChooseRails(facts, {}), "no GID", "ip address add"));
}

TEST(ChooseRails, RoceV1OnlyWhenItIsAskedFor) {
  HostFacts facts = Good();
  std::erase_if(Port(facts).gids, [](const GidFacts& gid) { return gid.type != GidType::kRoceV1; });
  const RailChoice refused = ChooseRails(facts, {});
  EXPECT_TRUE(refused.rails.empty());
  EXPECT_TRUE(Says(refused, "RoCE v1 GIDs only", "RoCE v2")) << Text(refused);
  const RailChoice asked = ChooseRails(facts, {.roce_v1 = true});
  ASSERT_EQ(asked.rails.size(), 1u);
  EXPECT_EQ(asked.rails[0].gid_index, 2);
  EXPECT_EQ(asked.rails[0].gid_type, GidType::kRoceV1);
  std::erase_if(Port(facts).gids, [](const GidFacts&) { return true; });
  Port(facts).gids = {{3, Ipv4(1), GidType::kRoceV2, "eth0"}};
  EXPECT_TRUE(Says(ChooseRails(facts, {.roce_v1 = true}), "no RoCE v1", "default"));
}

TEST(ChooseRails, AGidOfAnAddressThatIsGoneIsStale) {
  HostFacts facts = Good();
  facts.netdevs["eth0"].addresses = {Ipv4(2)};
  const RailChoice choice = ChooseRails(facts, {});
  EXPECT_TRUE(choice.rails.empty());
  EXPECT_TRUE(Says(choice, "no GID belongs", "ip address show eth0")) << Text(choice);
}

TEST(ChooseRails, AnInterfaceElsewhereIsTakenAtItsWord) {
  HostFacts facts = Good();
  facts.netdevs.clear();
  const RailChoice choice = ChooseRails(facts, {});
  ASSERT_EQ(choice.rails.size(), 1u);
  EXPECT_EQ(choice.rails[0].gid_index, 3);
  EXPECT_TRUE(Says(choice, "cannot be seen", "network namespace")) << Text(choice);
}

TEST(ChooseRails, ANamedGidIndexIsObeyedOrExplained) {
  EXPECT_EQ(ChooseRails(Good(), {.gid_index = 5}).rails[0].gid_index, 5);
  EXPECT_EQ(ChooseRails(Good(), {.gid_index = 2}).rails[0].gid_type, GidType::kRoceV1);
  const RailChoice local = ChooseRails(Good(), {.gid_index = 1});
  EXPECT_EQ(local.rails.size(), 1u);
  EXPECT_TRUE(Says(local, "link-local", "-1"));
  const RailChoice wrong = ChooseRails(Good(), {.gid_index = 4});
  EXPECT_TRUE(wrong.rails.empty());
  EXPECT_TRUE(Says(wrong, "no usable GID at index 4", "3 ::ffff:10.0.0.1 (RoCE v2)")) << Text(wrong);
}

TEST(ChooseRails, NoLibrary) {
  HostFacts facts;
  facts.library = absl::NotFoundError("libibverbs.so.1 cannot be loaded");
  RailChoice choice = ChooseRails(facts, {});
  EXPECT_TRUE(Says(choice, "libibverbs.so.1", "libibverbs1"));
  EXPECT_EQ(choice.findings[0].severity, Severity::kInfo);
  facts.kernel_devices = {"mlx5_0"};
  choice = ChooseRails(facts, {});
  EXPECT_EQ(choice.findings[0].severity, Severity::kError);
  EXPECT_TRUE(Says(choice, "libibverbs.so.1", "mlx5_0"));
}

TEST(ChooseRails, NoDevices) {
  HostFacts facts;
  facts.list_errno = ENOSYS;
  const RailChoice choice = ChooseRails(facts, {});
  EXPECT_TRUE(Says(choice, "no RDMA device", "rdma_rxe")) << Text(choice);
  EXPECT_EQ(choice.findings[0].severity, Severity::kInfo);
}

TEST(ChooseRails, AContainerWithoutDeviceFiles) {
  HostFacts facts;
  facts.kernel_devices = {"mlx5_0"};
  EXPECT_TRUE(Says(ChooseRails(facts, {}), "/dev/infiniband is missing", "--device=/dev/infiniband"));
  facts = Good();
  facts.device_files = false;
  facts.devices[0].open_errno = ENOENT;
  facts.devices[0].ports.clear();
  EXPECT_TRUE(Says(ChooseRails(facts, {}), "/dev/infiniband is missing", "--device=/dev/infiniband"));
}

TEST(ChooseRails, NoProvider) {
  HostFacts facts;
  facts.kernel_devices = {"mlx5_0"};
  facts.device_files = true;
  EXPECT_TRUE(Says(ChooseRails(facts, {}), "lists no device", "ibverbs-providers"));
}

TEST(ChooseRails, NoPermission) {
  HostFacts facts = Good();
  facts.devices[0].open_errno = EACCES;
  const RailChoice choice = ChooseRails(facts, {});
  EXPECT_TRUE(choice.rails.empty());
  EXPECT_TRUE(Says(choice, "cannot be opened", "uverbs")) << Text(choice);
  facts.devices[0].open_errno = EIO;
  EXPECT_TRUE(Says(ChooseRails(facts, {}), "cannot be opened", "dmesg"));
}

TEST(ChooseRails, PortDown) {
  HostFacts facts = Good();
  Port(facts).state = IBV_PORT_DOWN;
  const RailChoice choice = ChooseRails(facts, {});
  EXPECT_TRUE(choice.rails.empty());
  EXPECT_TRUE(Says(choice, "not active", "ip link set"));
  Port(facts).queried = false;
  EXPECT_TRUE(Says(ChooseRails(facts, {}), "cannot be queried", "dmesg"));
}

TEST(ChooseRails, AnMtuThatCouldBeLarger) {
  HostFacts facts = Good();
  Port(facts).active_mtu = IBV_MTU_1024;
  RailChoice choice = ChooseRails(facts, {});
  EXPECT_EQ(choice.rails.size(), 1u);
  EXPECT_TRUE(Says(choice, "active MTU is 1024 though eth0 with MTU 9000 could carry 4096", "down and up"))
      << Text(choice);
  EXPECT_EQ(choice.findings[0].severity, Severity::kWarning);
  facts.netdevs["eth0"].mtu = 1500;
  choice = ChooseRails(facts, {});
  EXPECT_TRUE(Says(choice, "active MTU is 1024 of 4096", "mtu 4200")) << Text(choice);
  EXPECT_EQ(choice.findings[0].severity, Severity::kInfo);
  Port(facts).active_mtu = IBV_MTU_4096;
  facts.netdevs["eth0"].mtu = 4200;
  EXPECT_EQ(Text(ChooseRails(facts, {})), "");
}

TEST(ChooseRails, TheMemlockLimit) {
  HostFacts facts = Good();
  facts.memlock = 8 << 20;
  RailChoice choice = ChooseRails(facts, {.register_bytes = 9 << 20});
  EXPECT_TRUE(Says(choice, "8388608 bytes, and 9437184 will", "ulimit -l unlimited")) << Text(choice);
  EXPECT_EQ(choice.findings[0].severity, Severity::kError);
  EXPECT_EQ(Text(ChooseRails(facts, {.register_bytes = 8 << 20})), "");
  choice = ChooseRails(facts, {});
  EXPECT_EQ(choice.findings[0].severity, Severity::kWarning);
  // Each of two rails pins it.
  facts.devices.push_back(facts.devices[0]);
  facts.devices[1].name = "mlx5_1";
  EXPECT_TRUE(Says(ChooseRails(facts, {.register_bytes = 8 << 20}), "16777216 will", "memlock"));
  EXPECT_TRUE(Says(ChooseRails(facts, {.register_bytes = UINT64_MAX}), "18446744073709551615 will", "memlock"));
}

TEST(ChooseRails, NamesChooseAndOrderRails) {
  HostFacts facts = Good();
  facts.devices.push_back(facts.devices[0]);
  facts.devices[1].name = "mlx5_1";
  facts.devices[1].ports.push_back(facts.devices[1].ports[0]);
  facts.devices[1].ports[1].port = 2;
  EXPECT_EQ(ChooseRails(facts, {}).rails.size(), 3u);
  const RailChoice choice = ChooseRails(facts, {.devices = {"mlx5_1:2", "mlx5_0", "mlx5_0"}});
  ASSERT_EQ(choice.rails.size(), 2u);
  EXPECT_EQ(choice.rails[0].device, "mlx5_1");
  EXPECT_EQ(choice.rails[0].port, 2);
  EXPECT_EQ(choice.rails[1].device, "mlx5_0");
  EXPECT_TRUE(Says(ChooseRails(facts, {.devices = {"mlx5_9"}}), "no such device", "mlx5_0, mlx5_1"));
  EXPECT_TRUE(Says(ChooseRails(facts, {.devices = {"mlx5_0:x"}}), "no such device", ""));
  EXPECT_TRUE(Says(ChooseRails(facts, {.devices = {"mlx5_0:7"}}), "no port 7", "another"));
}

TEST(ChooseRails, InfiniBandTakesGidZeroAndNeedsALid) {
  HostFacts facts = Good();
  PortFacts& port = Port(facts);
  port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  port.lid = 12;
  port.gids = {{0, kLinkLocal, GidType::kInfiniBand, ""}};
  const RailChoice choice = ChooseRails(facts, {});
  ASSERT_EQ(choice.rails.size(), 1u);
  EXPECT_EQ(choice.rails[0].lid, 12);
  EXPECT_EQ(choice.rails[0].gid_type, GidType::kInfiniBand);
  port.lid = 0;
  EXPECT_TRUE(Says(ChooseRails(facts, {}), "no LID", "opensm"));
  port.state = IBV_PORT_INIT;
  EXPECT_TRUE(Says(ChooseRails(facts, {}), "not active", "subnet manager"));
}

TEST(Gid, Text) {
  EXPECT_EQ(GidText(Ipv4(1)), "::ffff:10.0.0.1");
  EXPECT_TRUE(IsLinkLocal(Ipv6(0xfe, 0xbf, 1)));
  EXPECT_FALSE(IsLinkLocal(Ipv6(0xfe, 0xc0, 1)));
  EXPECT_TRUE(IsLinkLocal(Ipv4(1, 169)));
  EXPECT_FALSE(IsLinkLocal(Ipv4(1)));
  EXPECT_TRUE(IsZero(Gid{}));
}

}  // namespace
}  // namespace sluice::rdma
