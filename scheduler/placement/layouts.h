// First placements by dividing the job over the tree of domains, from the top down: how many workers go to each domain, then
// which. Where parallel groups exist, blocks of them stay whole.
//
//   1. Ranks are taken together into units of `block` ranks, of which one fits a host.
//   2. From the root down, each domain's units are shared out to the domains in it, by `sizes`; to whole multiples of the outer
//      groups where that fits.
//   3. Which units: the next ones of the order, or by METIS's recursive bisection of the graph of their traffic, with the
//      sizes of 2, which METIS keeps nearly and a pass of ours exactly.
//   4. Ranks whose unit found no host that has room for all of it take what is left.
//
// METIS catches SIGTERM and SIGABRT while it runs.
#pragma once

#include <string>
#include <vector>

#include "scheduler/placement/problem.h"

namespace sluice::placement {

enum class Sizes {
  kPack,     // few domains: the smallest that holds all, else the largest first
  kEven,     // the same domains, each as much as any other
  kNear,     // the smallest that holds all; where none does, all of them by their room
  kSpread,   // all domains, by their room
};

struct Layout {
  uint32_t block = 1;                 // of problem.blocks, or 1
  Sizes sizes = Sizes::kPack;
  std::vector<uint32_t> order;        // of the groups around the block, innermost first; empty: as ranks go
  bool metis = false;                 // instead of an order
  std::string Name() const;
};

// What is worth trying. `few`: for jobs so large that each costs seconds.
std::vector<Layout> LayoutsFor(const Problem& problem, bool few);

// Places the workers (Seat places the others). The problem passed CheckFits. Same layout and seed: same placement.
Placement LayOut(const Problem& problem, const Layout& layout, uint64_t seed);

}  // namespace sluice::placement
