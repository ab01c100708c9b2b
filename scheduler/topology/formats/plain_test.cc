#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/topology/formats/sample_texts.h"
#include "scheduler/topology/formats/units.h"
#include "scheduler/topology/formats/write.h"

namespace sluice::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTwoRacks[] = R"(# two racks
sluice-topology 1
host n[01-04] slots=8 note="a \"big\" one"
switch leaf[1-2]
switch "spine, the only" note=old   # a comment
gpu n01/gpu[0-1]
nic n01/mlx5_0
link n[01-02] leaf1 25Gb/s 5us
link n[03-04] leaf2 ethernet 25Gb/s
link leaf[1-2] "spine, the only" ethernet 100Gb/s 1.5us cables=2
pairs n01/gpu[0-1] n01/mlx5_0,n01 pcie 24GB/s
link n01/mlx5_0 leaf1 infiniband 400Gb/s source=measured
)";

TEST(Plain, ReadsWhatItDocuments) {
  Report report;
  const auto graph = ReadText(kTwoRacks, &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.format, "sluice");
  EXPECT_EQ(report.hosts, 4u);
  EXPECT_EQ(report.switches, 3u);
  EXPECT_EQ(report.gpus, 2u);
  EXPECT_EQ(report.nics, 1u);
  EXPECT_EQ(graph->vertex(graph->Find("n03")).slots, 8u);
  EXPECT_EQ(graph->vertex(graph->Find("n03")).note, "a \"big\" one");
  EXPECT_THAT(Neighbours(*graph, "leaf1"), ElementsAre("n01", "n02", "spine, the only", "n01/mlx5_0"));
  const Link& up =
      graph->link(graph->FindLink(graph->Find("leaf1"), graph->Find("spine, the only"), Medium::kEthernet));
  EXPECT_EQ(up.bytes_per_second, 12.5e9);
  EXPECT_EQ(up.latency_s, 1.5e-6);
  EXPECT_EQ(up.cables, 2u);
  EXPECT_EQ(up.source, Source::kFile);
  EXPECT_EQ(graph->link(graph->FindLink(graph->Find("n01/mlx5_0"), graph->Find("leaf1"), Medium::kInfiniband)).source,
            Source::kMeasured);
  EXPECT_EQ(graph->vertex(graph->Find("n01/gpu1")).host, graph->Find("n01"));
}

TEST(Plain, RefusesWithFileLineAndReason) {
  const std::string head = "sluice-topology 1\nhost n1,n2\nswitch s\n";
  const auto refused = [&](absl::string_view line) { return Refusal(absl::StrCat(head, line)); };
  EXPECT_EQ(refused("router r"),
            "f:4: unknown word \"router\", in format sluice; lines begin with host, switch, gpu, nic, cpu, bridge, "
            "link, pairs, "
            "tier or generate");
  EXPECT_THAT(Refusal("sluice-topology 2\n"), StartsWith("f:1: it must begin with \"sluice-topology 1\""));
  EXPECT_THAT(Refusal("sluice-topology 1\n"), HasSubstr("names no host and no switch"));
  EXPECT_THAT(refused("host"), HasSubstr("f:4: host without a name"));
  EXPECT_THAT(refused("host n1"), HasSubstr("described already"));
  EXPECT_THAT(refused("host n3 slots=0"), HasSubstr("no number above 0"));
  EXPECT_THAT(refused("host n3 in=n1"), HasSubstr("unknown word \"in=n1\""));
  EXPECT_THAT(refused("host n[1-"), HasSubstr("without its ']'"));
  EXPECT_THAT(refused("host n[0-999999999]"), HasSubstr("more than 1048576 names"));
  EXPECT_THAT(refused("gpu gpu0"), HasSubstr("does not say in which host"));
  EXPECT_THAT(refused("gpu n9/gpu0"), HasSubstr("\"n9\" of \"n9/gpu0\" is no host"));
  EXPECT_THAT(refused("gpu s/gpu0"), HasSubstr("is no host"));
  EXPECT_THAT(refused("link n1"), HasSubstr("both ends"));
  EXPECT_THAT(refused("link n1 n3"), HasSubstr("\"n3\" is not described"));
  EXPECT_THAT(refused("link n1 n1"), HasSubstr("linked with itself"));
  EXPECT_THAT(refused("link n1 s 25"), HasSubstr("no bandwidth"));
  EXPECT_THAT(refused("link n1 s -1Gb/s"), HasSubstr("unknown word \"-1Gb/s\""));
  EXPECT_THAT(refused("link n1 s 0Gb/s"), HasSubstr("no bandwidth"));
  EXPECT_THAT(refused("link n1 s 1e999Gb/s"), HasSubstr("no bandwidth"));
  EXPECT_THAT(refused("link n1 s tokenring"), HasSubstr("known are a medium"));
  EXPECT_THAT(refused("link n1 s cables=0"), HasSubstr("no number above 0"));
  EXPECT_THAT(refused("link n1 s source=hope"), HasSubstr("source=measured"));
  EXPECT_THAT(refused("pairs n1,n2 s"), HasSubstr("pairs of 2 and 1 names"));
  EXPECT_THAT(refused("switch \"x"), HasSubstr("quote without its end"));
  EXPECT_THAT(refused("switch \"x\\q\""), HasSubstr("begins nothing known"));
  EXPECT_THAT(refused("tier 0 25Gb/s"), HasSubstr("tier needs a number from 1"));
  EXPECT_THAT(refused("tier 1 25Gb/s\ntier 1 5us"), HasSubstr("f:5: tier 1 is described already"));
  EXPECT_THAT(refused("tier 1 cables=2"), HasSubstr("known are a bandwidth and a latency"));
  EXPECT_THAT(refused("generate"), HasSubstr("none of fat-tree"));
  EXPECT_THAT(refused("generate fat-tree k=3"), StartsWith("f:4: "));
  EXPECT_THAT(refused("generate fat-tree q=4"), HasSubstr("unknown word q"));
  EXPECT_THAT(refused("generate fat-tree k=100000"), StartsWith("f:4: "));
  EXPECT_THAT(refused("generate torus dims=4xx4"), HasSubstr("8x8x4"));
  EXPECT_THAT(refused("generate fat-tree\ngenerate fat-tree"), HasSubstr("second generate"));
  EXPECT_THAT(Refusal(std::string("sluice-topology 1\nhost ") + std::string(kMaxLineBytes + 1, 'x')),
              HasSubstr("a line of more"));
}

TEST(Plain, TiersFillWhatNoFileSays) {
  constexpr char kSlurm[] = "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\nSwitchName=r Switches=a,b\n";
  constexpr char kTiers[] =
      "sluice-topology 1\nhost n1\nswitch a\nlink n1 a 10Gb/s\ntier 1 25Gb/s 2us\ntier 2 100Gb/s\n";
  std::vector<Report> reports;
  const std::vector<Input> inputs = {{.file = "slurm", .text = kSlurm}, {.file = "tiers", .text = kTiers}};
  const auto graph = ReadAll(inputs, {}, &reports);
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].format, "slurm-conf");
  EXPECT_EQ(reports[1].format, "sluice");
  EXPECT_DOUBLE_EQ(Gbps(*graph, "n1", "a", Medium::kUnknown), 10);
  EXPECT_DOUBLE_EQ(Gbps(*graph, "n2", "a", Medium::kUnknown), 25);
  EXPECT_DOUBLE_EQ(Gbps(*graph, "a", "r", Medium::kUnknown), 100);
  EXPECT_EQ(graph->link(graph->FindLink(graph->Find("n1"), graph->Find("a"), Medium::kUnknown)).latency_s, 2e-6);
  // Tiers alone describe nothing, and need a file that does.
  const std::vector<Input> alone = {{.file = "slurm", .text = kSlurm},
                                    {.file = "t", .text = "sluice-topology 1\ntier 1 5Gb/s\n"}};
  const auto filled = ReadAll(alone, {}, nullptr);
  ASSERT_TRUE(filled.ok()) << filled.status();
  EXPECT_DOUBLE_EQ(Gbps(*filled, "n2", "a", Medium::kUnknown), 5);
}

TEST(Plain, GeneratesEveryKind) {
  for (const auto& [line, hosts] : std::vector<std::pair<std::string, size_t>>{
           {"fat-tree k=4", 16},
           {"spine-leaf leaves=3 spines=2 hosts=5 ratio=2 slots=4 link=25Gb/s latency=2us", 15},
           {"rails groups=2 hosts=4 rails=8 spines=4", 8},
           {"zones zones=2 spines=2 cores=2 leaves=3 hosts=4 ratio=7", 24},
           {"torus dims=2x3x4 hosts=2 ring=50Gb/s", 48},
           {"hypercube dims=3 hosts=1", 8},
           {"dragonfly routers=4 global=1 hosts=1", 20}}) {
    Report report;
    const auto graph = ReadText(absl::StrCat("sluice-topology 1\ngenerate ", line, "\n"), &report);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(report.hosts, hosts) << line;
    const auto again = ReadText(WritePlain(*graph));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(Dump(*again), Dump(*graph)) << line;
  }
}

TEST(Plain, WhatIsWrittenIsReadAsTheSameGraph) {
  const auto graph = ReadText(kTwoRacks);
  const std::string text = WritePlain(*graph);
  const auto again = ReadText(text);
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
  EXPECT_EQ(Dump(*again), Dump(*graph));
  EXPECT_THAT(text, HasSubstr("host n[01-04] slots=8 note=\"a \\\"big\\\" one\"\n"));
  EXPECT_THAT(text, HasSubstr("link n[01-02] leaf1 25Gb/s 5us\n"));
}

TEST(PlainProperty, AnyGraphIsReadAsItWasWritten) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    Graph graph;
    const auto name = [&](const char* word) {
      const std::string odd[] = {"", " x", ",", "[1]", "\"", "\n", "é", "#"};
      return absl::StrCat(word, random() % 20, random() % 4 == 0 ? odd[random() % 8] : "");
    };
    for (int i = 0; i < 20; ++i) {
      absl::StatusOr<uint32_t> v;
      if (i < 2 || random() % 3 == 0) {
        v = graph.Add(VertexKind::kHost, name("n"));
        if (v.ok()) graph.vertex(*v).slots = random() % 3;
      } else if (random() % 2 == 0) {
        v = graph.Add(VertexKind::kSwitch, name("s"), random() % 5 == 0 ? graph.Hosts()[0] : kNone);
      } else {
        const std::vector<uint32_t> hosts = graph.Hosts();
        const uint32_t host = hosts[random() % hosts.size()];
        const auto kind = static_cast<VertexKind>(2 + random() % 4);
        v = graph.Add(kind, random() % 4 == 0 ? name("odd/") : absl::StrCat(graph.vertex(host).name, "/", name("d")),
                      host);
      }
      if (v.ok() && random() % 4 == 0) graph.vertex(*v).note = name("a note of ");
    }
    for (int i = 0; i < 30; ++i) {
      const uint32_t n = graph.vertices().size();
      const auto link = graph.Connect(random() % n, random() % n, static_cast<Medium>(random() % 7),
                                      random() % 3 == 0   ? 0
                                      : random() % 2 == 0 ? 12.5e9
                                                          : 1e9 / (1 + random() % 1000),
                                      random() % 2 == 0 ? 0 : 1e-6 / (1 + random() % 7), 1 + random() % 2);
      if (link.ok() && random() % 5 == 0) graph.link(*link).source = static_cast<Source>(random() % 3);
    }
    graph.Finish();
    const std::string text = WritePlain(graph);
    const auto again = ReadText(text);
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
    ASSERT_EQ(Dump(*again), Dump(graph)) << text;
  }
}

TEST(Units, GoForthAndBack) {
  EXPECT_EQ(*ParseBandwidth("25Gb/s"), 3.125e9);
  EXPECT_EQ(*ParseBandwidth("12.5GB/s"), 12.5e9);
  EXPECT_EQ(*ParseBandwidth("1e3Mb/s"), 125e6);
  EXPECT_EQ(*ParseLatency("5us"), 5e-6);
  EXPECT_EQ(*ParseLatency("300ns"), 3e-7);
  for (const char* wrong :
       {"", "25", "Gb/s", "25 Gb/s", "25gb/s", "-1Gb/s", "nanGb/s", "infGb/s", "0x1Gb/s", "1e400B/s", "5us"})
    EXPECT_FALSE(ParseBandwidth(wrong).ok()) << wrong;
  EXPECT_EQ(BandwidthText(12.5e9), "100Gb/s");
  EXPECT_EQ(LatencyText(1.5e-6), "1.5us");
  EXPECT_EQ(ShortBandwidth(12.5e9), "100 Gb/s");
  EXPECT_EQ(ShortLatency(5e-6), "5 us");
  std::mt19937_64 random(4);
  for (int i = 0; i < 10000; ++i) {
    const double value = std::ldexp(1 + static_cast<double>(random()) / 1.9e19, static_cast<int>(random() % 80) - 40);
    EXPECT_EQ(*ParseBandwidth(BandwidthText(value)), value);
    EXPECT_EQ(*ParseLatency(LatencyText(value)), value);
  }
}

}  // namespace
}  // namespace sluice::topology
