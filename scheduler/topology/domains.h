// What fails together, and which hosts are near each other.
//
// Failure domains. A switch is one of a host's domains if the loss of the switch alone parts the host from the main part
// of the network: the part with the most hosts that is left (of equal ones that with more switches; of those none: then
// the loss parts all). So the leaf of a tree is a domain, and a leaf in which each host has only one of its rails is not.
// Traffic never passes through hosts, so a host joins nothing. Found by Tarjan's depth-first search over switches, in
// linear time; the lists of widest domains are cut where they would be long (a chain of thousands of switches).
//
// Tiers. Of the given hosts: hosts that the switches of level 1 join (levels as in topology/complete.h, counted from the
// given hosts) make a rack, those that levels 1 and 2 join the next tier, and so on. A tier that joins nothing is left out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "scheduler/topology/graph.h"

namespace sluice::topology {

struct Domain {
  uint32_t vertex = kNone;   // a switch, or the host itself
  uint32_t hosts = 0;        // in it
};

class Domains {
 public:
  // `graph` is finished.
  static Domains Find(const Graph& graph);

  const std::vector<Domain>& all() const { return all_; }
  // Ids (indices into all()) of the domains that `host` is in, narrowest first; the first is the host itself. Empty: no host.
  std::span<const uint32_t> Of(uint32_t host) const;
  // The narrowest that both are in; kNone: none.
  uint32_t Common(uint32_t host_a, uint32_t host_b) const;

 private:
  friend class DomainFinder;
  std::vector<Domain> all_;
  std::vector<uint32_t> first_;   // of each vertex in ids_; one more at the end
  std::vector<uint32_t> ids_;
};

struct TierSpec {
  std::string name;              // "host", "rack", "zone", "core", "tier5", …
  double bytes_per_second = 0;   // that one worker gets between two domains of the tier below, when all send; 0: no way
  double latency_s = 0;          // one way
};

struct Tiers {
  std::vector<TierSpec> tiers;                      // narrowest first; the first is "host", the last one holds all workers
  // Of each given host: the number of its domain in each tier, counted from 0 in order of the list.
  std::vector<std::vector<uint32_t>> coordinates;
};

// `hosts`: where the workers are, one entry each (a host may come several times). The bandwidth of a tier is that of the
// cut round the domains of the tier below, shared by the workers in it, for the domain that has least, and not more than
// in the tiers below. Inside a host: what a GPU has towards others, or kMemoryBytesPerSecond. `graph` is complete.
Tiers FindTiers(const Graph& graph, const std::vector<uint32_t>& hosts);

inline constexpr double kMemoryBytesPerSecond = 10e9;   // between two processes of a host: a copy by one core
inline constexpr double kMemoryLatency = 1e-6;

}  // namespace sluice::topology
