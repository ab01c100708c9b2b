// The formulas against the simulation of the very messages.
#include "scheduler/fabric/costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "scheduler/fabric/simulation.h"

namespace sluice::fabric {
namespace {

constexpr LinkCost kLink = {.alpha = 1e-3, .beta = 1e-9, .gamma = 2e-10};
constexpr double kBytes = 64e6;

// n hosts on one switch that is never full; `count` of them may share a link (a host with several ranks).
class Star {
 public:
  explicit Star(uint32_t n, double bytes_per_second = 1 / kLink.beta) : sim_(std::vector<double>(2 * n, bytes_per_second)) {}
  uint32_t Send(uint32_t from, uint32_t to, double bytes, std::vector<uint32_t> after) {
    const Simulation::Use way[] = {{2 * from, 1}, {2 * to + 1, 1}};
    return sim_.Transfer(bytes, way, kLink.alpha, after);
  }
  uint32_t SendAndAdd(uint32_t from, uint32_t to, double bytes, std::vector<uint32_t> after) {
    return sim_.Compute(bytes * kLink.gamma, {{Send(from, to, bytes, after)}});
  }
  double Seconds() const { return sim_.Run().end; }

 private:
  Simulation sim_;
};

TEST(CostsTest, Ring) {
  for (const uint32_t n : {2, 3, 8}) {
    Star star(n);
    std::vector<std::vector<uint32_t>> last(n);
    for (uint32_t step = 0; step < 2 * (n - 1); ++step) {
      std::vector<std::vector<uint32_t>> next(n);
      for (uint32_t i = 0; i < n; ++i)
        next[(i + 1) % n] = {step < n - 1 ? star.SendAndAdd(i, (i + 1) % n, kBytes / n, last[i]) : star.Send(i, (i + 1) % n, kBytes / n, last[i])};
      last = next;
    }
    EXPECT_NEAR(RingAllReduce(n, kBytes, kLink), star.Seconds(), 1e-6) << n;
  }
}

// All ranks in step: in round r each exchanges bytes[r] with the rank whose number differs in bit bits[r], after its last.
double Butterfly(uint32_t n, const std::vector<uint32_t>& bits, const std::vector<double>& bytes, size_t adding) {
  Star star(n);
  std::vector<std::vector<uint32_t>> last(n);
  for (size_t r = 0; r < bits.size(); ++r) {
    std::vector<std::vector<uint32_t>> next(n);
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t peer = i ^ (1u << bits[r]);
      next[peer].push_back(r < adding ? star.SendAndAdd(i, peer, bytes[r], last[i]) : star.Send(i, peer, bytes[r], last[i]));
    }
    last = next;
  }
  return star.Seconds();
}

TEST(CostsTest, RecursiveDoublingAndHalvingDoubling) {
  EXPECT_NEAR(RecursiveDoublingAllReduce(8, kBytes, kLink), Butterfly(8, {0, 1, 2}, {kBytes, kBytes, kBytes}, 3), 1e-6);
  const double h = kBytes / 2;
  EXPECT_NEAR(HalvingDoublingAllReduce(8, kBytes, kLink), Butterfly(8, {2, 1, 0, 0, 1, 2}, {h, h / 2, h / 4, h / 4, h / 2, h}, 3), 1e-6);
  EXPECT_GT(HalvingDoublingAllReduce(9, kBytes, kLink), HalvingDoublingAllReduce(8, kBytes, kLink) + 2 * kBytes * kLink.beta);
}

TEST(CostsTest, DoubleTree) {
  // Ranks in order are the nodes of a binary search tree, in which each has two children at most; the second tree is the first
  // one, moved by one rank, so that inner nodes of one are leaves of the other. Chunks go up and down in turn.
  constexpr uint32_t kRanks = 8;
  constexpr int kChunks = 32;
  Star star(kRanks);
  for (uint32_t tree = 0; tree < 2; ++tree) {
    std::vector<std::vector<uint32_t>> children(kRanks);
    const auto build = [&](auto&& self, uint32_t from, uint32_t end) -> uint32_t {   // root of ranks [from, end)
      const uint32_t root = from + std::bit_floor(end - from) - 1;
      if (root > from) children[root].push_back(self(self, from, root));
      if (root + 1 < end) children[root].push_back(self(self, root + 1, end));
      return root;
    };
    const uint32_t root = build(build, 0, kRanks);
    const auto rank = [&](uint32_t node) { return (node + tree) % kRanks; };
    std::vector<std::vector<uint32_t>> up(kRanks), down(kRanks);   // last message on the link to the parent, each way
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const double bytes = kBytes / 2 / kChunks;
      const auto reduce = [&](auto&& self, uint32_t node, uint32_t parent) -> uint32_t {
        std::vector<uint32_t> after;
        for (const uint32_t child : children[node]) after.push_back(self(self, child, node));
        if (!up[node].empty()) after.push_back(Simulation::Sent(up[node].back()));
        const uint32_t sent = star.Send(rank(node), rank(parent), bytes, after);
        up[node] = {sent};
        return sent;
      };
      std::vector<uint32_t> sum;
      for (const uint32_t child : children[root]) sum.push_back(reduce(reduce, child, root));
      const auto broadcast = [&](auto&& self, uint32_t node, std::vector<uint32_t> have) -> void {
        for (const uint32_t child : children[node]) {
          std::vector<uint32_t> after = have;
          if (!down[child].empty()) after.push_back(Simulation::Sent(down[child].back()));
          const uint32_t sent = star.Send(rank(node), rank(child), bytes, after);
          down[child] = {sent};
          self(self, child, {sent});
        }
      };
      broadcast(broadcast, root, sum);
    }
  }
  LinkCost light = kLink;
  EXPECT_NEAR(DoubleTreeAllReduce(kRanks, kBytes, light, 0.9) / star.Seconds(), 1, 0.25);
}

TEST(CostsTest, TwoLevels) {
  // 4 hosts of 2 ranks: a link inside for each rank, a link outside for each host.
  constexpr uint32_t kInner = 2, kHosts = 4;
  constexpr double kFast = 10e9, kSlow = 1e9;
  std::vector<double> capacity(2 * kInner * kHosts, kFast);   // up and down of each rank, inside
  capacity.insert(capacity.end(), 2 * kHosts, kSlow);
  Simulation sim(capacity);
  const auto arc = [&](uint32_t rank, bool down) { return 2 * rank + (down ? 1 : 0); };
  std::vector<std::vector<uint32_t>> last(kInner * kHosts);
  const auto round = [&](uint32_t stride, double bytes, double alpha) {
    std::vector<std::vector<uint32_t>> next(last.size());
    for (uint32_t r = 0; r < last.size(); ++r) {
      const uint32_t host = r / kInner, local = r % kInner;
      const uint32_t to = stride == 1 ? host * kInner + (local + 1) % kInner : (host + 1) % kHosts * kInner + local;
      std::vector<Simulation::Use> way = {{arc(r, false), 1}, {arc(to, true), 1}};
      if (stride != 1) way = {{2 * kInner * kHosts + 2 * host, 1}, {2 * kInner * kHosts + 2 * (to / kInner) + 1, 1}};
      next[to].push_back(sim.Transfer(bytes, way, alpha, last[r]));
    }
    last = next;
  };
  for (uint32_t i = 0; i < kInner - 1; ++i) round(1, kBytes / kInner, 1e-5);
  for (uint32_t i = 0; i < 2 * (kHosts - 1); ++i) round(kInner, kBytes / kInner / kHosts, 1e-3);
  for (uint32_t i = 0; i < kInner - 1; ++i) round(1, kBytes / kInner, 1e-5);
  // The ranks of a host share its link: each has a part of the bandwidth.
  EXPECT_NEAR(TwoLevelAllReduce(kInner, kHosts, kBytes, {.alpha = 1e-5, .beta = 1 / kFast}, {.alpha = 1e-3, .beta = kInner / kSlow}),
              sim.Run().end, 1e-6);
}

TEST(CostsTest, ParameterServersPipelinedOrNot) {
  constexpr uint32_t kWorkers = 4, kServers = 2;
  constexpr int kParts = 64;
  for (const bool pipelined : {false, true}) {
    Star star(kWorkers + kServers);
    for (uint32_t s = 0; s < kServers; ++s) {
      std::vector<std::vector<uint32_t>> pushed(kWorkers), pulled(kWorkers);
      const int parts = pipelined ? kParts : 1;
      for (int p = 0; p < parts; ++p) {
        std::vector<uint32_t> pushes;
        const auto behind = [](const std::vector<uint32_t>& last) {
          return last.empty() ? std::vector<uint32_t>() : std::vector<uint32_t>{Simulation::Sent(last.back())};
        };
        for (uint32_t w = 0; w < kWorkers; ++w) {
          pushes.push_back(star.Send(w, kWorkers + s, kBytes / kServers / parts, behind(pushed[w])));
          pushed[w] = {pushes.back()};
        }
        for (uint32_t w = 0; w < kWorkers; ++w) {
          std::vector<uint32_t> after = pushes;
          for (const uint32_t b : behind(pulled[w])) after.push_back(b);
          pulled[w] = {star.Send(kWorkers + s, w, kBytes / kServers / parts, after)};
        }
      }
    }
    const double formula = ParameterServers({.workers = kWorkers, .servers = kServers, .worker_bytes_per_second = 1e9,
                                             .server_bytes_per_second = 1e9, .alpha = kLink.alpha}, kBytes, pipelined);
    EXPECT_NEAR(formula / star.Seconds(), 1, pipelined ? 0.02 : 1e-6);
  }
}

TEST(CostsTest, ServersBesideWorkersLoadEveryLinkAlike) {
  constexpr double kB = 1e9;
  for (const uint32_t n : {2, 4, 9})
    for (uint32_t k = 0; k <= n; ++k) {
      const Shares shares = BestServerShares(n, k);
      const double time = ServersBesideWorkers(n, k, kBytes, kB);
      EXPECT_NEAR(n * shares.beside + k * shares.alone, 1, 1e-12);
      // A worker's host sends what is not its own server's, and its server's replies to the others.
      EXPECT_NEAR((1 - shares.beside) + (n - 1) * shares.beside, time * kB / kBytes, 1e-9);
      if (k > 0) {
        EXPECT_NEAR(n * shares.alone, time * kB / kBytes, 1e-9);
      }
    }
  EXPECT_NEAR(ServersBesideWorkers(8, 0, kBytes, kB), AllReduceBound(8, kBytes, kB), 1e-9);
  EXPECT_NEAR(ServersBesideWorkers(8, 8, kBytes, kB), kBytes / kB, 1e-9);
  EXPECT_EQ(ServersBesideWorkers(8, 20, kBytes, kB), ServersBesideWorkers(8, 8, kBytes, kB));
}

TEST(CostsTest, NothingIsBelowTheBounds) {
  for (uint32_t n = 1; n <= 33; ++n) {
    const LinkCost free = {.beta = 1e-9};
    const double bound = AllReduceBound(n, kBytes, 1e9);
    for (const double cost : {RingAllReduce(n, kBytes, free), RecursiveDoublingAllReduce(n, kBytes, free),
                              HalvingDoublingAllReduce(n, kBytes, free), DoubleTreeAllReduce(n, kBytes, free, 1)})
      EXPECT_GE(cost, bound * (1 - 1e-12)) << n;
  }
  EXPECT_EQ(RingAllReduce(1, kBytes, kLink), 0);
  EXPECT_DOUBLE_EQ(InNetworkAllReduce(2, kBytes, {.alpha = 1e-3, .beta = 1e-9}), 4e-3 + 0.064);
  EXPECT_DOUBLE_EQ(CutBound(10, 2), 5);
  EXPECT_DOUBLE_EQ(TreeBroadcast(5, 1e9, {.alpha = 1, .beta = 1e-9}), 6);
  EXPECT_DOUBLE_EQ(AllToAll(4, 4e9, {.beta = 1e-9}), 3);
}

TEST(CostsTest, AnAggregationTreeSendsOneSumAcross) {
  // 2 racks of 4 workers, 1 server: the way between racks is 5 times as slow as links.
  const TreeCost tree = {.inner_workers = 4, .groups = 2, .servers = 1, .worker_bytes_per_second = 5, .aggregator_bytes_per_second = 5,
                         .server_bytes_per_second = 1};
  EXPECT_DOUBLE_EQ(AggregationTree(tree, 10), 20);
  const ServerCost flat = {.workers = 8, .servers = 1, .worker_bytes_per_second = 5, .server_bytes_per_second = 1};
  EXPECT_DOUBLE_EQ(ParameterServers(flat, 10, true), 80);
}

}  // namespace
}  // namespace sluice::fabric
