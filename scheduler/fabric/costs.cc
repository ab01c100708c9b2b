#include "scheduler/fabric/costs.h"

#include <algorithm>
#include <bit>

namespace sluice::fabric {
namespace {

double Log2(uint32_t n) { return static_cast<double>(std::bit_width(n) - 1); }   // rounded down
double Part(uint32_t n) { return n == 0 ? 0 : (n - 1.0) / n; }
// Of the ranks beyond a power of two: once before, once after.
double Fold(uint32_t n, double bytes, const LinkCost& link) {
  return std::has_single_bit(n) ? 0 : 2 * (link.alpha + bytes * link.beta) + bytes * link.gamma;
}

}  // namespace

double RingReduceScatter(uint32_t n, double bytes, const LinkCost& link) {
  if (n < 2) return 0;
  return (n - 1) * link.alpha + Part(n) * bytes * (link.beta + link.gamma);
}

double RingAllGather(uint32_t n, double bytes, const LinkCost& link) {
  if (n < 2) return 0;
  return (n - 1) * link.alpha + Part(n) * bytes * link.beta;
}

double RingAllReduce(uint32_t n, double bytes, const LinkCost& link) {
  return RingReduceScatter(n, bytes, link) + RingAllGather(n, bytes, link);
}

double RecursiveDoublingAllReduce(uint32_t n, double bytes, const LinkCost& link) {
  if (n < 2) return 0;
  return Log2(n) * (link.alpha + bytes * (link.beta + link.gamma)) + Fold(n, bytes, link);
}

double HalvingDoublingAllReduce(uint32_t n, double bytes, const LinkCost& link) {
  if (n < 2) return 0;
  const double part = Part(std::bit_floor(n));
  return 2 * Log2(n) * link.alpha + part * bytes * (2 * link.beta + link.gamma) + Fold(n, bytes, link);
}

double DoubleTreeAllReduce(uint32_t n, double bytes, const LinkCost& link, double efficiency) {
  if (n < 2) return 0;
  return 2 * (std::bit_width(n - 1)) * link.alpha + 2 * bytes * link.beta / efficiency;
}

double TwoLevelAllReduce(uint32_t inner_ranks, uint32_t groups, double bytes, const LinkCost& inner, const LinkCost& outer) {
  return RingReduceScatter(inner_ranks, bytes, inner) + RingAllReduce(groups, bytes / std::max(1u, inner_ranks), outer) +
         RingAllGather(inner_ranks, bytes, inner);
}

double InNetworkAllReduce(uint32_t depth, double bytes, const LinkCost& link) {
  return 2 * depth * link.alpha + bytes * link.beta;
}

double AllToAll(uint32_t n, double bytes, const LinkCost& link) { return RingAllGather(n, bytes, link); }

double TreeBroadcast(uint32_t n, double bytes, const LinkCost& link) {
  return n < 2 ? 0 : std::bit_width(n - 1) * (link.alpha + bytes * link.beta);
}

double ParameterServers(const ServerCost& cost, double bytes, bool pipelined) {
  const double busiest = std::max(bytes / cost.worker_bytes_per_second,
                                  cost.workers * bytes / (cost.servers * cost.server_bytes_per_second));
  return 2 * cost.alpha + (pipelined ? 1 : 2) * busiest;
}

Shares BestServerShares(uint32_t n, uint32_t k) {
  k = std::min(k, n);
  const double all = double{1} * n * n + double{1} * k * n - 2.0 * k;
  if (n < 2 || all <= 0) return {.beside = n > 0 ? 1.0 / n : 0, .alone = 0};
  return {.beside = (n - k) / all, .alone = 2 * (n - 1.0) / all};
}

double ServersBesideWorkers(uint32_t n, uint32_t k, double bytes, double bytes_per_second) {
  if (n < 2) return 0;
  k = std::min(k, n);
  return 2.0 * n * (n - 1) * bytes / ((double{1} * n * n + double{1} * k * n - 2.0 * k) * bytes_per_second);
}

double AggregationTree(const TreeCost& cost, double bytes) {
  // An aggregator gets the group's pushes and the owners' replies, and sends its sum and the replies on.
  return 4 * cost.alpha + std::max({bytes / cost.worker_bytes_per_second,
                                    (cost.inner_workers + 1.0) * bytes / cost.aggregator_bytes_per_second,
                                    cost.groups * bytes / (cost.servers * cost.server_bytes_per_second)});
}

double AllReduceBound(uint32_t n, double bytes, double bytes_per_second) { return 2 * Part(n) * bytes / bytes_per_second; }

double CutBound(double bytes, double cut_bytes_per_second) { return bytes / cut_bytes_per_second; }

}  // namespace sluice::fabric
