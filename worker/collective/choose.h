// Which algorithm a collective takes: the one whose predicted time is least. Pure; all members choose the same.
//
// Costs are alpha-beta formulas, with a step's latency a and the seconds b that a byte takes between two members, both of the
// widest tier that the step crosses (n members, M bytes):
//   ring              2(n-1) a + 2 (n-1)/n M b
//   halving-doubling  each of its 2 log2 n steps with its own tier and size; for other than powers of two 2 (a + M b) more
//   double tree       2 log2 n a + 2 M b / 0.8
//   hierarchical      for each level of g domains' members: 2(g-1) a + 2 (g-1)/g M' b, M' = M / what the narrower ones divide by
// Tier.bytes_per_second is what one member gets when all send across the tier. Where few of a domain's members do (a ring, a
// tree), those get more: as many times as there are members to one that sends, up to what the narrower tier gives them.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/collective/schedule.h"

namespace sluice::collective {

// One level of the network; tier t is between two members that are together in domains of level t, and not in narrower ones.
struct TierCost {
  double latency_s = 0;
  double bytes_per_second = 0;
};

// What is taken where the plan names no tiers, and for numbers that it leaves at 0.
inline constexpr TierCost kDefaultTier{50e-6, 1e9};

struct Network {
  Layout layout;                  // of the group; `me` does not matter
  std::vector<TierCost> tiers;    // one for each level of the layout, and one for the whole group
};

// In seconds. kChain and kTree: of a broadcast or reduce of that many bytes in pieces of `piece_bytes`.
double PredictedSeconds(Algorithm algorithm, const Network& network, double bytes, double piece_bytes);

Algorithm ChooseAllReduce(const Network& network, double bytes, double piece_bytes);
Algorithm ChooseRooted(const Network& network, double bytes, double piece_bytes);   // kChain or kTree

}  // namespace sluice::collective
