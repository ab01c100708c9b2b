#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/topology/formats/infiniband.h"
#include "scheduler/topology/formats/sample_texts.h"
#include "scheduler/topology/formats/write.h"

namespace sluice::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Two leaves under a spine with two cables each; n1 has two rails; one adapter is described by its vendor; SHARP.
constexpr char kFabric[] = R"(#
# Topology file: generated on a day
#
vendid=0x2c9
devid=0xd2f2
sysimgguid=0xa1
switchguid=0xa1(a1)
Switch	65 "S-00000000000000a1"		# "MF0;leaf1:MQM9701/U1" enhanced port 0 lid 1 lmc 0
[1]	"H-00000000000000c1"[1](c1) 		# "n1 mlx5_0" lid 11 4xNDR
[2]	"H-00000000000000c3"[1](c3) 		# "MT4129 ConnectX7   Mellanox Technologies" lid 13 4xNDR
[33]	"S-00000000000000b1"[1]		# "MF0;spine:MQM9701/U1" lid 3 4xNDR
[34]	"S-00000000000000b1"[2]		# "MF0;spine:MQM9701/U1" lid 3 4xNDR
[65]	"H-00000000000000e1"[1](e1) 		# "Mellanox Technologies Aggregation Node" lid 9 4xNDR

switchguid=0xa2(a2)
Switch	65 "S-00000000000000a2"		# "MF0;leaf2:MQM9701/U1" enhanced port 0 lid 2 lmc 0
[1]	"H-00000000000000c2"[1](c2) 		# "n1 mlx5_1" lid 12 4xHDR
[33]	"S-00000000000000b1"[3]		# "MF0;spine:MQM9701/U1" lid 3 4xNDR

switchguid=0xb1(b1)
Switch	65 "S-00000000000000b1"		# "MF0;spine:MQM9701/U1" enhanced port 0 lid 3 lmc 0
[1]	"S-00000000000000a1"[33]		# "MF0;leaf1:MQM9701/U1" lid 1 4xNDR
[2]	"S-00000000000000a1"[34]		# "MF0;leaf1:MQM9701/U1" lid 1 4xNDR
[3]	"S-00000000000000a2"[33]		# "MF0;leaf2:MQM9701/U1" lid 2 4xNDR

caguid=0xe1
Ca	1 "H-00000000000000e1"		# "Mellanox Technologies Aggregation Node"
[1](e1) 	"S-00000000000000a1"[65]		# lid 9 lmc 0 "MF0;leaf1:MQM9701/U1" lid 1 4xNDR

caguid=0xc1
Ca	1 "H-00000000000000c1"		# "n1 mlx5_0"
[1](c1) 	"S-00000000000000a1"[1]		# lid 11 lmc 0 "MF0;leaf1:MQM9701/U1" lid 1 4xNDR

caguid=0xc2
Hca	2 "H-00000000000000c2"		# "n1 mlx5_1"
[1](c2) 	"S-00000000000000a2"[1]		# lid 12 lmc 0 "MF0;leaf2:MQM9701/U1" lid 2 4xHDR
[2](c2)		# 4x???

caguid=0xc3
Ca	1 "H-00000000000000c3"		# "MT4129 ConnectX7   Mellanox Technologies"
[1](c3) 	"S-00000000000000a1"[2]		# lid 13 lmc 0 "MF0;leaf1:MQM9701/U1" lid 1 4xNDR
)";

TEST(Ibnetdiscover, CountsEachCableOnce) {
  Report report;
  const auto graph = ReadText(kFabric, &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.format, "ibnetdiscover");
  EXPECT_EQ(report.hosts, 2u);
  EXPECT_EQ(report.switches, 3u);
  EXPECT_EQ(report.nics, 3u);
  EXPECT_EQ(graph->link(graph->FindLink(graph->Find("leaf1"), graph->Find("spine"), Medium::kInfiniband)).cables, 2u);
  EXPECT_DOUBLE_EQ(Gbps(*graph, "leaf1", "spine", Medium::kInfiniband), 800);
  EXPECT_DOUBLE_EQ(Gbps(*graph, "leaf2", "spine", Medium::kInfiniband), 400);
  EXPECT_DOUBLE_EQ(Gbps(*graph, "n1/mlx5_1", "leaf2", Medium::kInfiniband), 200);
  EXPECT_THAT(Neighbours(*graph, "n1"), UnorderedElementsAre("n1/mlx5_0", "n1/mlx5_1"));
  EXPECT_THAT(Neighbours(*graph, "H-00000000000000c3/hca"), UnorderedElementsAre("leaf1", "H-00000000000000c3"));
  EXPECT_EQ(graph->vertex(graph->Find("leaf1")).note, "MF0;leaf1:MQM9701/U1");
  EXPECT_THAT(report.warnings,
              ElementsAre(HasSubstr("1 aggregation nodes"), HasSubstr("1 adapters do not say whose they are"),
                          HasSubstr("1 ports are down")));
  const auto again = ReadText(WritePlain(*graph));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Dump(*again), Dump(*graph));
}

TEST(Ibnetdiscover, SwitchesThatShareANameAreNamedByGuid) {
  const auto graph = ReadText(absl::StrReplaceAll(kFabric, {{"leaf2", "leaf1"}}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->Find("leaf1"), kNone);
  EXPECT_THAT(Neighbours(*graph, "n1/mlx5_1"), UnorderedElementsAre("S-00000000000000a2", "n1"));
  const auto modular = ReadText(absl::StrReplaceAll(
      kFabric, {{"leaf1:MQM9701/U1", "big:CS8500/L01/U1"}, {"leaf2:MQM9701/U1", "big:CS8500/L02/U1"}}));
  ASSERT_TRUE(modular.ok()) << modular.status();
  EXPECT_THAT(Neighbours(*modular, "n1/mlx5_1"), UnorderedElementsAre("big/L02/U1", "n1"));
}

TEST(Ibnetdiscover, RefusesWithFileLineAndReason) {
  const auto changed = [](absl::string_view from, absl::string_view to) {
    return Refusal(absl::StrReplaceAll(kFabric, {{from, to}}));
  };
  EXPECT_THAT(changed("[34]\t\"S-00000000000000b1\"[2]", "[34]\t\"S-00000000000000b1\"[1]"),
              HasSubstr("f:12: port 1 of \"S-00000000000000b1\" is cabled with port 34 of \"S-00000000000000a1\" here "
                        "and with port 33"));
  EXPECT_THAT(changed("[2]\t\"S-00000000000000a1\"[34]", "[1]\t\"S-00000000000000a1\"[33]"),
              HasSubstr("f:23: port 1 of \"S-00000000000000b1\" is listed in line"));
  EXPECT_THAT(changed("4xHDR", "4xWDR"), HasSubstr("f:17: no such width and speed"));
  EXPECT_THAT(changed("4xHDR", "HDR"), HasSubstr("no width and speed"));
  EXPECT_THAT(changed("caguid=0xc1", "hello"), HasSubstr("f:30: no line of ibnetdiscover: \"hello\""));
  EXPECT_THAT(changed("Ca\t1 \"H-00000000000000c1\"", "Ca\t1 \"S-00000000000000c1\""), HasSubstr("no name such as"));
  EXPECT_THAT(changed("[33]\t\"S-00000000000000b1\"[1]", "[x]\t\"S-00000000000000b1\"[1]"),
              HasSubstr("no port number"));
  EXPECT_THAT(changed("[33]\t\"S-00000000000000b1\"[1]", "[33]\t\"S-00000000000000b1\""),
              HasSubstr("no port of the other end"));
  EXPECT_THAT(changed("# \"n1 mlx5_0\" lid 11", "# lid 11"), HasSubstr("no description"));
  EXPECT_THAT(changed("[33]\t\"S-00000000000000b1\"[1]", "[333]\t\"S-00000000000000b1\"[1]"), HasSubstr("1 to 254"));
  EXPECT_THAT(Refusal("# Topology file: generated on\n[1]\t\"S-a\"[1]\t# \"x\" lid 1 4xNDR\n"),
              HasSubstr("a port of no node"));
  EXPECT_THAT(Refusal("# Topology file: generated on\n"), HasSubstr("names no host"));
}

TEST(Ibnetdiscover, SpeedsArePayloadBits) {
  using infiniband::BytesPerSecond;
  EXPECT_DOUBLE_EQ(BytesPerSecond("4x", "SDR"), 1e9);
  EXPECT_DOUBLE_EQ(BytesPerSecond("4x", "QDR"), 4e9);
  EXPECT_NEAR(BytesPerSecond("4x", "FDR"), 54.5e9 / 8, 1e7);
  EXPECT_DOUBLE_EQ(BytesPerSecond("4x", "EDR"), 12.5e9);
  EXPECT_DOUBLE_EQ(BytesPerSecond("2x", "HDR"), 12.5e9);
  EXPECT_DOUBLE_EQ(BytesPerSecond("4x", "XDR"), 100e9);
  EXPECT_EQ(BytesPerSecond("4x", "???"), 0);
  EXPECT_LT(BytesPerSecond("3x", "EDR"), 0);
  EXPECT_LT(BytesPerSecond("4", "EDR"), 0);
}

constexpr char kPorts[] =
    "CA   134  1 0x7cfe900300000001 4x EDR - SW  1719 10 0x7cfe900300000a01 ( 'o0001 mlx5_0' - 'ib-i1l1s01' )\n"
    "CA   135  2 0x7cfe900300000002 4x EDR - SW  1719 11 0x7cfe900300000a01 ( 'o0001 mlx5_0' - 'ib-i1l1s01' )\n"
    "SW  1719 10 0x7cfe900300000a01 4x EDR - CA   134  1 0x7cfe900300000001 ( 'ib-i1l1s01' - 'o0001 mlx5_0' )\n"
    "SW  1719 11 0x7cfe900300000a01 4x EDR - CA   135  2 0x7cfe900300000002 ( 'ib-i1l1s01' - 'o0001 mlx5_0' )\n"
    "SW  1719 12 0x7cfe900300000a01 4x ???                                    'ib-i1l1s01'\n"
    "SW  1719 13 0x7cfe900300000a01 4x SDR                                    'ib-i1l1s01'\n"
    "SW  1719 36 0x7cfe900300000a01 4x EDR - SW  1720 1 0x7cfe900300000a02 ( 'ib-i1l1s01' - 'ib spine - 1' )\n";

TEST(IbnetdiscoverPorts, ReadsALineAPort) {
  Report report;
  const auto graph = ReadText(kPorts, &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.format, "ibnetdiscover-p");
  EXPECT_EQ(report.hosts, 1u);
  EXPECT_EQ(report.nics, 2u);
  EXPECT_DOUBLE_EQ(Gbps(*graph, "ib-i1l1s01", "S-7cfe900300000a02", Medium::kInfiniband), 100);
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("2 ports are down")));
  EXPECT_THAT(Neighbours(*graph, "o0001"), UnorderedElementsAre("o0001/mlx5_0", "o0001/mlx5_0:2"));
  const auto twins = ReadText(absl::StrReplaceAll(kPorts, {{"135  2", "135  1"}}), &report);
  ASSERT_TRUE(twins.ok()) << twins.status();
  EXPECT_THAT(Neighbours(*twins, "o0001"), UnorderedElementsAre("o0001/mlx5_0", "o0001/mlx5_0@H-7cfe900300000002"));
  EXPECT_THAT(report.warnings,
              ElementsAre(HasSubstr("description of several adapters"), HasSubstr("2 ports are down")));
}

TEST(IbnetdiscoverPorts, RefusesWithFileLineAndReason) {
  const std::string good(kPorts);
  EXPECT_THAT(Refusal(good + "XX 1 1 0x1 4x EDR 'x'\n"), HasSubstr("f:8: no TYPE LID PORT GUID"));
  EXPECT_THAT(Refusal(good + "SW 1 1 0x1 4x EDR\n"), HasSubstr("f:8: no description in quotes"));
  EXPECT_THAT(Refusal(good + "SW 1 1 0x1 4x 'x'\n"), HasSubstr("no width and speed"));
  EXPECT_THAT(Refusal(good + "SW 1 1 0x1 4x FOO 'x'\n"), HasSubstr("no such width and speed"));
  EXPECT_THAT(Refusal(good + "SW 1 1 0x1 4x EDR - SW 2 ( 'x' - 'y' )\n"), HasSubstr("no other end"));
  EXPECT_THAT(Refusal(good + "SW 1 1 0x1 4x EDR - SW 2 2 0x2 ( 'x' )\n"), HasSubstr("no description of the other end"));
  EXPECT_THAT(Refusal(good + "SW 1 1 0x1 4x EDR - SW 1 1 0x1 ( 'x' - 'x' )\n"), HasSubstr("is cabled with itself"));
}

TEST(IbnetdiscoverPorts, WhatHasAnEndlessDescriptionIsWrittenAndReadAgain) {
  const auto graph = ReadText(absl::StrReplaceAll(kPorts, {{"ib spine", std::string(2000, 'x') + " y"}}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto again = ReadText(WritePlain(*graph));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Dump(*again), Dump(*graph));
}

}  // namespace
}  // namespace sluice::topology
