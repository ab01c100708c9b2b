#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/topology/formats/sample_texts.h"
#include "scheduler/topology/formats/write.h"

namespace sluice::topology {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr char kHost[] = R"(<?xml version="1.0"?>
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64">
    <pci busid="0000:07:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:0A:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:bb:00.0" count="4" tclass="0x030200"/>
          <nvlink target="0000:c0:00.0" count="6" tclass="0x068000"/>
          <nvlink target="0000:c1:00.0" count="2" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:0c:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic>
      </pci>
      <pci busid="0000:0d:00.0" class="0x010802" link_speed="8 GT/s" link_width="4"/>
    </pci>
  </cpu>
  <cpu numaid="1">
    <pci busid="0000:bb:00.0" class="0x030200" link_speed="" link_width="0">
      <gpu dev="1" sm="80"><nvlink target="0000:0a:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
    <nic><net name="eth0" speed="25000" port="1"/><net name="eth0" speed="25000" port="2"/></nic>
  </cpu>
</system>
)";

TEST(NcclXml, ReadsTheInsideOfAHost) {
  Report report;
  const auto graph = ReadText(kHost, &report, "n1");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.format, "nccl-xml");
  EXPECT_EQ(report.gpus, 2u);
  EXPECT_EQ(report.nics, 3u);
  EXPECT_THAT(report.warnings, IsEmpty());
  EXPECT_THAT(Neighbours(*graph, "n1/gpu0"), UnorderedElementsAre("n1/pci-0000:07:00.0", "n1/gpu1", "n1/nvswitch"));
  EXPECT_THAT(Neighbours(*graph, "n1/pci-0000:07:00.0"), UnorderedElementsAre("n1/cpu0", "n1/mlx5_0", "n1/gpu0"));
  EXPECT_THAT(Neighbours(*graph, "n1/cpu1"), UnorderedElementsAre("n1", "n1/cpu0", "n1/gpu1", "n1/eth0", "n1/eth0:2"));
  EXPECT_NEAR(Gbps(*graph, "n1/gpu0", "n1/pci-0000:07:00.0", Medium::kPcie), 252, 0.1);
  EXPECT_EQ(Gbps(*graph, "n1/gpu1", "n1/cpu1", Medium::kPcie), 0);  // not said
  const Link& nvlink = graph->link(graph->FindLink(graph->Find("n1/gpu0"), graph->Find("n1/gpu1"), Medium::kNvlink));
  EXPECT_EQ(nvlink.cables, 4u);  // listed from both sides
  EXPECT_EQ(nvlink.bytes_per_second, 80e9);
  EXPECT_EQ(graph->link(graph->FindLink(graph->Find("n1/gpu0"), graph->Find("n1/nvswitch"), Medium::kNvlink)).cables,
            8u);
  const auto again = ReadText(WritePlain(*graph));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Dump(*again), Dump(*graph));
}

TEST(NcclXml, WhatIsNoSpeedAndNoVersionIsSaid) {
  Report report;
  ASSERT_TRUE(ReadText(absl::StrReplaceAll(kHost, {{"\"1\">\n  <cpu", "\"9\">\n  <cpu"}, {"8 GT/s\" link_width=\"4", "fast\" link_width=\"-3"}}),
                       &report, "n1")
                  .ok());
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("version \"9\" is not known"),
                                           HasSubstr("1 PCI links have a link_speed or link_width that is none (\"fast x-3\")")));
}

TEST(NcclXml, OneFileForHostsThatAreAlike) {
  const std::vector<Input> inputs = {{.file = "slurm", .text = "SwitchName=s Nodes=n[1-3]\n"},
                                     {.file = "x", .text = kHost, .host = "n[1-3]"}};
  const auto graph = ReadAll(inputs, {}, nullptr);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->Hosts().size(), 3u);
  EXPECT_THAT(Neighbours(*graph, "n3"), UnorderedElementsAre("s", "n3/cpu0", "n3/cpu1"));
}

TEST(NcclXml, OfRccl) {
  Report report;
  const auto graph = ReadText(R"(<system version="2"><cpu numaid="0">
<pci busid="0000:11:00.0" class="0x120000" link_speed="32.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="94" gcn="gfx942" arch="38911" rank="0" gdr="1"><xgmi target="0000:2f:00.0" count="1" tclass="0x120000"/></gpu></pci>
<pci busid="0000:2f:00.0" class="0x120000" link_speed="32.0 GT/s PCIe" link_width="16">
<gpu dev="1" sm="94" gcn="gfx942"><xgmi target="0000:11:00.0" count="1" tclass="0x120000"/></gpu></pci></cpu></system>)",
                              &report, "amd");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(Gbps(*graph, "amd/gpu0", "amd/gpu1", Medium::kXgmi), 48 * 8);
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("it has no NIC")));
}

TEST(NcclXml, OfACloudWithoutGpuAndNetAndWithVirtualPci) {
  Report report;
  const auto graph = ReadText(R"(<system version="1"><cpu numaid="0">
<pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
<pci busid="0002:00:00.0" class="0x030200" link_speed="2.5 GT/s PCIe" link_width="1"/>
<pci busid="0001:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
<pci busid="0101:00:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/></pci></cpu></system>)",
                              &report, "vm");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->vertex(graph->Find("vm/gpu0")).note, "0001:00:00.0");
  EXPECT_EQ(graph->vertex(graph->Find("vm/gpu1")).note, "0002:00:00.0");
  EXPECT_EQ(Gbps(*graph, "vm/gpu1", "vm/pci-ffff:ff:01.0", Medium::kPcie), 0);
  EXPECT_NE(graph->Find("vm/nic-0101:00:00.0"), kNone);
  EXPECT_THAT(report.warnings,
              UnorderedElementsAre(HasSubstr("2 GPUs have no <gpu dev>"), HasSubstr("1 PCI links say less than 1 GB/s"),
                                   HasSubstr("1 NICs have no <net>")));
}

TEST(NcclXml, AContainerThatSeesSomeGpus) {
  Report report;
  const auto graph =
      ReadText(absl::StrReplaceAll(kHost, {{"0000:bb:00.0\" count", "0000:cc:00.0\" count"}}), &report, "n1");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(report.warnings, Contains(HasSubstr("f:7: <nvlink> leads to \"0000:cc:00.0\", which is no GPU here")));
}

TEST(NcclXml, RefusesWithFileLineAndReason) {
  const auto changed = [](absl::string_view from, absl::string_view to) {
    return Refusal(absl::StrReplaceAll(kHost, {{from, to}}), "n1");
  };
  EXPECT_EQ(Refusal(kHost),
            "f: it says what is inside one host, but not of which, in format nccl-xml; give it as HOST=f, or "
            "n[01-32]=f for hosts that are alike");
  EXPECT_THAT(Refusal(kHost, "n[1-"), HasSubstr("before '=' stands a host"));
  EXPECT_THAT(changed("</system>", ""), HasSubstr("no XML: "));
  EXPECT_THAT(changed("</gpu>", "</gpx>"), HasSubstr("no XML: "));
  EXPECT_THAT(changed("numaid=\"1\"", "numaid=\"0\""), HasSubstr("f:18: two <cpu> have the numaid 0"));
  EXPECT_THAT(changed(" numaid=\"1\"", ""), HasSubstr("<cpu> has no numaid"));
  EXPECT_THAT(changed("0000:0d:00.0", "0000:0c:00.0"), HasSubstr("f:15: two <pci> have the busid 0000:0c:00.0"));
  EXPECT_THAT(changed("busid=\"0000:0c:00.0\"", ""), HasSubstr("<pci> has no busid"));
  EXPECT_THAT(changed("count=\"6\"", "count=\"-6\""), HasSubstr("f:8: <nvlink> without a count"));
  EXPECT_THAT(changed("dev=\"1\"", "dev=\"0\""), HasSubstr("dev 0 is too large, or of two"));
  EXPECT_THAT(changed("port=\"2\"", "port=\"1\""), HasSubstr("two <net> are called n1/eth0"));
  EXPECT_THAT(changed("name=\"mlx5_0\"", ""), HasSubstr("<net> has no name"));
  EXPECT_THAT(changed("<net name=\"mlx5_0\"", "<bet name=\"mlx5_0\""), HasSubstr("unknown element <bet> in <nic>"));
  EXPECT_THAT(changed("<nic><net name=\"eth0\"", "<foo/><nic><net name=\"eth0\""), HasSubstr("unknown element <foo>"));
  EXPECT_THAT(changed("0000:bb:00.0\" count=\"4\" tclass=\"0x03", "0000:0a:00.0\" count=\"4\" tclass=\"0x03"),
              HasSubstr("linked with itself"));
  std::string deep = "<system version=\"1\"><cpu numaid=\"0\">";
  for (int i = 0; i < 100; ++i) absl::StrAppend(&deep, "<pci busid=\"", i, "\" class=\"0x060400\">");
  for (int i = 0; i < 100; ++i) absl::StrAppend(&deep, "</pci>");
  EXPECT_THAT(Refusal(absl::StrCat(deep, "</cpu></system>"), "n1"), HasSubstr("more than 32 <pci> inside each other"));
}

}  // namespace
}  // namespace sluice::topology
