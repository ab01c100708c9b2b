// Real files, where they lie beside the checkout (../shared/samples).
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/topology/formats/sample_texts.h"
#include "scheduler/topology/formats/write.h"

namespace sluice::topology {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// "" if it is not there.
std::string Sample(const std::string& name) {
  // Bazel shows sources as links into the checkout.
  std::error_code error;
  const std::filesystem::path here = std::filesystem::canonical("scheduler/topology/formats/format.h", error);
  if (error) return "";
  const std::filesystem::path root = here.parent_path().parent_path().parent_path().parent_path();
  std::ifstream file(root.parent_path() / "shared/samples" / name, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Samples, SlurmTree) {
  const std::string text = Sample("slurm-tree.topology.conf");
  if (text.empty()) GTEST_SKIP() << "no ../shared/samples beside the checkout";
  Report report;
  const auto graph = ReadText(text, &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.hosts, 10000u);
  EXPECT_EQ(report.switches, 529u);
  EXPECT_EQ(report.links, 10528u);  // a tree: one less than vertices
  const auto again = ReadText(WritePlain(*graph));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Dump(*again), Dump(*graph));
}

TEST(Samples, Ibnetdiscover) {
  const std::string text = Sample("ibnetdiscover.out");
  if (text.empty()) GTEST_SKIP() << "no ../shared/samples beside the checkout";
  Report report;
  const auto graph = ReadText(text, &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(report.switches, 40u);
  EXPECT_EQ(report.nics, 582u - 40u);  // all adapters but those of SHARP
  EXPECT_THAT(report.warnings, Contains(HasSubstr("40 aggregation nodes")));
  EXPECT_NE(graph->Find("a08-p1-dgx-04-c01/mlx5_5"), kNone);
  EXPECT_DOUBLE_EQ(Gbps(*graph, "A09-P1-IBLEAF-04-04", "A10-P1-IBSPINE-02", Medium::kInfiniband), 800);
  size_t cables = 0;
  for (const Link& link : graph->links()) cables += link.medium == Medium::kInfiniband ? link.cables : 0;
  EXPECT_EQ(cables, 2228u / 2 - 40);
  const auto again = ReadText(WritePlain(*graph));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Dump(*again), Dump(*graph));
}

}  // namespace
}  // namespace sluice::topology
