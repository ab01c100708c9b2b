// The ways between two hosts one by one, for people: which switches and network cards, how much of the bytes, what is narrowest.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/fabric/routes.h"
#include "scheduler/topology/graph.h"

namespace sluice::fabric {

inline constexpr uint64_t kMaxWays = 8;   // of a pair

struct HostWay {
  // Between the hosts: switches and network cards in order. Of ways that are not told apart the first of those that could be at
  // this place.
  struct Stop {
    uint32_t vertex = topology::kNone;
    uint32_t of = 1;                  // so many could be
  };
  std::vector<Stop> via;
  double share = 0;                   // of the bytes: even by cable at each turn, as switches hash
  uint32_t narrowest = topology::kNone;   // arc; of equal ones the first
};

// How many ways there are, at most 2^32; 0: none. narrowest: the arc with the least bandwidth of all of them.
uint64_t CountWays(const topology::Graph& graph, const Routes& routes, uint32_t from, uint32_t to, uint32_t* narrowest);

// Those with the largest share first, at most kMaxWays. Of more each card of the sender, or switch that it is linked to, has one,
// which stands for all ways from there on; of more than kMaxWays of these one stands for all.
std::vector<HostWay> WaysBetween(const topology::Graph& graph, const Routes& routes, uint32_t from, uint32_t to);

}  // namespace sluice::fabric
