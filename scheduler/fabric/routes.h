// Ways through a topology's graph, between hosts.
//
// An arc is one direction of a link: of link l, arc 2l goes from a to b, arc 2l+1 back. Traffic takes shortest ways (fewest
// switches) and never passes through a host; of several shortest ways it takes all in equal shares at each turn (ECMP): an
// equal share for each cable. It begins and ends at the host's vertex, and passes the host's own NICs, bridges and CPUs,
// never its GPUs. Hosts hang on few switches, so ways are kept by pairs of these, and made when they are first asked for.
//
// Not thread-safe: const calls keep the ways that they make. An `each` must not call the same Routes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "scheduler/topology/graph.h"

namespace sluice::fabric {

class Routes {
 public:
  // `graph` is finished and complete (scheduler/topology/complete.h), and outlives this.
  static std::unique_ptr<Routes> Create(const topology::Graph* graph);
  virtual ~Routes() = default;

  static uint32_t ArcOf(uint32_t link, bool from_a) { return 2 * link + (from_a ? 0 : 1); }
  virtual size_t arcs() const = 0;                                   // 2 * links
  virtual double BytesPerSecond(uint32_t arc) const = 0;
  // The live estimate of an arc instead of the graph's number. 0: the arc is down, and ways go round it.
  virtual void SetBytesPerSecond(uint32_t arc, double bytes_per_second) = 0;

  // Each arc on the way of one byte from host to host, and the part of the byte that takes it (1 on a single way). False:
  // there is no way. from == to: nothing is called, true.
  virtual bool Spread(uint32_t from, uint32_t to, absl::FunctionRef<void(uint32_t arc, double share)> each) const = 0;
  // The same for all of some hosts to all of others at once: adds to load[arc] (arcs() long) the bytes that it carries if each
  // sender sends each receiver that is another host as many bytes as their weights' product. False: some have no way; theirs
  // are left out. What the hosts of one class (12,500 hosts: some hundred leaves) share is counted once.
  struct Part {
    uint32_t host = topology::kNone;
    double weight = 0;
  };
  virtual bool AddLoads(std::span<const Part> senders, std::span<const Part> receivers, std::vector<double>* load) const;
  // One of the ways, in order, picked by `hash` as switches pick it. False: there is none.
  virtual bool Way(uint32_t from, uint32_t to, uint64_t hash, std::vector<uint32_t>* arcs) const = 0;
  virtual double Latency(uint32_t from, uint32_t to) const = 0;      // one way, seconds, mean of ways; infinite: no way
  virtual uint32_t Hops(uint32_t from, uint32_t to) const = 0;       // arcs of a way; kNone: no way
};

}  // namespace sluice::fabric
