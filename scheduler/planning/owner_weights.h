// How much of a model each server should own, so that the most loaded link of a step is busy for as short as may be.
//
// Owning a byte costs a link what all workers push and what comes back to them. Links add up, so the time of the busiest one is
// convex in the shares; from equal shares (by event loops) on, shares move from the servers that load the busiest link to those
// that relieve it most, in ever smaller steps. Servers of hosts that are alike (same switches, as many workers there) have equal
// shares. A server adds up at most kServerBytesPerSecond a loop: narrow links do not draw all to one server.
#pragma once

#include <vector>

#include "proto/plan.pb.h"
#include "scheduler/network/network.h"

namespace sluice::planning {

inline constexpr double kServerBytesPerSecond = 2e9;   // of pushes that one event loop decodes and adds
inline constexpr size_t kMaxServerKinds = 64;          // beyond that all servers are alike

struct OwnerWeights {
  std::vector<double> weights;   // by ServerInfo.server, sum 1; empty: all the same, by loops
  double even_s = 0, best_s = 0; // the busiest link's seconds for each byte of the model, with equal shares and with these
};

// draining servers and those that do not live get nothing. Empty weights where some member runs nowhere that is known.
OwnerWeights WeighOwners(const proto::Plan& plan, const network::Network& network, const std::vector<uint32_t>& draining);

}  // namespace sluice::planning
