#include "scheduler/network/estimates.h"

#include <gtest/gtest.h>

#include "scheduler/topology/generate.h"

namespace sluice::network {
namespace {

using topology::Graph;

constexpr double kHostLink = 125e6;

// Two leaves of two hosts each, 4:1: n0 and n1, n2 and n3; 62.5 MB/s between the leaves.
class EstimatesTest : public testing::Test {
 protected:
  EstimatesTest() {
    graph_ = topology::SpineLeaf({.leaves = 2, .spines = 1, .hosts_per_leaf = 2, .ratio = 4,
                                  .host = {.link_bytes_per_second = kHostLink}}).value();
    routes_ = fabric::Routes::Create(&graph_);
    for (uint32_t arc = 0; arc < routes_->arcs(); ++arc) nominal_.push_back({routes_->BytesPerSecond(arc), true});
    for (int i = 0; i < 4; ++i) n_[i] = graph_.Find("n" + std::to_string(i));
  }
  void Take(int from, int to, double goodput, TimeNs at = kSecond) {
    estimates_.Take(n_[from], n_[to], 0, {.goodput = goodput, .rtt_s = 1e-3, .retransmits = 2, .at = at});
  }
  // The arcs from host to host, in order.
  std::vector<uint32_t> Way(int from, int to) {
    std::vector<uint32_t> arcs;
    EXPECT_TRUE(routes_->Way(n_[from], n_[to], 0, &arcs));
    return arcs;
  }
  std::map<uint32_t, ArcEstimate> Arcs(TimeNs now = kSecond) { return estimates_.Arcs(*routes_, nominal_, now); }

  Graph graph_;
  std::unique_ptr<fabric::Routes> routes_;
  std::vector<LinkEstimates::Nominal> nominal_;
  LinkEstimates estimates_;
  uint32_t n_[4];
};

TEST_F(EstimatesTest, AFullLinkExplainsSlowPairs) {
  // Both hosts of the first leaf push to the other one: each gets half of the link between the leaves.
  Take(0, 2, 30e6);
  Take(1, 3, 31e6);
  auto arcs = Arcs();
  const std::vector<uint32_t> way = Way(0, 2);
  ASSERT_EQ(way.size(), 4u);
  for (const uint32_t arc : way) EXPECT_DOUBLE_EQ(arcs.at(arc).bytes_per_second, nominal_[arc].bytes_per_second);
  EXPECT_DOUBLE_EQ(nominal_[way[1]].bytes_per_second, 62.5e6);
  EXPECT_EQ(arcs.at(way[1]).retransmits, 4u);
  EXPECT_DOUBLE_EQ(arcs.at(way[1]).confidence, 1);
  EXPECT_EQ(arcs.count(Way(2, 0)[1]), 0u);   // nothing is known of the way back
}

TEST_F(EstimatesTest, WhatNothingExplainsIsTheLinkThatIsNearestToBeingFull) {
  Take(0, 2, 3e6);
  Take(1, 3, 3e6);
  Take(0, 1, 110e6);   // so it is not host 0's link
  auto arcs = Arcs();
  const std::vector<uint32_t> way = Way(0, 2);
  EXPECT_DOUBLE_EQ(arcs.at(way[0]).bytes_per_second, kHostLink);
  EXPECT_DOUBLE_EQ(arcs.at(way[3]).bytes_per_second, kHostLink);
  // The leaf's way up and the other one's down carry the same and are as narrow: one of them is to blame.
  const double up = arcs.at(way[1]).bytes_per_second, down = arcs.at(way[2]).bytes_per_second;
  EXPECT_DOUBLE_EQ(std::min(up, down), 6e6);
}

TEST_F(EstimatesTest, ASlowHostIsToBlameWhenOthersAreFast) {
  Take(0, 1, 10e6);
  Take(2, 1, 55e6);
  Take(3, 1, 55e6);    // host 1's link is full
  auto arcs = Arcs();
  EXPECT_DOUBLE_EQ(arcs.at(Way(0, 1)[1]).bytes_per_second, kHostLink);
  Take(2, 1, 5e6);     // now it is not
  Take(3, 1, 5e6);
  arcs = Arcs();
  EXPECT_DOUBLE_EQ(arcs.at(Way(0, 1)[1]).bytes_per_second, 20e6);
}

TEST_F(EstimatesTest, FasterThanThoughtIsTakenTooUnlessAFileSaysThatItCannotBe) {
  Take(0, 1, 200e6);
  for (const uint32_t arc : Way(0, 1)) EXPECT_DOUBLE_EQ(Arcs().at(arc).bytes_per_second, 200e6);
  for (LinkEstimates::Nominal& nominal : nominal_) nominal.assumed = false;
  for (const uint32_t arc : Way(0, 1)) EXPECT_DOUBLE_EQ(Arcs().at(arc).bytes_per_second, kHostLink);
}

TEST_F(EstimatesTest, AFullLinkIsNoExcuseForAPairThatIsSlowerThanOthersThere) {
  Take(0, 1, 100e6);   // host 0's link is full
  Take(0, 2, 1e6);
  Take(1, 3, 1e6);
  auto arcs = Arcs();
  const std::vector<uint32_t> way = Way(0, 2);
  EXPECT_DOUBLE_EQ(arcs.at(way[0]).bytes_per_second, kHostLink);
  EXPECT_DOUBLE_EQ(std::min(arcs.at(way[1]).bytes_per_second, arcs.at(way[2]).bytes_per_second), 2e6);
}

TEST_F(EstimatesTest, MembersOfOneHostAddUp) {
  Take(0, 1, 30e6);
  estimates_.Take(n_[0], n_[1], 7, {.goodput = 20e6, .at = kSecond});
  estimates_.Take(n_[0], n_[1], 7, {.goodput = 25e6, .at = kSecond});   // again
  EXPECT_DOUBLE_EQ(Arcs().at(Way(0, 1)[0]).bytes_per_second, 55e6);
}

TEST_F(EstimatesTest, OldMeasurementsFadeAndAreForgotten) {
  Take(0, 1, 10e6, 0);
  const uint32_t arc = Way(0, 1)[0];
  EXPECT_DOUBLE_EQ(Arcs(kFresh).at(arc).bytes_per_second, 10e6);
  const ArcEstimate half = Arcs((kFresh + kForgotten) / 2).at(arc);
  EXPECT_NEAR(half.confidence, 0.5, 1e-9);
  EXPECT_NEAR(half.bytes_per_second, 0.5 * 10e6 + 0.5 * kHostLink, 1);
  EXPECT_TRUE(Arcs(kForgotten).empty());
  estimates_.Forget(kForgotten);
  EXPECT_TRUE(estimates_.pairs().empty());
}

class ProbesTest : public EstimatesTest {
 protected:
  void Probe(int from, int to, double goodput, TimeNs at = kSecond) {
    estimates_.TakeProbe(n_[from], n_[to], {.goodput = goodput, .rtt_s = 2e-3, .at = at});
  }
};

TEST_F(ProbesTest, TheNarrowestLinkOfTheWayGetsWhatWasMeasured) {
  Probe(0, 2, 20e6);
  const auto arcs = Arcs();
  const std::vector<uint32_t> way = Way(0, 2);   // 125, 62.5, 62.5, 125 MB/s are assumed
  ASSERT_EQ(arcs.size(), 4u);
  for (const int i : {0, 3}) EXPECT_DOUBLE_EQ(arcs.at(way[i]).bytes_per_second, kHostLink);
  for (const int i : {1, 2}) EXPECT_DOUBLE_EQ(arcs.at(way[i]).bytes_per_second, 20e6);   // which of the two it cannot tell
  EXPECT_DOUBLE_EQ(arcs.at(way[1]).confidence, 1);
  EXPECT_EQ(arcs.at(way[1]).at, kSecond);
  EXPECT_DOUBLE_EQ(arcs.at(way[1]).rtt_s, 2e-3);
}

TEST_F(ProbesTest, ALinkThatAnotherProbeProvesToBeFasterIsNotToBlame) {
  Probe(0, 2, 20e6);
  Probe(1, 2, 60e6);   // over the same links between the leaves
  auto arcs = Arcs();
  EXPECT_DOUBLE_EQ(arcs.at(Way(0, 2)[0]).bytes_per_second, 20e6);
  EXPECT_DOUBLE_EQ(arcs.at(Way(0, 2)[1]).bytes_per_second, 60e6);
  EXPECT_DOUBLE_EQ(arcs.at(Way(0, 2)[3]).bytes_per_second, kHostLink);
  // What the links between the leaves carried to an older probe says nothing of now.
  Probe(0, 2, 20e6, kSecond + 2 * kFresh);
  arcs = Arcs(kSecond + 2 * kFresh);
  EXPECT_DOUBLE_EQ(arcs.at(Way(0, 2)[1]).bytes_per_second, 20e6);
}

TEST_F(ProbesTest, ProbesDoNotAddUpAndAFileSaysTheMost) {
  Probe(0, 1, 130e6);
  Probe(2, 1, 62e6);
  Probe(3, 1, 62e6);
  EXPECT_DOUBLE_EQ(Arcs().at(Way(0, 1)[1]).bytes_per_second, 130e6);
  EXPECT_DOUBLE_EQ(Arcs().at(Way(2, 1)[1]).bytes_per_second, 62e6);
  for (LinkEstimates::Nominal& nominal : nominal_) nominal.assumed = false;
  EXPECT_DOUBLE_EQ(Arcs().at(Way(0, 1)[1]).bytes_per_second, kHostLink);
}

TEST_F(ProbesTest, WhereSwitchesSpreadTrafficAConnectionSaysNothingOfTheWays) {
  graph_ = topology::SpineLeaf({.leaves = 2, .spines = 2, .hosts_per_leaf = 2, .ratio = 4, .host = {.link_bytes_per_second = kHostLink}}).value();
  routes_ = fabric::Routes::Create(&graph_);
  nominal_.clear();
  for (uint32_t arc = 0; arc < routes_->arcs(); ++arc) nominal_.push_back({routes_->BytesPerSecond(arc), true});
  for (int i = 0; i < 4; ++i) n_[i] = graph_.Find("n" + std::to_string(i));
  Probe(0, 2, 5e6);
  const auto arcs = Arcs();
  EXPECT_EQ(arcs.size(), 6u);
  for (const auto& [arc, estimate] : arcs) EXPECT_DOUBLE_EQ(estimate.bytes_per_second, nominal_[arc].bytes_per_second);
}

TEST_F(ProbesTest, TrainingIsExplainedByWhatProbesFound) {
  Probe(0, 2, 20e6);
  Take(0, 2, 9e6);
  Take(1, 3, 9e6);   // together they fill the link that the probe found to be narrow
  auto arcs = Arcs();
  EXPECT_DOUBLE_EQ(arcs.at(Way(0, 2)[1]).bytes_per_second, 20e6);
  EXPECT_DOUBLE_EQ(arcs.at(Way(0, 2)[0]).bytes_per_second, kHostLink);
  EXPECT_EQ(arcs.at(Way(0, 2)[1]).retransmits, 4u);
  Take(1, 3, 30e6);   // more than the probe found: it is faster than that
  EXPECT_DOUBLE_EQ(Arcs().at(Way(0, 2)[1]).bytes_per_second, 39e6);
}

// A job had ended, a link was throttled: what its workers had measured kept the estimate at seven times what probes found.
TEST_F(ProbesTest, WhatTrainingMeasuredBeforeAProbeCountsNoMore) {
  for (auto& arc : nominal_) arc.assumed = false;
  Take(0, 2, 50e6);
  Probe(0, 2, 2e6, 2 * kSecond);
  const uint32_t core = Way(0, 2)[1];
  EXPECT_DOUBLE_EQ(Arcs(2 * kSecond).at(core).bytes_per_second, 2e6);
  EXPECT_EQ(Arcs(2 * kSecond).at(core).at, 2 * kSecond);
  Take(0, 2, 50e6, 3 * kSecond);   // it carries as much again
  EXPECT_DOUBLE_EQ(Arcs(3 * kSecond).at(core).bytes_per_second, 50e6);
}

TEST_F(ProbesTest, OldProbesFadeAndAreForgotten) {
  Probe(0, 1, 10e6, 0);
  const uint32_t arc = Way(0, 1)[0];
  const ArcEstimate half = Arcs((kFresh + kForgotten) / 2).at(arc);
  EXPECT_NEAR(half.confidence, 0.5, 1e-9);
  EXPECT_NEAR(half.bytes_per_second, 0.5 * 10e6 + 0.5 * kHostLink, 1);
  EXPECT_TRUE(Arcs(kForgotten).empty());
  estimates_.Forget(kForgotten);
  EXPECT_TRUE(estimates_.probes().empty());
  for (const double wrong : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) Probe(0, 1, wrong);
  Probe(0, 0, 1e6);
  EXPECT_TRUE(estimates_.probes().empty());
  for (uint32_t i = 0; i < kMaxPairs + 10; ++i) estimates_.TakeProbe(i, i + 1, {.goodput = 1, .at = static_cast<TimeNs>(i)});
  EXPECT_EQ(estimates_.probes().size(), kMaxPairs);
}

TEST_F(EstimatesTest, NonsenseIsNotTaken) {
  Take(0, 0, 1e6);
  Take(0, 1, 0);
  Take(0, 1, -1);
  Take(0, 1, std::numeric_limits<double>::infinity());
  Take(0, 1, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(estimates_.pairs().empty());
  for (uint32_t i = 0; i < kMaxPairs + 10; ++i)
    estimates_.Take(i, i + 1, 0, {.goodput = 1, .at = static_cast<TimeNs>(i)});
  EXPECT_EQ(estimates_.pairs().size(), kMaxPairs);
  EXPECT_EQ(estimates_.pairs().count({0, 1, 0}), 0u);   // the oldest
}

}  // namespace
}  // namespace sluice::network
