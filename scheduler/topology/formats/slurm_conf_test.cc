#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/topology/formats/sample_texts.h"

namespace sluice::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(SlurmConf, Tree) {
  Report report;
  const auto graph = ReadText(
      "# a comment\r\n"
      "SwitchName=s0 Nodes=n[01-08,12],login1 # another\r\n"
      "  switchname = s1 NODES=gpu[1-2],n[20-21] LinkSpeed=900\n"
      "\n"
      "SwitchName=s2 \\\n"
      "  Switches=s[0-1]\n",
      &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.format, "slurm-conf");
  EXPECT_EQ(report.title, "Slurm topology.conf (tree)");
  EXPECT_EQ(report.hosts, 14u);
  EXPECT_EQ(report.switches, 3u);
  EXPECT_THAT(Neighbours(*graph, "s1"), ElementsAre("gpu1", "gpu2", "n20", "n21", "s2"));
  EXPECT_NE(graph->Find("n08"), kNone);
  EXPECT_EQ(graph->Find("n8"), kNone);
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("LinkSpeed stands in 1 lines and is not used")));
  for (const Link& link : graph->links()) EXPECT_EQ(link.bytes_per_second, 0);
}

TEST(SlurmConf, AByteOrderMarkIsNoPartOfTheText) {
  const auto graph = ReadText("\xEF\xBB\xBF" "SwitchName=s0 Nodes=n[1-2]\r\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Neighbours(*graph, "s0"), ElementsAre("n1", "n2"));
}

TEST(SlurmConf, AForestGetsNoRoot) {
  Report report;
  const auto graph = ReadText("SwitchName=a Nodes=x\nSwitchName=b Nodes=y\n", &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.switches, 2u);
  EXPECT_EQ(report.links, 2u);
  EXPECT_THAT(report.warnings, IsEmpty());
}

TEST(SlurmConf, ANodeBelowTwoSwitchesHasALinkToEach) {
  Report report;
  const auto graph = ReadText("SwitchName=a Nodes=x,y\nSwitchName=b Nodes=y\n", &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Neighbours(*graph, "y"), ElementsAre("a", "b"));
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("f:2: node \"y\" is below switch \"b\" and below \"a\"")));
}

TEST(SlurmConf, BlocksAreJoinedBySizes) {
  const auto graph =
      ReadText("BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockName=b3 Nodes=n[9-12]\nBlockSizes=4,8\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Neighbours(*graph, "b1..b2"), UnorderedElementsAre("b1", "b2"));
  EXPECT_THAT(Neighbours(*graph, "b3..b3"), ElementsAre("b3"));
  EXPECT_THAT(Neighbours(*graph, "n9"), ElementsAre("b3"));
  const auto three = ReadText(
      "BlockName=b1 Nodes=n1\nBlockName=b2 Nodes=n2\nBlockName=b3 Nodes=n3\nBlockName=b4 Nodes=n4\nBlockSizes=1,2,4\n");
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_THAT(Neighbours(*three, "b1..b4"), UnorderedElementsAre("b1..b2", "b3..b4"));
  EXPECT_TRUE(ReadText("BlockName=b1 Nodes=n[1-32]\nBlockSizes=30,120\n").ok());
}

TEST(SlurmConf, ATreeAndBlocksInOneFile) {
  Report report;
  const auto graph = ReadText("SwitchName=s Nodes=n[1-4]\nBlockName=b1 Nodes=n[1-4]\n", &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.switches, 1u);
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("a tree and also blocks")));
}

TEST(SlurmConf, Ring) {
  const auto graph = ReadText("RingName=r Nodes=n[1-4]\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Neighbours(*graph, "r.0"), UnorderedElementsAre("n1", "r.1", "r.3"));
}

TEST(SlurmConf, RefusesWithFileLineAndReason) {
  EXPECT_EQ(
      Refusal("SwitchName=s0 Nodes=a\nSwitchName=s1\n"),
      "f:2: switch \"s1\" has no nodes and no switches, in format slurm-conf; say what is below it, or take it out");
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=a Switches=b\n"), HasSubstr("both nodes and switches"));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=a\nSwitchName=s0 Nodes=b\n"),
              HasSubstr("f:2: switch \"s0\" is in line 1 already"));
  EXPECT_THAT(Refusal("SwitchName=s0 Switches=s9\n"), HasSubstr("\"s9\" below \"s0\" is nowhere described"));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=a\nSwitchName=s1 Switches=s0\nSwitchName=s2 Switches=s0\n"),
              HasSubstr("f:3: switch \"s0\" is below \"s2\" and below \"s1\""));
  EXPECT_THAT(Refusal("SwitchName=s1 Switches=s2\nSwitchName=s2 Switches=s1\n"), HasSubstr("is above itself"));
  EXPECT_THAT(Refusal("SwitchName=s1 Switches=s1\n"), HasSubstr("f:1: switch \"s1\" is above itself"));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=a,a\n"), HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=s0\n"), HasSubstr("\"s0\" is a switch and a host"));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=n[0-999999999]\n"),
              HasSubstr("f:1: the list \"n[0-999999999]\" has more than"));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=n[3-1]\n"), HasSubstr("goes down"));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=\n"), HasSubstr("nodes has no value"));
  EXPECT_THAT(Refusal("SwitchName=s[0-3] Nodes=a\n"), HasSubstr("no name of one switch"));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=a Colour=red\n"), HasSubstr("unknown key colour beside switchname"));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=a nodes=b\n"), HasSubstr("nodes stands twice"));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=a\nwhat is this\n"), HasSubstr("f:2: no KEY=VALUE at \"what is this\""));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=a\nNodeName=a CPUs=4\n"),
              HasSubstr("f:2: a line cannot begin with nodename"));
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=a\\\n"), HasSubstr("is the last one"));
  EXPECT_THAT(Refusal("BlockName=b1\n"), HasSubstr("has no nodes"));
  EXPECT_THAT(Refusal("BlockName=b1 Nodes=a\nBlockName=b2 Nodes=a\n"),
              HasSubstr("\"a\" is in block \"b1\" and in \"b2\""));
  EXPECT_THAT(Refusal("BlockName=b1 Nodes=a\nBlockSizes=30,90\n"), HasSubstr("f:2: block size 90 is not 2, 4, 8"));
  EXPECT_THAT(Refusal("BlockName=b1 Nodes=a\nBlockSizes=30,x\n"), HasSubstr("no list of numbers"));
  EXPECT_THAT(Refusal("BlockName=b1 Nodes=a\nBlockSizes=4\nBlockSizes=4\n"), HasSubstr("is in line 2 already"));
  EXPECT_THAT(Refusal("BlockSizes=4\n"), HasSubstr("no line with SwitchName"));
  EXPECT_THAT(Refusal("RingName=r Nodes=a,b,a\n"), HasSubstr("\"a\" stands in \"r\" and in \"r\""));
}

TEST(Formats, ATextInNoFormatIsRefusedWithWhatItLooksLike) {
  EXPECT_THAT(Refusal(""), HasSubstr("it is empty"));
  EXPECT_THAT(Refusal(absl::string_view("\0\1", 2)), HasSubstr("it is not text"));
  EXPECT_THAT(
      Refusal(
          "<?xml version=\"1.0\"?><!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\"></topology>"),
      HasSubstr("hwloc's XML"));
  EXPECT_THAT(Refusal("<!-- x --><html>"), HasSubstr("XML with the root <html>"));
  EXPECT_THAT(Refusal("<nvidia_smi_log>"), HasSubstr("nvidia-smi topo -m"));
  EXPECT_THAT(Refusal("{\"a\": 1}"), HasSubstr("it is JSON, but no list of Kubernetes nodes"));
  EXPECT_THAT(Refusal("apiVersion: v1\nkind: List\n"), HasSubstr("kubectl get nodes -o json"));
  EXPECT_THAT(Refusal("- a\n- b\n"), HasSubstr("may be YAML"));
  EXPECT_THAT(
      Refusal("hello\n"),
      HasSubstr(
          "f: the text is in no format that is known: its first line is \"hello\". Known are sluice, slurm-conf"));
}

TEST(Formats, HostsStandBeforeFilesAboutTheInsideOfHostsOnly) {
  EXPECT_THAT(Refusal("SwitchName=s0 Nodes=a\n", "n1"), HasSubstr("give it as f, without n1="));
}

TEST(Formats, FileSpecs) {
  const auto spec = [](absl::string_view text) {
    const auto parsed = ParseFileSpec(text);
    return parsed.ok() ? absl::StrCat(parsed->hosts, "|", parsed->file, "|", parsed->choice)
                       : std::string(parsed.status().message());
  };
  EXPECT_EQ(spec("topology.conf"), "|topology.conf|");
  EXPECT_EQ(spec("n[01-32]=a/b.xml"), "n[01-32]|a/b.xml|");
  EXPECT_EQ(spec("topology.yaml#topo2"), "|topology.yaml|topo2");
  EXPECT_EQ(spec("/a=b/c#d/e"), "|/a=b/c#d/e|");
  EXPECT_THAT(spec("=x"), HasSubstr("host is missing"));
  EXPECT_THAT(spec("n1="), HasSubstr("is missing"));
  EXPECT_THAT(SplitFileSpecs("a.conf, n[01-08,12]=b.xml,,c"), ElementsAre("a.conf", "n[01-08,12]=b.xml", "c"));
  EXPECT_THAT(SplitFileSpecs(""), IsEmpty());
}

}  // namespace
}  // namespace sluice::topology
