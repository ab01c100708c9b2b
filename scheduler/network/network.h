// What the scheduler knows of the network: the topology that operators gave, where it has to be completed by assumptions,
// ways through it, and live estimates of its links. No I/O, no clock.
//
// Hosts are where members are. One that no file names hangs on a switch of its own kind, "(unlisted)"; without files that
// is the whole topology. Fabrics that no file joins, but on which members have to talk with each other, are taken to meet
// in a switch "(assumed core)": only members' hosts make it necessary, and Notes() says so.
//
// Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "proto/config.pb.h"
#include "proto/topology.pb.h"
#include "scheduler/fabric/routes.h"
#include "scheduler/network/estimates.h"
#include "scheduler/topology/domains.h"
#include "scheduler/topology/graph.h"

namespace sluice::network {

inline constexpr size_t kMaxUnlistedHosts = 1 << 16;

class Network {
 public:
  // read: of the topology's files (empty without any). RESOURCE_EXHAUSTED, INVALID_ARGUMENT: a graph that cannot be completed.
  static absl::StatusOr<std::unique_ptr<Network>> Create(topology::Graph read, const proto::TopologyConfig& config);

  // Members run there. Vertices stay the same; arcs do not, if hosts are new. "" is nowhere.
  void AddHosts(const std::vector<std::string>& names);
  uint32_t Host(const std::string& name) const;                  // kNone: AddHosts did not name it

  // What a member on `from` says of a path to a member on `to`, both known hosts (others are ignored).
  // who: the member's number.
  void Take(const std::string& from, const std::string& to, uint64_t who, const PairMeasure& measure);
  // The same of a probe, which had the way for itself.
  void TakeProbe(const std::string& from, const std::string& to, const PairMeasure& measure);
  // Puts the estimates of now into routes(). False: no arc changed by more than a twentieth.
  bool Refresh(TimeNs now);

  const topology::Graph& graph() const { return graph_; }
  const fabric::Routes& routes() const { return *routes_; }
  const topology::Domains& domains() const { return domains_; }
  const proto::TopologyConfig& config() const { return config_; }
  uint64_t version() const { return version_; }                  // rises with AddHosts of new ones, and Refresh that is true

  // By arc: those of links between hosts and switches of which the last Refresh knew no measurement that counts at least half.
  // all: every one of these links.
  std::vector<bool> InQuestion(bool all) const;
  std::string ArcName(uint32_t arc) const;                       // "leaf1 -> spine0"
  // Of the links on the ways between two hosts the one that is counted on to carry least; kNone: there is no way.
  uint32_t NarrowestArc(uint32_t from, uint32_t to) const;

  // Links between hosts and switches, those with a measurement first; both directions, at most `most` entries.
  std::vector<proto::LinkEstimate> Estimates(TimeNs now, size_t most) const;
  // "4 hosts, 3 switches, from FILE": for people.
  std::string Summary() const;
  std::vector<std::string> Notes() const;                        // what is assumed
  topology::Source SourceOf(uint32_t arc) const;                 // of its bandwidth as counted on now

 private:
  Network(topology::Graph read, const proto::TopologyConfig& config) : config_(config), read_(std::move(read)) {}
  absl::Status Rebuild();
  absl::Status Join();

  const proto::TopologyConfig config_;
  const topology::Graph read_;
  std::set<std::string> members_;                                // hosts
  std::vector<std::string> unlisted_;                            // of these, in order of their coming
  topology::Graph graph_;
  std::unique_ptr<fabric::Routes> routes_;
  topology::Domains domains_;
  std::vector<LinkEstimates::Nominal> nominal_;                  // of each arc
  LinkEstimates estimates_;
  std::map<uint32_t, ArcEstimate> arcs_;                         // as of the last Refresh
  size_t joined_ = 0;                                            // fabrics that are taken to meet
  uint64_t version_ = 1;
};

}  // namespace sluice::network
