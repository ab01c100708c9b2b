#include "worker/collective/choose.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>

namespace sluice::collective {
namespace {

// Pipelines through trees fill and drain, and their members' parts of the work are not quite equal.
constexpr double kTreeEfficiency = 0.8;

TierCost At(const Network& network, size_t tier) {
  TierCost cost = tier < network.tiers.size() ? network.tiers[tier] : kDefaultTier;
  if (!(cost.latency_s > 0)) cost.latency_s = kDefaultTier.latency_s;
  if (!(cost.bytes_per_second > 0)) cost.bytes_per_second = kDefaultTier.bytes_per_second;
  return cost;
}

size_t Widest(const Network& network) { return network.layout.domains.size(); }

// The narrowest tier in which two members meet.
size_t Meet(const Network& network, uint32_t a, uint32_t b) {
  const auto& domains = network.layout.domains;
  for (size_t level = 0; level < domains.size(); ++level)
    if (domains[level][a] == domains[level][b]) return level;
  return domains.size();
}

// Of the largest domain at a level, the members; below level 0: one.
double LargestDomain(const Network& network, size_t level) {
  std::map<uint32_t, size_t> sizes;
  size_t largest = 1;
  for (const uint32_t number : network.layout.domains[level]) largest = std::max(largest, ++sizes[number]);
  return static_cast<double>(largest);
}

// Seconds a byte on a way that crosses each domain's edge once: the slowest tier's.
double ThinSecondsPerByte(const Network& network) {
  double slowest = 0;
  double narrower = std::numeric_limits<double>::infinity();
  for (size_t tier = 0; tier <= Widest(network); ++tier) {
    const double share = tier == 0 ? 1 : LargestDomain(network, tier - 1);
    const double rate = std::min(narrower, At(network, tier).bytes_per_second * share);
    slowest = std::max(slowest, 1 / rate);
    narrower = rate;
  }
  return slowest;
}

double MaxLatency(const Network& network) {
  double latency = 0;
  for (size_t tier = 0; tier <= Widest(network); ++tier) latency = std::max(latency, At(network, tier).latency_s);
  return latency;
}

double HalvingDoubling(const Network& network, double bytes) {
  const uint32_t n = network.layout.members, p = std::bit_floor(n), extra = n - p;
  const auto real = [&](uint32_t v) { return v < extra ? 2 * v : v + extra; };
  double seconds = 0;
  const auto step = [&](size_t tier, double size) {
    const TierCost cost = At(network, tier);
    seconds += cost.latency_s + size / cost.bytes_per_second;
  };
  if (extra > 0) {
    size_t tier = 0;
    for (uint32_t j = 0; j < extra; ++j) tier = std::max(tier, Meet(network, 2 * j, 2 * j + 1));
    step(tier, bytes);
    step(tier, bytes);
  }
  double size = bytes;
  for (uint32_t d = p / 2; d > 0; d /= 2) {
    size /= 2;
    size_t tier = 0;
    for (uint32_t v = 0; v < p; ++v) tier = std::max(tier, Meet(network, real(v), real(v ^ d)));
    step(tier, size);   // there
    step(tier, size);   // and back
  }
  return seconds;
}

double Hierarchical(const Network& network, double bytes) {
  double seconds = 0, share = 1;   // members that a narrower domain stands for, each with its part of the bytes
  double members = network.layout.members;
  for (size_t tier = 0; tier <= Widest(network); ++tier) {
    const bool last = tier == Widest(network);
    double g = members;
    if (!last) {
      g = std::max(1.0, LargestDomain(network, tier) / share);
      members /= g;
    }
    if (g <= 1) continue;
    const TierCost cost = At(network, tier);
    seconds += 2 * (g - 1) * cost.latency_s + 2 * (g - 1) / g * bytes / cost.bytes_per_second;
    bytes /= g;
    share *= g;
  }
  return seconds;
}

}  // namespace

double PredictedSeconds(Algorithm algorithm, const Network& network, double bytes, double piece_bytes) {
  const double n = network.layout.members;
  if (n < 2) return 0;
  const double depth = std::ceil(std::log2(n));
  const double piece = std::min(bytes, std::max(piece_bytes, 1.0));
  switch (algorithm) {
    case Algorithm::kHalvingDoubling: return HalvingDoubling(network, bytes);
    case Algorithm::kDoubleTree:
      return 2 * depth * MaxLatency(network) + 2 / kTreeEfficiency * bytes * ThinSecondsPerByte(network);
    case Algorithm::kHierarchical: return Hierarchical(network, bytes);
    // A pipeline: the whole once, and a piece for each step of its way; in a tree a member sends everything twice.
    case Algorithm::kChain:
      return (n - 1) * MaxLatency(network) + (bytes + (n - 2) * piece) * ThinSecondsPerByte(network);
    case Algorithm::kTree:
      return depth * MaxLatency(network) +
             (std::min(n - 1, 2.0) * bytes + (depth - 1) * 2 * piece) * ThinSecondsPerByte(network);
    default:
      return 2 * (n - 1) * MaxLatency(network) + 2 * (n - 1) / n * bytes * ThinSecondsPerByte(network);
  }
}

namespace {

// The first of equals.
Algorithm Least(std::initializer_list<Algorithm> candidates, const Network& network, double bytes, double piece_bytes) {
  Algorithm best = *candidates.begin();
  double least = std::numeric_limits<double>::infinity();
  for (const Algorithm algorithm : candidates) {
    const double seconds = PredictedSeconds(algorithm, network, bytes, piece_bytes);
    if (seconds < least) {
      least = seconds;
      best = algorithm;
    }
  }
  return best;
}

}  // namespace

Algorithm ChooseAllReduce(const Network& network, double bytes, double piece_bytes) {
  if (network.layout.domains.empty())
    return Least({Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kDoubleTree}, network, bytes, piece_bytes);
  return Least({Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kDoubleTree, Algorithm::kHierarchical}, network,
               bytes, piece_bytes);
}

Algorithm ChooseRooted(const Network& network, double bytes, double piece_bytes) {
  return Least({Algorithm::kTree, Algorithm::kChain}, network, bytes, piece_bytes);
}

}  // namespace sluice::collective
