// Ways between hosts, made once for all pairs of hosts that hang alike (host_classes.h), and kept.
//
// 1. Distances() of a class of hosts: of every switch, the arcs from it to such a host. One search over switches, kept.
// 2. Make(): from those and the two hosts' own arcs, the arcs that are on shortest ways, vertex by vertex from the sender
//    on, with the part of the traffic that takes each: a Template. Arcs of the hosts, and of their leaves, stand in it by
//    their places in HostClasses, so that it serves all pairs of hosts of the same two kinds. Kept.
//    Where the hosts share a leaf, or a twin of a leaf of theirs is passed on the way, it serves their two classes alone.
// An arc that goes down or comes up changes the class of the host that it belongs to, or, between switches, drops the
// distances and templates that it may touch (Changed).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "scheduler/fabric/host_classes.h"
#include "scheduler/topology/graph.h"

namespace sluice::fabric {

// Where an arc of a template is to be looked up.
constexpr uint32_t kIndexBits = 29, kIndexMask = (1u << kIndexBits) - 1;
enum Place : uint32_t {
  kFabric = 0,                      // the arc itself
  kSender = 1u << kIndexBits,       // an arc of the sending host
  kReceiver = 2u << kIndexBits,     // against an arc of the receiving host
  kSenderLeaf = 3u << kIndexBits,   // an arc of the sender's leaves
  kReceiverLeaf = 4u << kIndexBits, // against an arc of the receiver's leaves
};
static_assert(2 * topology::kMaxLinks <= kIndexMask);

struct Turn {
  uint32_t code;    // of the arc
  float share;      // of one byte
  uint32_t next;    // node at its end
};

struct Template {
  uint32_t hops = topology::kNone;     // kNone: there is no way
  bool of_classes = false;             // of two kinds: it serves no pair, each pair of classes has its own
  std::vector<Turn> turns;             // by node
  std::vector<uint32_t> first, salt;   // of each node; node 0 is the sender, the last one the receiver. first: one more
  std::vector<uint32_t> at_ends;       // indices of turns whose arcs are the hosts' or leaves'
};

// The arcs of two hosts that a template names by place.
struct Ends {
  std::span<const uint32_t> sender, receiver, sender_leaf, receiver_leaf;
  uint32_t Arc(uint32_t code) const {
    const uint32_t index = code & kIndexMask;
    switch (code & ~kIndexMask) {
      case kSender: return sender[index];
      case kReceiver: return receiver[index] ^ 1;
      case kSenderLeaf: return sender_leaf[index];
      case kReceiverLeaf: return receiver_leaf[index] ^ 1;
      default: return index;
    }
  }
};

class WayTemplates {
 public:
  // rates: of each arc; 0: it is down. Both outlive this.
  WayTemplates(const topology::Graph& graph, const std::vector<double>& rates);

  const HostClasses& hosts() const { return hosts_; }
  Ends EndsOf(uint32_t from, uint32_t to) const {
    return {hosts_.Arcs(from), hosts_.Arcs(to), hosts_.Of(from).leaf_arcs, hosts_.Of(to).leaf_arcs};
  }
  // Of two different hosts. Valid until the next call.
  const std::shared_ptr<const Template>& Find(uint32_t from, uint32_t to) const;

  // The arc went down or came up. Drops the distances that this may have changed, the templates to hosts of those classes, and the
  // templates that the arc is in or may come into.
  void Changed(uint32_t arc);

 private:
  using Templates = absl::flat_hash_map<uint64_t, std::shared_ptr<const Template>>;

  const std::shared_ptr<const Template>& FindIn(Templates& kept, uint64_t key, uint32_t from, uint32_t to, bool of_kinds) const;
  void NearReceiver(uint32_t to) const;
  void NearSender(uint32_t from, uint32_t to, const std::vector<uint32_t>& distances) const;
  uint32_t DistanceAt(uint32_t v, uint32_t from, uint32_t to, const std::vector<uint32_t>& distances) const;
  void Forget(uint32_t host) const;
  const std::vector<uint32_t>& Distances(uint32_t to) const;
  Template Make(uint32_t from, uint32_t to, bool of_kinds) const;
  absl::flat_hash_map<uint32_t, uint32_t> Places(uint32_t from, uint32_t to, bool of_kinds) const;
  bool IsLeaf(uint32_t number, uint32_t from, uint32_t to) const;
  bool IsPeculiar(uint32_t number, uint32_t next, uint32_t from, uint32_t to) const;
  void FillTurns(uint32_t from, uint32_t to, const std::vector<uint32_t>& distances, bool of_kinds, Template* way) const;
  enum class Effect { kNothing, kWays, kDistances };   // kNothing: but on ways with the arc in them
  Effect EffectOn(const std::vector<uint32_t>& distances, uint32_t arc, uint32_t tail, uint32_t head) const;
  void Drop(Templates& kept, const absl::flat_hash_map<uint32_t, bool>& may_stay, absl::FunctionRef<bool(uint32_t)> touched);
  bool Up(uint32_t arc) const { return rates_[arc] > 0; }

  const topology::Graph& graph_;
  const std::vector<double>& rates_;
  const SwitchGraph switches_;
  HostClasses hosts_;
  mutable absl::flat_hash_map<uint32_t, std::vector<uint32_t>> distances_;   // of switches, by class of the receiver
  mutable Templates of_kinds_, of_classes_;       // by those of sender and receiver
  mutable size_t kept_turns_ = 0;
  mutable std::vector<uint32_t> near_, node_of_;  // of each vertex; kNone but during Make
};

}  // namespace sluice::fabric
