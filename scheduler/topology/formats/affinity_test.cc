#include "scheduler/topology/formats/affinity.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/topology/formats/sample_texts.h"

namespace sluice::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Pairs(const Graph& graph, absl::string_view host) {
  const HostDevices devices = OrderDevices(graph, graph.Find(host));
  std::vector<std::string> out;
  const auto name = [&](uint32_t v) {
    return v == kNone ? "-" : graph.vertex(v).name.substr(graph.vertex(v).name.rfind('/') + 1);
  };
  for (size_t i = 0; i < devices.gpus.size(); ++i)
    out.push_back(absl::StrCat(name(devices.gpus[i]), " ", name(devices.nics[i])));
  return out;
}

TEST(Affinity, TheNearestNicAndEqualOnesInTurns) {
  // Two bridges of two GPUs and two NICs each, on two sockets; a network card of the host hangs on the first socket.
  const auto graph = ReadText(
      "sluice-topology 1\nhost n\ncpu n/cpu[0-1]\nbridge n/b[0-1]\ngpu n/gpu[0-3]\nnic n/mlx5_[0-3],n/eth0\n"
      "link n/cpu[0-1] n socket\nlink n/cpu0 n/cpu1 socket\npairs n/b[0-1] n/cpu[0-1] pcie\n"
      "link n/gpu[0-1],n/mlx5_[2-3] n/b0 pcie\nlink n/gpu[2-3],n/mlx5_[0-1] n/b1 pcie\nlink n/eth0 n/cpu0 pcie\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Pairs(*graph, "n"), ElementsAre("gpu0 mlx5_2", "gpu1 mlx5_3", "gpu2 mlx5_0", "gpu3 mlx5_1"));
}

TEST(Affinity, TheWiderOfEquallyNearNics) {
  const auto graph = ReadText(
      "sluice-topology 1\nhost n\nbridge n/b\ngpu n/gpu0\nnic n/a,n/b0\nlink n/b n pcie\n"
      "link n/gpu0 n/b pcie 24GB/s\nlink n/a n/b pcie 4GB/s\nlink n/b0 n/b pcie 24GB/s\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Pairs(*graph, "n"), ElementsAre("gpu0 b0"));
}

TEST(Affinity, NvlinkIsNoWayToANic) {
  const auto graph = ReadText(
      "sluice-topology 1\nhost n\ncpu n/cpu[0-1]\ngpu n/gpu[0-1]\nnic n/far,n/near\nlink n/cpu0 n/cpu1 socket\n"
      "link n/cpu[0-1] n socket\npairs n/gpu[0-1] n/cpu[0-1] pcie\nlink n/gpu0 n/gpu1 nvlink cables=4\n"
      "link n/near n/cpu1 pcie\nlink n/far n/cpu1 pcie\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Pairs(*graph, "n"), ElementsAre("gpu0 far", "gpu1 near"));
}

TEST(Affinity, RanksFollowNvlink) {
  // Pairs 0-2 and 1-3 are linked doubly, 0-1 and 2-3 once: the ring is 0 1 3 2.
  const auto graph = ReadText(
      "sluice-topology 1\nhost n\ngpu n/gpu[0-3]\nlink n/gpu[0-3] n pcie\n"
      "link n/gpu0 n/gpu2 nvlink cables=2\nlink n/gpu1 n/gpu3 nvlink cables=2\nlink n/gpu0 n/gpu1 nvlink\nlink n/gpu2 "
      "n/gpu3 nvlink\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Pairs(*graph, "n"), ElementsAre("gpu0 -", "gpu1 -", "gpu3 -", "gpu2 -"));
}

TEST(Affinity, BehindOneSwitchPcieDecides) {
  // All are joined by NVSwitch; 0 and 2 share a socket, 1 and 3 the other.
  const auto graph = ReadText(
      "sluice-topology 1\nhost n\ncpu n/cpu[0-1]\nbridge n/nvswitch\ngpu n/gpu[0-3]\nlink n/cpu0 n/cpu1 socket\n"
      "link n/gpu0,n/gpu2 n/cpu0 pcie\nlink n/gpu1,n/gpu3 n/cpu1 pcie\nlink n/gpu[0-3] n/nvswitch nvlink 300GB/s\nlink "
      "n/cpu[0-1] n socket\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Pairs(*graph, "n"), ElementsAre("gpu0 -", "gpu1 -", "gpu3 -", "gpu2 -"));
}

TEST(Affinity, NumbersAreNumbersAndManyGpusAreFound) {
  const auto many = ReadText("sluice-topology 1\nhost n\ngpu n/gpu[0-15]\nlink n/gpu[0-15] n pcie\n");
  ASSERT_TRUE(many.ok()) << many.status();
  const std::vector<std::string> order = Pairs(*many, "n");
  ASSERT_EQ(order.size(), 16u);
  EXPECT_EQ(order[2], "gpu2 -");
  EXPECT_EQ(order[15], "gpu15 -");
  EXPECT_THAT(Pairs(*ReadText("sluice-topology 1\nhost n\n"), "n"), IsEmpty());
}

}  // namespace
}  // namespace sluice::topology
