// How hosts hang on the network, so that ways are made once for hosts that hang alike.
//
// A host's arcs lead out of its vertex and of the NICs, bridges and CPUs that traffic may pass in it; its leaves are the
// switches that they lead to. Two hosts are
// - of one class, if their insides and arcs are alike and lead to the same leaves: ways from (to) them differ in nothing but
//   the hosts' own arcs;
// - of one kind, if the same holds but for the leaves, which are twins: linked with the same switches in the same way (the
//   leaves of one pod). Swapping twins changes nothing else in the network. So ways between hosts without a common leaf
//   differ in nothing but the hosts' and their leaves' arcs.
// What is down counts: a leaf that loses a link is no longer a twin of the others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler/topology/graph.h"

namespace sluice::fabric {

// The links between switches. Switches are numbered in order of their vertices.
class SwitchGraph {
 public:
  explicit SwitchGraph(const topology::Graph& graph);

  struct Arc {
    uint32_t arc, to;   // to: number of the switch
  };
  size_t size() const { return vertices_.size(); }
  uint32_t Number(uint32_t vertex) const { return number_[vertex]; }   // kNone: no switch
  uint32_t Vertex(uint32_t number) const { return vertices_[number]; }
  // Out of a switch, by `to`.
  std::span<const Arc> Arcs(uint32_t number) const { return std::span(arcs_).subspan(first_[number], first_[number + 1] - first_[number]); }

 private:
  std::vector<uint32_t> number_, vertices_, first_;
  std::vector<Arc> arcs_;
};

class HostClasses {
 public:
  // `rates`: of each arc; 0: it is down. All outlive this.
  HostClasses(const topology::Graph& graph, const SwitchGraph& switches, const std::vector<double>& rates);

  struct Class {
    std::vector<uint32_t> leaves;      // numbers of switches, in order of the host's arcs
    std::vector<uint32_t> twins;       // of each leaf: leaves of equal number are twins
    std::vector<uint32_t> leaf_arcs;   // between switches, out of the leaves, in this order
    uint64_t mask = 0;                 // of the leaves, hashed: classes without a common bit have no common leaf
    uint32_t shape = 0;
    uint32_t kind = 0;
  };
  bool IsHost(uint32_t vertex) const { return vertex < class_of_.size() && class_of_[vertex] != topology::kNone; }
  uint32_t ClassOf(uint32_t host) const { return class_of_[host]; }
  const Class& Of(uint32_t host) const { return classes_[class_of_[host]]; }
  const Class& Get(uint32_t number) const { return classes_[number]; }
  bool ShareLeaf(const Class& a, const Class& b) const;
  uint32_t TwinsOf(uint32_t switch_number) const { return twins_[switch_number]; }

  // One for each link of each vertex that may be passed, away from it, those of the host's vertex first; so a link between
  // two such vertices is there twice, once in each direction. In the same order in all hosts of a kind.
  std::span<const uint32_t> Arcs(uint32_t host) const { return std::span(arcs_).subspan(first_[host], first_[host + 1] - first_[host]); }

  // The arc went down or came up. Classes of hosts, and kinds of classes, may be others from now on; old numbers are not
  // used again for anything else.
  void Changed(uint32_t arc);

  uint32_t Tail(uint32_t arc) const { return arc & 1 ? graph_.link(arc >> 1).b : graph_.link(arc >> 1).a; }
  uint32_t Head(uint32_t arc) const { return arc & 1 ? graph_.link(arc >> 1).a : graph_.link(arc >> 1).b; }

 private:
  using Key = std::vector<uint32_t>;
  using Numbers = absl::flat_hash_map<Key, uint32_t>;

  void Walk(uint32_t host);
  void FindTwins(uint32_t switch_number);
  void Classify(uint32_t host);
  void FindKind(Class* of);
  uint32_t State(uint32_t arc) const { return (rates_[arc] > 0 ? 1u : 0u) + (rates_[arc ^ 1] > 0 ? 2u : 0u); }

  const topology::Graph& graph_;
  const SwitchGraph& switches_;
  const std::vector<double>& rates_;
  std::vector<uint32_t> first_, arcs_;               // of each vertex; none, if it is no host
  std::vector<uint32_t> class_of_;                   // of each vertex; kNone: no host
  std::vector<Class> classes_;
  std::vector<uint32_t> twins_;                      // of each switch
  std::vector<std::vector<uint32_t>> classes_at_;    // of each switch: those that it is a leaf of
  Numbers shape_numbers_, class_numbers_, twin_numbers_, kind_numbers_;
  std::vector<uint32_t> local_;                      // of each vertex: its place in the host at hand
};

}  // namespace sluice::fabric
