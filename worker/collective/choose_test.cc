#include "worker/collective/choose.h"

#include <cmath>

#include "gtest/gtest.h"

namespace sluice::collective {
namespace {

Network Flat(uint32_t n, double latency, double rate) {
  return {.layout = {.members = n, .me = 0, .domains = {}}, .tiers = {{latency, rate}}};
}

// hosts of `inside` members behind a network that is `ratio` times slower.
Network Hosts(uint32_t hosts, uint32_t inside, double ratio) {
  Network network = Flat(hosts * inside, 5e-6, 10e9);
  network.layout.domains.emplace_back();
  for (uint32_t m = 0; m < hosts * inside; ++m) network.layout.domains[0].push_back(m / inside);
  network.tiers.push_back({50e-6, 10e9 / ratio});
  return network;
}

TEST(Choose, TheFormulasOfOneTier) {
  const Network network = Flat(8, 1e-3, 1e6);
  const double bytes = 4e6, a = 1e-3, b = 1e-6;
  EXPECT_NEAR(PredictedSeconds(Algorithm::kRing, network, bytes, 1), 14 * a + 2 * 7.0 / 8 * bytes * b, 1e-9);
  EXPECT_NEAR(PredictedSeconds(Algorithm::kHalvingDoubling, network, bytes, 1), 6 * a + 2 * 7.0 / 8 * bytes * b, 1e-9);
  EXPECT_NEAR(PredictedSeconds(Algorithm::kDoubleTree, network, bytes, 1), 6 * a + 2 / 0.8 * bytes * b, 1e-9);
  EXPECT_NEAR(PredictedSeconds(Algorithm::kHierarchical, network, bytes, 1),
              PredictedSeconds(Algorithm::kRing, network, bytes, 1), 1e-9);
  EXPECT_EQ(PredictedSeconds(Algorithm::kRing, Flat(1, 1, 1), bytes, 1), 0);
}

TEST(Choose, TwoLevelsCostWhatTheirFormulaSays) {
  const Network network = Hosts(4, 8, 10);
  const double bytes = 64e6, a1 = 5e-6, a2 = 50e-6, b1 = 1 / 10e9, b2 = 1 / 1e9;
  EXPECT_NEAR(PredictedSeconds(Algorithm::kHierarchical, network, bytes, 1 << 20),
              2 * 7 * a1 + 2 * 7.0 / 8 * bytes * b1 + 2 * 3 * a2 + 2 * 3.0 / 4 * bytes / 8 * b2, 1e-9);
}

TEST(Choose, FewStepsForSmallMessagesHierarchyForLargerOnesRingForHuge) {
  const Network network = Hosts(8, 8, 20);
  EXPECT_EQ(ChooseAllReduce(network, 1024, 1 << 20), Algorithm::kHalvingDoubling);
  EXPECT_EQ(ChooseAllReduce(network, 20e6, 1 << 20), Algorithm::kHierarchical);
  EXPECT_EQ(ChooseAllReduce(network, 1e9, 1 << 20), Algorithm::kRing);   // whose one crossing a host has the whole link
  EXPECT_EQ(ChooseAllReduce(Flat(5, 50e-6, 1e9), 1e9, 1 << 20), Algorithm::kRing);   // no power of two
  EXPECT_EQ(ChooseRooted(Flat(16, 50e-6, 1e9), 64, 1 << 20), Algorithm::kTree);
  EXPECT_EQ(ChooseRooted(Flat(16, 50e-6, 1e9), 1e9, 1 << 20), Algorithm::kChain);
}

TEST(Choose, NumbersThatAPlanLeavesOpenAreAssumed) {
  Network network = Flat(4, 0, 0);
  EXPECT_TRUE(std::isfinite(PredictedSeconds(Algorithm::kRing, network, 1e6, 1)));
  network.tiers.clear();
  EXPECT_GT(PredictedSeconds(Algorithm::kDoubleTree, network, 1e6, 1), 0);
}

}  // namespace
}  // namespace sluice::collective
