// What exchanging gradients costs on an ideal network, in closed form: seconds for `bytes` that each of n ranks holds.
//
// Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005): ring,
// recursive doubling, halving-doubling, all-gather. Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth
// broadcast, reduction and scan" (2009): double tree. Jiang et al., "A Unified Architecture for Accelerating Distributed DNN
// Training" (BytePS, OSDI 2020): parameter servers on hosts of their own beside workers. Patarasuk, Yuan, "Bandwidth optimal
// all-reduce algorithms" (2009): the lower bound.
//
// Ranks are on hosts of their own, links are full duplex, and nothing else is on them. 1 rank costs nothing.
#pragma once

#include <cstdint>

namespace sluice::fabric {

struct LinkCost {
  double alpha = 0;   // seconds a message, from end to end
  double beta = 0;    // seconds a byte: 1 / bandwidth
  double gamma = 0;   // seconds a byte that is added to another
};

// All-reduce.
double RingAllReduce(uint32_t n, double bytes, const LinkCost& link);
// n that is no power of two: the ranks beyond it send to others before, and get the sum after.
double RecursiveDoublingAllReduce(uint32_t n, double bytes, const LinkCost& link);
double HalvingDoublingAllReduce(uint32_t n, double bytes, const LinkCost& link);
// Two trees, each with half of the bytes, pipelined. efficiency: of the bandwidth, what pipelining gets.
double DoubleTreeAllReduce(uint32_t n, double bytes, const LinkCost& link, double efficiency);
// Reduce-scatter inside groups of `inner_ranks`, all-reduce by rings across `groups`, all-gather inside.
double TwoLevelAllReduce(uint32_t inner_ranks, uint32_t groups, double bytes, const LinkCost& inner, const LinkCost& outer);
// By adding switches, `depth` links above the ranks.
double InNetworkAllReduce(uint32_t depth, double bytes, const LinkCost& link);

// Half of a ring: each rank ends (begins) with 1/n of the sum (of the bytes).
double RingReduceScatter(uint32_t n, double bytes, const LinkCost& link);
double RingAllGather(uint32_t n, double bytes, const LinkCost& link);
// Each rank has bytes / n for each other one.
double AllToAll(uint32_t n, double bytes, const LinkCost& link);
// From one to all by a binary tree of whole messages.
double TreeBroadcast(uint32_t n, double bytes, const LinkCost& link);

// Parameter servers on `servers` hosts without workers, which share the bytes evenly. Pipelined: replies of some
// partitions go back while others come in.
struct ServerCost {
  uint32_t workers = 1, servers = 1;
  double worker_bytes_per_second = 0, server_bytes_per_second = 0;   // of the links, each way
  double alpha = 0;
};
double ParameterServers(const ServerCost& cost, double bytes, bool pipelined);
// n workers whose hosts carry a server each, and k hosts with a server alone; each server has its best share of the bytes.
// As fast as a ring without such hosts, up to twice as fast with n. k > n is as n.
double ServersBesideWorkers(uint32_t n, uint32_t k, double bytes, double bytes_per_second);
// The best share of a server beside a worker, and of one alone.
struct Shares {
  double beside = 0, alone = 0;
};
Shares BestServerShares(uint32_t n, uint32_t k);
// An aggregator in each of `groups` groups of `inner_workers`, which sends its sum on to the owners on `servers` hosts:
// pipelined. Each link carries what its level needs.
struct TreeCost {
  uint32_t inner_workers = 1, groups = 1, servers = 1;
  double worker_bytes_per_second = 0, aggregator_bytes_per_second = 0, server_bytes_per_second = 0;
  double alpha = 0;
};
double AggregationTree(const TreeCost& cost, double bytes);

// No all-reduce among n ranks is faster.
double AllReduceBound(uint32_t n, double bytes, double bytes_per_second);
// Nor one whose ranks lie on both sides of a cut with so much bandwidth each way.
double CutBound(double bytes, double cut_bytes_per_second);

}  // namespace sluice::fabric
