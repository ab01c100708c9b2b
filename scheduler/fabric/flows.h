// Max-min fair rates of flows that share arcs, by progressive filling: all flows grow alike until an arc is full; its flows
// stay as they are, the others grow on (Bertsekas, Gallager, "Data Networks", 6.5.2). Then no flow can get more without
// one that has no more than it getting less.
//
// A flow takes of each of its arcs its rate times a share: 1 on a single way, parts of 1 where it is spread. A bundle of
// equal flows is one, with a count. Arcs are indices into a list of capacities.
//
// What this leaves out: congestion control, queues, losses, the time until rates settle. Transfers of many megabytes
// come close to it, small ones and tails do not (docs/topology.md).
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace sluice::fabric {

class Flows {
 public:
  void Reserve(size_t flows, size_t uses);
  void Clear();   // keeps the memory
  // A flow without arcs yet. cap: no more than so many bytes a second.
  uint32_t Add(uint32_t count = 1, double cap = std::numeric_limits<double>::infinity());
  // The flow added last takes `share` (above 0) of its rate of `arc`, which it has not yet.
  void Use(uint32_t arc, double share = 1);

  size_t size() const { return counts_.size(); }
  uint32_t count(uint32_t flow) const { return counts_[flow]; }
  double cap(uint32_t flow) const { return caps_.empty() ? std::numeric_limits<double>::infinity() : caps_[flow]; }
  std::span<const uint32_t> Arcs(uint32_t flow) const { return std::span(arcs_).subspan(first_[flow], first_[flow + 1] - first_[flow]); }
  double Share(uint32_t flow, size_t arc) const { return shares_.empty() ? 1.0 : shares_[first_[flow] + arc]; }

 private:
  std::vector<uint32_t> first_ = {0}, counts_, arcs_;
  std::vector<float> shares_;   // beside arcs_; empty: all are 1
  std::vector<double> caps_;    // empty: there are none
};

// Of each flow, bytes a second; of a bundle, each. capacity: of each arc, all arcs of flows are in it; 0: nothing flows.
// A flow without arcs gets its cap.
std::vector<double> MaxMinRates(const std::vector<double>& capacity, const Flows& flows);

}  // namespace sluice::fabric
