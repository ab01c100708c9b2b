#include "scheduler/network/probe_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/philox.h"
#include "scheduler/topology/generate.h"

namespace sluice::network {
namespace {

using topology::Graph;

// All pairs, all arcs: what could be covered.
struct Reference {
  Reference(const fabric::Routes& routes, const std::vector<uint32_t>& hosts) : routes_(routes), hosts_(hosts) {}
  std::set<uint32_t> ArcsOf(uint32_t a, uint32_t b) const {
    std::set<uint32_t> arcs;
    routes_.Spread(hosts_[a], hosts_[b], [&](uint32_t arc, double share) {
      if (share > 0) arcs.insert(arc);
    });
    return arcs;
  }
  std::set<uint32_t> Reachable() const {
    std::set<uint32_t> all;
    for (uint32_t a = 0; a < hosts_.size(); ++a)
      for (uint32_t b = 0; b < hosts_.size(); ++b)
        if (a != b) all.merge(ArcsOf(a, b));
    return all;
  }
  const fabric::Routes& routes_;
  const std::vector<uint32_t>& hosts_;
};

void Check(const fabric::Routes& routes, const std::vector<uint32_t>& hosts, const std::vector<bool>& wanted, size_t most) {
  const ProbeChoice choice = ChooseProbes(routes, hosts, wanted, most);
  const Reference reference(routes, hosts);
  std::set<uint32_t> covered;
  std::set<std::pair<uint32_t, uint32_t>> seen;
  for (const std::vector<ProbePair>& round : choice.rounds) {
    EXPECT_FALSE(round.empty());
    std::set<uint32_t> busy, senders, receivers;   // links; hosts
    for (const ProbePair& pair : round) {
      ASSERT_LT(std::max(pair.from, pair.to), hosts.size());
      ASSERT_NE(pair.from, pair.to);
      EXPECT_TRUE(seen.insert({pair.from, pair.to}).second) << "twice";
      EXPECT_TRUE(senders.insert(pair.from).second);
      EXPECT_TRUE(receivers.insert(pair.to).second);
      std::set<uint32_t> links;
      for (const uint32_t arc : reference.ArcsOf(pair.from, pair.to)) {
        links.insert(arc / 2);
        covered.insert(arc);
      }
      for (const uint32_t link : links) EXPECT_TRUE(busy.insert(link).second) << "two pairs of a round share link " << link;
    }
  }
  EXPECT_EQ(choice.pairs, seen.size());
  EXPECT_LE(choice.pairs, most);
  const std::set<uint32_t> reachable = reference.Reachable();
  size_t missed = 0, in_question = 0;
  std::vector<uint32_t> unreachable;
  for (uint32_t arc = 0; arc < wanted.size(); ++arc) {
    if (!wanted[arc]) continue;
    ++in_question;
    if (reachable.count(arc) == 0) unreachable.push_back(arc);
    else missed += covered.count(arc) == 0;
  }
  EXPECT_EQ(choice.unreachable, unreachable);
  EXPECT_EQ(choice.left_out, missed);
  if (choice.pairs < most) {
    EXPECT_EQ(missed, 0u);
  }
  EXPECT_LE(choice.pairs, in_question) << "each pair must bring something new";
}

TEST(ProbeChoiceTest, EveryLinkThatTwoHostsCanReachIsCoveredAndNoTwoPairsOfARoundShareOne) {
  PhiloxRandom random(7);
  for (int run = 0; run < 60; ++run) {
    SCOPED_TRACE(run);
    absl::StatusOr<Graph> graph = absl::InternalError("");
    switch (run % 6) {
      case 0: graph = topology::SpineLeaf({.leaves = 1 + random.Below(5), .spines = 1 + random.Below(3), .hosts_per_leaf = 1 + random.Below(5)}); break;
      case 1: graph = topology::FatTree({.k = 4}); break;
      case 2: graph = topology::Rails({.groups = 2, .hosts_per_group = 2, .rails = 2, .spines = 2}); break;
      case 3: graph = topology::Zones({}); break;
      case 4: graph = topology::Torus({.dims = {3, 4}}); break;
      default: graph = topology::Dragonfly({.routers = 3, .global = 1, .hosts_per_router = 2}); break;
    }
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto routes = fabric::Routes::Create(&*graph);
    std::vector<uint32_t> hosts;
    const bool all_hosts = random.Chance(0.3), all_wanted = random.Chance(0.4);
    for (const uint32_t host : graph->Hosts())
      if (all_hosts || random.Chance(0.5)) hosts.push_back(host);
    std::vector<bool> wanted(routes->arcs());
    for (size_t arc = 0; arc < wanted.size(); ++arc) wanted[arc] = all_wanted || random.Chance(0.4);
    Check(*routes, hosts, wanted, random.Chance(0.2) ? random.Below(5) : 10000);
  }
}

TEST(ProbeChoiceTest, ManyHostsAreNotPairedOneByOne) {
  const Graph graph = topology::SpineLeaf({.leaves = 10, .spines = 2, .hosts_per_leaf = 20}).value();
  const auto routes = fabric::Routes::Create(&graph);
  const std::vector<uint32_t> hosts = graph.Hosts();
  ASSERT_GT(hosts.size(), kAllPairsHosts);
  const std::vector<bool> all(routes->arcs(), true);
  Check(*routes, hosts, all, 10000);
  Check(*routes, hosts, all, 50);
  // Hosts of which only the search after the greedy part finds a pair: in no order.
  std::vector<bool> one(routes->arcs());
  one[one.size() - 1] = true;
  Check(*routes, hosts, one, 10000);
}

// Two racks of two: each link by the shortest way that has it, so what is slow above hides nothing below.
TEST(ProbeChoiceTest, NeighboursMeasureTheLinksOfTheirRack) {
  const Graph graph = topology::SpineLeaf({.leaves = 2, .spines = 1, .hosts_per_leaf = 2}).value();
  const auto routes = fabric::Routes::Create(&graph);
  const ProbeChoice choice = ChooseProbes(*routes, graph.Hosts(), std::vector<bool>(routes->arcs(), true), 100);
  EXPECT_EQ(choice.pairs, 6u);
  ASSERT_EQ(choice.rounds.size(), 4u);
  EXPECT_EQ(choice.rounds[0], (std::vector<ProbePair>{{0, 1}, {2, 3}}));
  EXPECT_EQ(choice.rounds[1], (std::vector<ProbePair>{{1, 0}, {3, 2}}));
  EXPECT_EQ(choice.rounds[2], (std::vector<ProbePair>{{0, 2}}));
  EXPECT_EQ(choice.rounds[3], (std::vector<ProbePair>{{2, 0}}));
}

TEST(ProbeChoiceTest, NobodyOrOneHostReachesNothing) {
  const Graph graph = topology::SpineLeaf({.leaves = 2, .spines = 1, .hosts_per_leaf = 1}).value();
  const auto routes = fabric::Routes::Create(&graph);
  const std::vector<bool> all(routes->arcs(), true);
  for (const std::vector<uint32_t>& hosts : {std::vector<uint32_t>{}, {graph.Hosts()[0]}}) {
    const ProbeChoice choice = ChooseProbes(*routes, hosts, all, 100);
    EXPECT_TRUE(choice.rounds.empty());
    EXPECT_EQ(choice.unreachable.size(), routes->arcs());
  }
  EXPECT_TRUE(ChooseProbes(*routes, graph.Hosts(), {}, 100).rounds.empty());   // nothing is in question
}

}  // namespace
}  // namespace sluice::network
