#include "ctl/topology.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "scheduler/topology/formats/write.h"

namespace sluice::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string File(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

constexpr char kSlurm[] = "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[3-4]\nSwitchName=top Switches=s[1-2]\n";
constexpr char kHost[] =
    "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"1\" class=\"0x030200\"><gpu dev=\"0\" sm=\"80\"/></pci>"
    "<pci busid=\"2\" class=\"0x020000\"><nic><net name=\"mlx5_0\"/></nic></pci></cpu></system>";

TEST(Topology, CheckCountsAndWarns) {
  const std::string conf = File("check.conf", std::string(kSlurm) + "SwitchName=lone Nodes=n9 LinkSpeed=1\n");
  const auto loaded = LoadTopologyFiles({conf}, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::string text = RenderCheck(*loaded, 1.4);
  EXPECT_THAT(
      text,
      StartsWith(conf + ": Slurm topology.conf (tree) [slurm-conf]: 5 hosts, 4 switches, 0 GPUs, 0 NICs, 7 links\n"));
  EXPECT_THAT(text, HasSubstr("warning: " + conf + ": LinkSpeed"));
  EXPECT_THAT(text, HasSubstr("together: 5 hosts, 7 links, of which 0 have a speed; read in 1 ms\n"));
  EXPECT_THAT(text, HasSubstr("2 parts that no file joins, of 4, 1 hosts"));
}

TEST(Topology, ShowIsATreeWithSpeedsAndTheirSource) {
  const std::string tiers = File("tiers", "sluice-topology 1\ntier 1 25Gb/s 5us\n");
  const auto loaded = LoadTopologyFiles({File("show.conf", kSlurm), "n[1-2]=" + File("host.xml", kHost), tiers}, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::string text = RenderTopology(*loaded, {});
  EXPECT_THAT(text, StartsWith("top\n  s1  "));
  EXPECT_THAT(text, HasSubstr("(assumed)\n    n[1-2]  25 Gb/s, 5 us (file)  1 slot\n      gpu0  mlx5_0; cpu0 pcie 192 "
                              "Gb/s, 500 ns (assumed)\n"));
  EXPECT_THAT(text, HasSubstr("    n[3-4]  25 Gb/s, 5 us (file)  1 slot\n"));
  const nlohmann::json json = nlohmann::json::parse(TopologyJson(*loaded, true));
  EXPECT_EQ(json["files"].size(), 3u);
  EXPECT_EQ(json["files"][1]["format"], "nccl-xml");
  EXPECT_EQ(json["vertices"].size(), loaded->graph.vertices().size());
  EXPECT_EQ(json["links"].size(), loaded->graph.links().size());
  EXPECT_FALSE(nlohmann::json::parse(TopologyJson(*loaded, false)).contains("links"));
}

TEST(Topology, SwitchesWithSeveralAboveNameTheOthers) {
  const auto loaded =
      LoadTopologyFiles({File("clos", "sluice-topology 1\ngenerate spine-leaf leaves=2 spines=2 hosts=2\n")}, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(RenderTopology(*loaded, {}), HasSubstr("; also "));
}

TEST(Topology, WhatIsImportedIsReadAgain) {
  const auto first = LoadTopologyFiles({File("a.conf", kSlurm), "n1=" + File("a.xml", kHost)}, {});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto again = LoadTopologyFiles({File("imported", topology::WritePlain(first->graph))}, {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(topology::WritePlain(again->graph), topology::WritePlain(first->graph));
}

TEST(Topology, FilesComeFromTheConfigurationToo) {
  proto::TopologyConfig config;
  EXPECT_THAT(LoadTopologyFiles({}, config).status().ToString(), HasSubstr("no topology file"));
  config.set_files(File("c.conf", kSlurm) + ",n[1,3]=" + File("c.xml", kHost));
  const auto loaded = LoadTopologyFiles({}, config);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->reports.size(), 2u);
  EXPECT_THAT(LoadTopologyFiles({"/nowhere/at/all"}, config).status().ToString(), HasSubstr("/nowhere/at/all"));
  EXPECT_THAT(LoadTopologyFiles({File("bad", "SwitchName=a Nodes=b\nSwitchName=c\n")}, config).status().ToString(),
              HasSubstr("bad:2: switch \"c\" has no nodes"));
}

}  // namespace
}  // namespace sluice::ctl
