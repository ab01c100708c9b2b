#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/topology/formats/sample_texts.h"

namespace sluice::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(Lldp, InterfacesHangOnTheSwitchesThatTheyHear) {
  Report report;
  const auto graph = ReadText(R"({"lldp": {"interface": [
 {"eth0": {"via": "LLDP", "chassis": {"leaf1": {"id": {"type": "mac", "value": "00:11"}, "capability": [{"type": "Bridge", "enabled": true}]}}, "port": {"descr": "swp1"}}},
 {"eth1": {"chassis": {"id": {"type": "mac", "value": "00:22"}}}},
 {"eth2": {"chassis": {"other": {"id": {"value": "00:33"}, "capability": {"type": "Bridge", "enabled": false}}}}}
]}})",
                              &report, "n1");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.format, "lldp");
  EXPECT_THAT(Neighbours(*graph, "n1/eth0"), UnorderedElementsAre("n1", "leaf1"));
  EXPECT_THAT(Neighbours(*graph, "n1/eth1"), UnorderedElementsAre("n1", "00:22"));
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("\"other\", is no switch")));
  EXPECT_TRUE(ReadText(R"({"lldp": {"interface": {"eth0": {"chassis": {"leaf1": {}}}}}})", nullptr, "n1").ok());
}

TEST(Lldp, RefusesWithFileAndReason) {
  EXPECT_THAT(Refusal("{\"lldp\": {}}", "n1"), HasSubstr("no list of interfaces"));
  EXPECT_THAT(Refusal("{\"lldp\": {\"interface\": []}}", "n1"), HasSubstr("no interface has a switch"));
  EXPECT_THAT(Refusal("{\"lldp\": {\"interface\": {\"eth0\": {}}}}", "n1"), HasSubstr("\"eth0\" has no chassis"));
  EXPECT_THAT(Refusal("{\"lldp\": [", "n1"), HasSubstr("no JSON"));
  EXPECT_THAT(Refusal("{\"lldp\": {}}"), HasSubstr("not of which"));
}

}  // namespace
}  // namespace sluice::topology
