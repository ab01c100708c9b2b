#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/topology/formats/sample_texts.h"

namespace sluice::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A node as kubectl prints it, with what matters here and something that does not.
std::string Node(const std::string& name, const std::string& labels, const std::string& more = "") {
  return absl::StrCat(
      "{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"", name, "\", \"labels\": {", labels,
      "}, \"managedFields\": [[[{}]]]}, \"status\": {\"capacity\": {\"cpu\": \"96\"}, \"images\": [{\"names\": []}]}",
      more, "}");
}

std::string List(const std::vector<std::string>& nodes) {
  std::string text = "{\n \"apiVersion\": \"v1\",\n \"kind\": \"List\",\n \"items\": [\n";
  for (size_t i = 0; i < nodes.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : ",\n", nodes[i]);
  return text + "\n]}\n";
}

std::string Aws(const std::string& zone, const std::string& one, const std::string& two, const std::string& three) {
  return absl::StrCat("\"topology.kubernetes.io/zone\": \"", zone, "\", \"topology.k8s.aws/network-node-layer-1\": \"",
                      one, "\", \"topology.k8s.aws/network-node-layer-2\": \"", two,
                      "\", \"topology.k8s.aws/network-node-layer-3\": \"", three, "\"");
}

TEST(Kubernetes, LabelsAreTiersTheWidestFirst) {
  Report report;
  const auto graph =
      ReadText(List({Node("a", Aws("z1", "nn-1", "nn-2", "nn-3")), Node("b", Aws("z1", "nn-1", "nn-2", "nn-3")),
                     Node("c", Aws("z1", "nn-1", "nn-2", "nn-4"))}),
               &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.format, "kubernetes");
  EXPECT_EQ(report.hosts, 3u);
  EXPECT_EQ(report.switches, 5u);
  EXPECT_THAT(Neighbours(*graph, "z1/nn-1/nn-2/nn-3"), UnorderedElementsAre("z1/nn-1/nn-2", "a", "b"));
  EXPECT_THAT(report.warnings, IsEmpty());
}

TEST(Kubernetes, TopographCountsFromTheLeaf) {
  const auto graph = ReadText(
      List({Node("a", "\"fabric.topograph.run/tier-0\": \"leaf1\", \"fabric.topograph.run/tier-1\": \"spine\""),
            Node("b", "\"fabric.topograph.run/tier-0\": \"leaf1\", \"fabric.topograph.run/tier-1\": \"spine\"")}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Neighbours(*graph, "spine/leaf1"), UnorderedElementsAre("spine", "a", "b"));
}

TEST(Kubernetes, TheListOfLabelsIsConfiguration) {
  const std::string text = List({Node("a", "\"example.com/rack\": \"r1\", \"example.com/row\": \"w1\""),
                                 Node("b", "\"example.com/rack\": \"r1\", \"example.com/row\": \"w2\""),
                                 Node("c", "\"example.com/rack\": \"r1\", \"example.com/row\": \"w2\"")});
  Report report;
  const auto graph = ReadText(text, &report, "", "", {.node_labels = {"example.com/row", "example.com/rack"}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Neighbours(*graph, "w1/r1"), UnorderedElementsAre("w1", "a"));  // racks of one name in two rows
  EXPECT_THAT(Neighbours(*graph, "w2/r1"), UnorderedElementsAre("w2", "b", "c"));
  const auto by_default = ReadText(text, &report);
  ASSERT_TRUE(by_default.ok()) << by_default.status();
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("3 nodes (a,b,c) have none of the labels")));
}

TEST(Kubernetes, GpusAreSlotsAndNodesThatAreDownStay) {
  Report report;
  const std::string zone = "\"topology.kubernetes.io/zone\": \"z\", \"cloud.google.com/gce-topology-host\": ";
  const auto graph = ReadText(
      List({absl::StrReplaceAll(Node("n1", zone + "\"h1\""), {{"\"cpu\"", "\"nvidia.com/gpu\": \"8\", \"cpu\""}}),
            absl::StrReplaceAll(
                Node("n2", zone + "\"h2\""),
                {{"\"images\"", "\"conditions\": [{\"type\": \"Ready\", \"status\": \"Unknown\"}], \"images\""}}),
            Node("n3", zone + "\"h3\"", ", \"spec\": {\"unschedulable\": true}")}),
      &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->vertex(graph->Find("n1")).slots, 8u);
  EXPECT_EQ(graph->vertex(graph->Find("n2")).note, "not ready");
  EXPECT_THAT(Neighbours(*graph, "z"), UnorderedElementsAre("n1", "n2", "n3"));
  EXPECT_THAT(report.warnings,
              ElementsAre(HasSubstr("no two nodes share a value of cloud.google.com/gce-topology-host"),
                          HasSubstr("1 nodes (n2) are not ready"), HasSubstr("1 nodes (n3) are unschedulable")));
}

TEST(Kubernetes, RefusesWithFileAndReason) {
  EXPECT_THAT(Refusal("{\n\"apiVersion\": \"v1\", \"kind\": \"List\",\n \"items\": [}\n"), HasSubstr("f:3: no JSON: "));
  EXPECT_THAT(Refusal("{\"apiVersion\": \"v1\", \"kind\": \"PodList\", \"items\": []}"),
              HasSubstr("kind \"PodList\" is no list of nodes"));
  EXPECT_THAT(Refusal(List({})), HasSubstr("the list of nodes is empty"));
  EXPECT_THAT(Refusal(List({Node("a", ""), Node("a", "")})), HasSubstr("items[1] (a) has the name of items[0]"));
  EXPECT_THAT(Refusal(List({Node("", "")})), HasSubstr("metadata.name is no name"));
  EXPECT_THAT(Refusal(List({"{\"kind\": \"Pod\"}"})), HasSubstr("items[0] is of kind \"Pod\""));
  EXPECT_THAT(
      Refusal(List({absl::StrReplaceAll(Node("a", ""), {{"\"cpu\"", "\"nvidia.com/gpu\": \"many\", \"cpu\""}})})),
      HasSubstr("capacity of nvidia.com/gpu is \"many\""));
  EXPECT_THAT(Refusal("{\"apiVersion\": \"v1\", \"kind\": " + std::string(1000, '[') + std::string(1000, ']') + "}"),
              HasSubstr("more than 64 objects"));
}

TEST(Kubernetes, ARefusalIsNotAsLongAsTheText) {
  const std::string refusal = Refusal("{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [\"" + std::string(1 << 20, 'x'));
  EXPECT_THAT(refusal, HasSubstr("no JSON: "));
  EXPECT_LT(refusal.size(), 1000u);
}

}  // namespace
}  // namespace sluice::topology
