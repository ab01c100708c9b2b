#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/topology/formats/sample_texts.h"

namespace sluice::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr char kSeveral[] = R"(---
# three of them
- topology: racks
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: s[1-2]
      - {switch: s1, nodes: "n[01-02]"}
      - switch: s2
        nodes: n[03-04],login1
- topology: blocks
  cluster_default: False
  block:
    block_sizes: [2, 4]
    blocks:
      - block: b1
        nodes: n[01-02]
      - block: b2
        nodes: n[03-04]
- topology: none
  flat: true
)";

TEST(SlurmYaml, TheDefaultOfSeveralIsRead) {
  Report report;
  const auto graph = ReadText(kSeveral, &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.format, "slurm-yaml");
  EXPECT_EQ(report.title, "Slurm topology.yaml (tree)");
  EXPECT_EQ(report.hosts, 5u);
  EXPECT_THAT(Neighbours(*graph, "top"), UnorderedElementsAre("s1", "s2"));
  EXPECT_THAT(report.warnings,
              ElementsAre(HasSubstr("racks (tree), blocks (block), none (flat) racks (tree) is read")));
}

TEST(SlurmYaml, AnotherIsReadByName) {
  Report report;
  const auto graph = ReadText(kSeveral, &report, "", "blocks");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.title, "Slurm topology.yaml (block)");
  EXPECT_THAT(Neighbours(*graph, "b1..b2"), UnorderedElementsAre("b1", "b2"));
  EXPECT_THAT(Refusal(kSeveral, "", "none"), HasSubstr("\"none\" is flat: it names no node"));
  EXPECT_THAT(Refusal(kSeveral, "", "nowhere"), HasSubstr("no topology \"nowhere\""));
}

TEST(SlurmYaml, RingsAndTori) {
  const auto ring = ReadText(
      "- topology: a\n  ring:\n    rings:\n    - {ring: r, nodes: 'n[1-3]'}\n    - {ring: q, nodes: 'm[1-2]'}\n");
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_THAT(Neighbours(*ring, "r.1"), UnorderedElementsAre("n2", "r.0", "r.2"));
  EXPECT_THAT(Neighbours(*ring, "q.0"), UnorderedElementsAre("m1", "q.1"));
  const auto torus = ReadText(
      "- topology: a\n  torus3d:\n    toruses:\n    - name: t\n      dims: {x: 3, y: 2, z: 1}\n      nodes: n[0-5]\n"
      "      placements: [{dims: {x: 1, y: 1, z: 1}}]\n");
  ASSERT_TRUE(torus.ok()) << torus.status();
  EXPECT_THAT(Neighbours(*torus, "t.1.0.0"), UnorderedElementsAre("n1", "t.0.0.0", "t.2.0.0", "t.1.1.0"));
  EXPECT_THAT(Neighbours(*torus, "n4"), ElementsAre("t.1.1.0"));  // x is counted first
  const auto regions = ReadText(
      "- topology: a\n  torus3d:\n    toruses:\n    - name: t\n      dims: {x: 2, y: 2, z: 2}\n      regions:\n"
      "      - {anchor: {x: 0, y: 0, z: 0}, dims: {x: 2, y: 1, z: 1}, nodes: 'a[0-1]'}\n"
      "      - {anchor: {x: 0, y: 1, z: 1}, dims: {x: 1, y: 1, z: 1}, nodes: b}\n");
  ASSERT_TRUE(regions.ok()) << regions.status();
  EXPECT_THAT(Neighbours(*regions, "b"), ElementsAre("t.0.1.1"));
  EXPECT_THAT(Neighbours(*regions, "t.1.1.1"), UnorderedElementsAre("t.0.1.1", "t.1.0.1", "t.1.1.0"));
}

TEST(SlurmYaml, RefusesWithFileLineAndKey) {
  EXPECT_THAT(Refusal("- topology: a\n  tree: {switches: [{switch: s, nodes: x}]}\n  tree: {}\n"),
              HasSubstr("f:3: key \"tree\" stands twice in a topology, in format slurm-yaml; keep one of them"));
  EXPECT_THAT(Refusal("- topology: a\n  tree:\n    switches:\n      - switch: s\n        nodes: x\n        nodes: y\n"),
              HasSubstr("f:6: key \"nodes\" stands twice in a switch"));
  EXPECT_THAT(Refusal("- topology: a\n  tree:\n   - x\n  bad indent: [\n"), HasSubstr("no YAML: "));
  EXPECT_THAT(Refusal("topology: a\ntree: {}\n"), HasSubstr("f:1: it is no list of topologies"));
  EXPECT_THAT(Refusal("- topology: a\n  flat: true\n---\n- topology: b\n"), HasSubstr("more than one YAML document"));
  EXPECT_THAT(Refusal("- topology: a\n"), HasSubstr("has none of tree, block"));
  EXPECT_THAT(Refusal("- topology: a\n  colour: red\n  flat: true\n"),
              HasSubstr("f:2: unknown key \"colour\" in a topology"));
  EXPECT_THAT(Refusal("- topology: a\n  flat: true\n  tree: {}\n"), HasSubstr("tree of topology \"a\" is empty"));
  EXPECT_THAT(Refusal("- topology: a\n  flat: true\n  tree: {switches: [{switch: s, nodes: x}]}\n"),
              HasSubstr("is tree and flat"));
  EXPECT_THAT(Refusal("- topology: a\n  flat: true\n- topology: a\n  flat: true\n"),
              HasSubstr("f:3: topology \"a\" is in line 1 already"));
  EXPECT_THAT(Refusal("- topology: a\n  cluster_default: maybe\n  flat: true\n"), HasSubstr("neither true nor false"));
  EXPECT_THAT(Refusal("- topology: a\n  tree: {switches: 7}\n"), HasSubstr("f:2: the value of switches is no list"));
  EXPECT_THAT(Refusal("- topology: a\n  tree: {switches: [{switch: 's[1-2]', nodes: x}]}\n"),
              HasSubstr("no name of one"));
  EXPECT_THAT(Refusal("- topology: a\n  tree: {switches: [{switch: s, nodes: [x]}]}\n"),
              HasSubstr("the value of nodes is no word"));
  EXPECT_THAT(Refusal("- topology: a\n  tree: {switches: [{switch: s}]}\n"), HasSubstr("no nodes and no switches"));
  EXPECT_THAT(Refusal("- topology: a\n  block: {block_sizes: [x], blocks: []}\n"),
              HasSubstr("no list of at most 16 numbers"));
  const auto torus = [](const std::string& body) {
    return Refusal("- topology: a\n  torus3d:\n    toruses:\n    - {name: t, " + body + "}\n");
  };
  EXPECT_THAT(torus("dims: {x: 2, y: 2, z: 2}, nodes: 'n[0-2]'"), HasSubstr("3 nodes for 2 x 2 x 2 places"));
  EXPECT_THAT(torus("dims: {x: 2, y: 2}, nodes: 'n[0-2]'"), HasSubstr("x, y and z above 0"));
  EXPECT_THAT(torus("dims: {x: 65535, y: 65535, z: 65535}, nodes: n"), HasSubstr("places"));
  EXPECT_THAT(torus("dims: {x: 2, y: 1, z: 1}"), HasSubstr("either nodes or regions"));
  EXPECT_THAT(torus("dims: {x: 2, y: 1, z: 1}, regions: [{anchor: {x: 2}, dims: {x: 1, y: 1, z: 1}, nodes: a}]"),
              HasSubstr("reaches out of it"));
  EXPECT_THAT(torus("dims: {x: 2, y: 1, z: 1}, regions: [{dims: {x: 1, y: 1, z: 1}, nodes: a}, {dims: {x: 1, y: 1, z: "
                    "1}, nodes: b}]"),
              HasSubstr("two regions hold place 0, 0, 0"));
  EXPECT_THAT(Refusal("- topology: a\n  flat: " + std::string(5000, '[')), HasSubstr("no YAML"));
}

TEST(SlurmYaml, ATextOnWhichTheParserDoesNotMoveOnIsRefused) {
  EXPECT_THAT(Refusal(",/---\n- stopology: racks\n  topology: {}\n"), HasSubstr("YAML"));
}

}  // namespace
}  // namespace sluice::topology
