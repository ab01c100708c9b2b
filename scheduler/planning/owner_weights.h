// How much of a model each server should own, so that the most loaded link of a step is busy for as short as may be.
//
// Owning a byte costs a link what all workers push and what comes back to them. Links add up, so the time of the busiest one is
// convex in the shares, and the best ones solve a small linear program. From even shares (by event loops) on, shares move from the
// servers that load the busiest link to those that relieve it most, in ever smaller steps. Where several links are as busy no such
// move helps; so another search begins with multiplicative weights: links that are loaded gain weight, and shares go to the servers
// whose ways cost least by these weights (Arora, Hazan, Kale, "The Multiplicative Weights Update Method", 2012). The better counts. Servers of hosts that are alike (same switches, as many workers there) have equal shares. A server
// adds up at most kServerBytesPerSecond a loop: narrow links do not draw all to one server.
#pragma once

#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "proto/topology.pb.h"
#include "scheduler/network/view.h"
#include "scheduler/planning/plan_step.h"

namespace sluice::planning {

inline constexpr double kServerBytesPerSecond = 2e9;   // of pushes that one event loop decodes and adds
inline constexpr size_t kMaxServerKinds = 64;          // beyond that all servers are alike
inline constexpr double kOwnersGain = 0.05;            // of a step: unequal shares must take off so much

struct OwnerWeights {
  std::vector<double> weights;   // by ServerInfo.server, sum 1; empty: all the same, by loops
  double even_s = 0, best_s = 0; // the busiest link's seconds for each byte of the model, with equal shares and with these
};

// draining servers and those that do not live get nothing. Empty weights where some member runs nowhere that is known, or all
// servers are alike. server_bytes_per_second: of a loop; 0 = no bound.
OwnerWeights WeighOwners(const proto::Plan& plan, const network::View& network, const std::vector<uint32_t>& draining,
                         const StepRules& rules = {}, double server_bytes_per_second = kServerBytesPerSecond);

// Whether it is worth while to predict a step with these: the busiest link carries less by kOwnersGain.
bool MayPay(const OwnerWeights& owners);

// "owners of shards", for people: with even shares a step takes even_s; weighed_s: with those of `owners`, where they may pay.
// *by_network: these are chosen.
proto::Choice ChooseOwners(const proto::Plan& plan, const OwnerWeights& owners, double even_s, double weighed_s, bool* by_network);

}  // namespace sluice::planning
