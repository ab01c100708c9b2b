#include "scheduler/fabric/way_choice.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "scheduler/topology/generate.h"

namespace sluice::fabric {
namespace {

class WayChoiceTest : public ::testing::Test {
 protected:
  uint32_t Arc(const std::string& a, const std::string& b) const {
    const uint32_t link = graph.FindLink(graph.Find(a), graph.Find(b), topology::Medium::kEthernet);
    return Routes::ArcOf(link, graph.link(link).a == graph.Find(a));
  }
  const topology::Graph graph = topology::SpineLeaf({.leaves = 2, .spines = 4, .hosts_per_leaf = 4}).value();
  const std::unique_ptr<Routes> routes = Routes::Create(&graph);
};

TEST_F(WayChoiceTest, GoesRoundWhatIsSlow) {
  routes->SetBytesPerSecond(Arc("leaf0", "spine1"), 1e6);
  routes->SetBytesPerSecond(Arc("spine3", "leaf1"), 1e6);
  WayChoice choice(routes.get(), 32);
  WayChoice::Chosen chosen;
  for (uint64_t hash = 0; hash < 200; ++hash) {
    ASSERT_TRUE(choice.Choose(graph.Find("n0"), graph.Find("n4"), 1000 * hash, &chosen));
    for (const uint32_t arc : chosen.arcs) EXPECT_GT(routes->BytesPerSecond(arc), 1e6);
    choice.Done(chosen);
  }
}

TEST_F(WayChoiceTest, TransfersOfOneHostTakeDifferentSpines) {
  WayChoice choice(routes.get(), 64);
  std::set<uint32_t> ups;
  std::vector<WayChoice::Chosen> all(4);
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(choice.Choose(graph.Find("n" + std::to_string(i)), graph.Find("n" + std::to_string(4 + i)), 7, &all[i]));
    EXPECT_DOUBLE_EQ(all[i].bytes_per_second, 12.5e9);
    ups.insert(all[i].arcs[1]);
  }
  EXPECT_EQ(ups.size(), 4u);
  // A fifth shares; when one is done, its way is the best again.
  WayChoice::Chosen fifth;
  ASSERT_TRUE(choice.Choose(graph.Find("n0"), graph.Find("n4"), 7, &fifth));
  EXPECT_DOUBLE_EQ(fifth.bytes_per_second, 6.25e9);
  choice.Done(fifth);
  choice.Done(all[0]);
  ASSERT_TRUE(choice.Choose(graph.Find("n0"), graph.Find("n4"), 99, &fifth));
  EXPECT_EQ(fifth.arcs, all[0].arcs);
}

TEST_F(WayChoiceTest, WithoutAWayThereIsNoChoice) {
  WayChoice choice(routes.get());
  WayChoice::Chosen chosen;
  EXPECT_FALSE(choice.Choose(graph.Find("n0"), graph.Find("leaf0"), 1, &chosen));
  EXPECT_TRUE(choice.Choose(graph.Find("n0"), graph.Find("n0"), 1, &chosen));
  EXPECT_TRUE(chosen.arcs.empty());
}

}  // namespace
}  // namespace sluice::fabric
