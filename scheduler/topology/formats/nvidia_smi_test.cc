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

constexpr char kFour[] =
    "\t\033[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\n"
    "GPU0\t X \tNV12\tNV12\tNV12\tPXB\tSYS\t0-51,104-155\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tNV12\tNV12\tPIX\tSYS\t0-51,104-155\t0\t\tN/A\n"
    "GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPXB\t52-103,156-207\t1\t\tN/A\n"
    "GPU3\tNV12\tNV12\tNV12\t X \tSYS\tPHB\t52-103,156-207\t1\t\tN/A\n"
    "NIC0\tPXB\tPIX\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tPXB\tPHB\tSYS\t X \n"
    "\n"
    "Legend:\n\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
    "\n"
    "NIC Legend:\n\n"
    "  NIC0: mlx5_0\n"
    "  NIC1: mlx5_1\n";

TEST(NvidiaSmi, ReadsTheMatrix) {
  Report report;
  const auto graph = ReadText(kFour, &report, "n1");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.format, "nvidia-smi");
  EXPECT_EQ(report.gpus, 4u);
  EXPECT_EQ(report.nics, 2u);
  EXPECT_THAT(report.warnings, IsEmpty());
  EXPECT_THAT(Neighbours(*graph, "n1/mlx5_0"), ElementsAre("n1/pix-gpu1"));
  EXPECT_THAT(Neighbours(*graph, "n1/pix-gpu1"), UnorderedElementsAre("n1/pxb-gpu0", "n1/gpu1", "n1/mlx5_0"));
  EXPECT_THAT(Neighbours(*graph, "n1/pxb-gpu0"), UnorderedElementsAre("n1/cpu0", "n1/pix-gpu1", "n1/gpu0"));
  EXPECT_THAT(Neighbours(*graph, "n1/gpu3"), UnorderedElementsAre("n1/cpu1", "n1/nvswitch"));
  EXPECT_THAT(Neighbours(*graph, "n1/cpu0"), UnorderedElementsAre("n1", "n1/cpu1", "n1/pxb-gpu0"));
  EXPECT_THAT(Neighbours(*graph, "n1/nvswitch"), UnorderedElementsAre("n1/gpu0", "n1/gpu1", "n1/gpu2", "n1/gpu3"));
}

TEST(NvidiaSmi, FewNvlinksAreDirect) {
  const auto graph = ReadText(absl::StrReplaceAll(kFour, {{"NV12", "NV4"}}), nullptr, "n1");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->Find("n1/nvswitch"), kNone);
  EXPECT_EQ(graph->link(graph->FindLink(graph->Find("n1/gpu0"), graph->Find("n1/gpu3"), Medium::kNvlink)).cables, 4u);
}

TEST(NvidiaSmi, OldOutputNamesNicsInTheColumns) {
  const auto graph = ReadText("\tGPU0\tmlx5_0\tCPU Affinity\nGPU0\t X \tPHB\t0-11\nmlx5_0\tPHB\t X \n", nullptr, "old");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Neighbours(*graph, "old/mlx5_0"), ElementsAre("old/cpu-of-gpu0"));
}

TEST(NvidiaSmi, SidesThatDifferAreWarnedOf) {
  Report report;
  ASSERT_TRUE(ReadText("\tGPU0\tNIC0\nGPU0\t X \tPHB\nNIC0\tPIX\t X \n", &report, "n").ok());
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("1 pairs of devices say different things")));
}

TEST(NvidiaSmi, RefusesWithFileLineAndReason) {
  const auto changed = [](absl::string_view from, absl::string_view to) {
    return Refusal(absl::StrReplaceAll(kFour, {{from, to}}), "n1");
  };
  EXPECT_THAT(Refusal(kFour), HasSubstr("not of which"));
  EXPECT_THAT(changed("PHB\tSYS\t X ", "PHB\tSYS\tFOO"),
              HasSubstr("f:7: \"FOO\" between NIC1 and column 6 is nothing known"));
  EXPECT_THAT(changed("NIC1\tSYS", "NIC2\tSYS"), HasSubstr("f:7: row \"NIC2\" has no column"));
  EXPECT_THAT(changed("NIC1\tSYS\tSYS\tPXB\tPHB\tSYS\t X ", "NIC1\tSYS"), HasSubstr("has 1 of 6 entries"));
  EXPECT_THAT(changed("NIC1\tSYS\tSYS\tPXB\tPHB\tSYS\t X \n", ""),
              HasSubstr("the legend names \"NIC1\", which has no row"));
  EXPECT_THAT(Refusal("\tGPU0\tGPU1\nGPU0\t X \tNV1\n", "n1"), HasSubstr("f:1: 2 devices and 1 rows"));
  EXPECT_THAT(changed("GPU3\tNIC0\tNIC1", "GPU3\tNIC0\tNIC0"), HasSubstr("two columns are called NIC0"));
  EXPECT_THAT(changed("NIC1: mlx5_1", "NIC7: mlx5_1"), HasSubstr("f:17: the legend names \"NIC7\""));
  EXPECT_THAT(changed("NIC1: mlx5_1", "what"), HasSubstr("no NICn: DEVICE"));
  EXPECT_THAT(changed("NIC1: mlx5_1", "NIC1: mlx5_0"), HasSubstr("two devices are called \"mlx5_0\""));
  EXPECT_THAT(changed("NV12", "NV0"), HasSubstr("\"NV0\""));
}

}  // namespace
}  // namespace sluice::topology
