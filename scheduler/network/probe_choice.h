// Which pairs of hosts should send to each other so that every link in question is on the way of one of them at least, and which
// of these may do so at the same time. Pure.
//
// Pairs are picked one after the other: the one most of whose way is in question and on no picked pair's way yet, of several the
// one with the shortest way. So the links inside a rack are measured by neighbours, before pairs of two racks measure what is
// above: a slow link between racks then hides nothing of the fast ones below it.
//
// "On the way" is as Routes::Spread says. Where switches spread traffic over several ways, a connection takes only one of them;
// the others count as covered all the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/fabric/routes.h"

namespace sluice::network {

// Up to so many hosts all pairs are looked at. Of more hosts those near each other in the order given and some that are far
// apart; then, for links that none of these crosses, all pairs until kMostLooks ways were looked at.
inline constexpr size_t kAllPairsHosts = 128;
inline constexpr size_t kMostLooks = 1 << 21;

struct ProbePair {
  uint32_t from = 0, to = 0;     // indices into `hosts`
  bool operator==(const ProbePair&) const = default;
};

struct ProbeChoice {
  // In each round every host sends to one other at most, and receives from one, and no two pairs share a link, not even in opposite
  // directions: acknowledgements of one would wait among the other's bytes.
  std::vector<std::vector<ProbePair>> rounds;
  size_t pairs = 0;
  std::vector<uint32_t> unreachable;   // wanted arcs that are on the way of no two hosts
  size_t left_out = 0;                 // wanted arcs that are on the way of some, beyond most_pairs or kMostLooks
};

// hosts: distinct vertices, each a host. wanted: arcs in question, by arc.
ProbeChoice ChooseProbes(const fabric::Routes& routes, std::span<const uint32_t> hosts, const std::vector<bool>& wanted,
                         size_t most_pairs);

}  // namespace sluice::network
