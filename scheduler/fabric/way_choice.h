// Picks the way of a transfer by the live estimate of links, where switches would hash.
//
// Whoever sends cannot tell switches where to go; it can choose among flows (source ports, queue pairs) that switches hash
// to different ways. So the choice is among the ways of some hashes, and falls on the one whose narrowest arc has the most
// to give: its bandwidth, shared with the transfers on it that were chosen here and are not done.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/fabric/routes.h"

namespace sluice::fabric {

class WayChoice {
 public:
  // candidates: hashes that are looked at. `routes` outlives this.
  explicit WayChoice(const Routes* routes, uint32_t candidates = 8) : routes_(routes), candidates_(candidates), used_(routes->arcs()) {}

  struct Chosen {
    uint64_t hash = 0;
    std::vector<uint32_t> arcs;
    double bytes_per_second = 0;   // that it may expect
  };
  // first_hash: the one that is taken if no other is better. False: there is no way.
  bool Choose(uint32_t from, uint32_t to, uint64_t first_hash, Chosen* chosen);
  void Done(const Chosen& chosen);

 private:
  const Routes* routes_;
  const uint32_t candidates_;
  std::vector<uint32_t> used_;   // of each arc: transfers
  std::vector<uint32_t> way_;    // at hand
};

}  // namespace sluice::fabric
