// A way between two hosts:
// 1. Distances() of a class of hosts (host_classes.h): of every switch, the arcs from it to such a host. One search over
//    switches, kept.
// 2. Make(): from those and the two hosts' own arcs, the arcs that are on shortest ways, vertex by vertex from the sender
//    on, with the part of the traffic that takes each: a Template. Arcs of the hosts, and of their leaves, stand in it by
//    their places in HostClasses, so that it serves all pairs of hosts of the same two kinds. Kept.
//    Where the hosts share a leaf, or a twin of a leaf of theirs is passed on the way, it serves their two classes alone.
// 3. Spread() and Way() read it.
// An arc that goes down or comes up changes the class of the host that it belongs to, or, between switches, drops the
// distances and templates that it may touch (Invalidate).
#include "scheduler/fabric/routes.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "scheduler/fabric/host_classes.h"

namespace sluice::fabric {
namespace {

using topology::Graph;
using topology::kNone;

constexpr size_t kMaxKeptDistances = size_t{1} << 26;   // 256 MiB
constexpr size_t kMaxKeptTurns = size_t{1} << 24;       // 192 MiB

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
  uint32_t hops = kNone;               // kNone: there is no way
  bool of_classes = false;             // of two kinds: it serves no pair, each pair of classes has its own
  std::vector<Turn> turns;             // by node
  std::vector<uint32_t> first, salt;   // of each node; node 0 is the sender, the last one the receiver. first: one more
  std::vector<uint32_t> at_ends;       // indices of turns whose arcs are the hosts' or leaves'
};

uint64_t Mix(uint64_t x) {   // splitmix64's finalizer (Steele, Lea, Flood, OOPSLA 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class GraphRoutes final : public Routes {
 public:
  explicit GraphRoutes(const Graph* graph)
      : graph_(*graph), rates_(Rates(*graph)), switches_(*graph), hosts_(*graph, switches_, rates_) {
    near_.assign(graph_.vertices().size(), kNone);
    node_of_.assign(graph_.vertices().size(), kNone);
  }

  size_t arcs() const override { return rates_.size(); }
  double BytesPerSecond(uint32_t arc) const override { return rates_[arc]; }

  void SetBytesPerSecond(uint32_t arc, double bytes_per_second) override {
    const bool was_up = Up(arc);
    rates_[arc] = std::max(0.0, bytes_per_second);
    if (was_up != Up(arc)) Invalidate(arc);
  }

  bool Spread(uint32_t from, uint32_t to, absl::FunctionRef<void(uint32_t, double)> each) const override {
    if (!AreHosts(from, to)) return false;
    if (from == to) return true;
    const Template& way = *Find(from, to);
    if (way.hops == kNone) return false;
    const Ends ends = EndsOf(from, to);
    for (const Turn& turn : way.turns) each(ends.Arc(turn.code), turn.share);
    return true;
  }

  // For each pair of classes: the arcs of leaves carry the sum of products; those of hosts are summed up by class, as all hosts
  // of one send or receive alike; those of the fabric are summed up by template. A host sends nothing to itself, which takes
  // its own product away in the pair of its class and itself.
  bool AddLoads(std::span<const Part> senders, std::span<const Part> receivers, std::vector<double>* load) const override {
    absl::flat_hash_map<uint32_t, Member> members;
    bool complete = true;
    for (const Part& part : senders) {
      if (hosts_.IsHost(part.host)) members[part.host].out += part.weight;
      else complete = complete && receivers.empty();
    }
    for (const Part& part : receivers) {
      if (hosts_.IsHost(part.host)) members[part.host].in += part.weight;
      else complete = complete && senders.empty();
    }
    std::map<uint32_t, Group> groups;   // in order, so that sums do not depend on hashes
    for (const auto& [host, member] : members) groups[hosts_.ClassOf(host)].members.push_back({host, member});
    for (auto& [unused, group] : groups) group.Sum();
    std::vector<std::pair<std::shared_ptr<const Template>, double>> fabric;
    absl::flat_hash_map<const Template*, size_t> fabric_index;
    for (auto& [from_class, from] : groups) {
      if (from.out == 0) continue;
      for (auto& [to_class, to] : groups) {
        const bool own = from_class == to_class;
        const double bytes = from.out * to.in - (own ? from.own : 0);
        if (bytes <= 0 || (own && from.members.size() < 2)) continue;
        const auto& way = Find(from.members.front().first, to.members.back().first);
        if (way->hops == kNone) {
          complete = false;
          continue;
        }
        for (const uint32_t t : way->at_ends) {
          const Turn& turn = way->turns[t];
          const uint32_t index = turn.code & kIndexMask;
          switch (turn.code & ~kIndexMask) {
            case kSender: from.sent.Add(index, turn.share * to.in, own ? turn.share : 0); break;
            case kReceiver: to.received.Add(index, turn.share * from.out, own ? turn.share : 0); break;
            case kSenderLeaf: (*load)[hosts_.Get(from_class).leaf_arcs[index]] += turn.share * bytes; break;
            case kReceiverLeaf: (*load)[hosts_.Get(to_class).leaf_arcs[index] ^ 1] += turn.share * bytes; break;
          }
        }
        const auto [it, is_new] = fabric_index.emplace(way.get(), fabric.size());
        if (is_new) fabric.push_back({way, 0});
        fabric[it->second].second += bytes;
      }
    }
    for (const auto& [way, bytes] : fabric)
      for (const Turn& turn : way->turns)
        if ((turn.code & ~kIndexMask) == kFabric) (*load)[turn.code & kIndexMask] += turn.share * bytes;
    for (const auto& [unused, group] : groups)
      for (const auto& [host, member] : group.members) {
        const std::span<const uint32_t> arcs = hosts_.Arcs(host);
        for (size_t i = 0; i < group.sent.all.size(); ++i) (*load)[arcs[i]] += member.out * (group.sent.all[i] - group.sent.own[i] * member.in);
        for (size_t i = 0; i < group.received.all.size(); ++i)
          (*load)[arcs[i] ^ 1] += member.in * (group.received.all[i] - group.received.own[i] * member.out);
      }
    return complete;
  }

  bool Way(uint32_t from, uint32_t to, uint64_t hash, std::vector<uint32_t>* arcs) const override {
    arcs->clear();
    if (!AreHosts(from, to)) return false;
    if (from == to) return true;
    const Template& way = *Find(from, to);
    if (way.hops == kNone) return false;
    const Ends ends = EndsOf(from, to);
    for (uint32_t node = 0; node + 1 < way.salt.size();) {
      const uint32_t begin = way.first[node], end = way.first[node + 1];
      uint32_t chosen = begin;
      if (end - begin > 1) {
        double sum = 0;
        for (uint32_t t = begin; t < end; ++t) sum += way.turns[t].share;
        double left = static_cast<double>(Mix(hash + 0x9e3779b97f4a7c15 * (way.salt[node] + 1)) >> 11) * 0x1p-53 * sum;
        while (chosen + 1 < end && left >= way.turns[chosen].share) left -= way.turns[chosen++].share;
      }
      arcs->push_back(ends.Arc(way.turns[chosen].code));
      node = way.turns[chosen].next;
    }
    return true;
  }

  double Latency(uint32_t from, uint32_t to) const override {
    double sum = 0;
    const bool found = Spread(from, to, [&](uint32_t arc, double share) { sum += share * graph_.link(arc >> 1).latency_s; });
    return found ? sum : std::numeric_limits<double>::infinity();
  }

  uint32_t Hops(uint32_t from, uint32_t to) const override {
    if (!AreHosts(from, to)) return kNone;
    return from == to ? 0 : Find(from, to)->hops;
  }

 private:
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
  // Of AddLoads.
  struct Member {
    double out = 0, in = 0;   // weights
  };
  struct ArcSums {            // by place among the arcs of a host
    std::vector<double> all, own;
    void Add(uint32_t index, double of_all, double of_own) {
      if (all.size() <= index) {
        all.resize(index + 1);
        own.resize(index + 1);
      }
      all[index] += of_all;
      own[index] += of_own;
    }
  };
  struct Group {
    std::vector<std::pair<uint32_t, Member>> members;
    double out = 0, in = 0, own = 0;   // sums; of products of a host's own
    ArcSums sent, received;
    void Sum() {
      std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      for (const auto& [unused, member] : members) {
        out += member.out;
        in += member.in;
        own += member.out * member.in;
      }
    }
  };
  using Templates = absl::flat_hash_map<uint64_t, std::shared_ptr<const Template>>;

  static std::vector<double> Rates(const Graph& graph) {
    std::vector<double> rates;
    rates.reserve(2 * graph.links().size());
    for (const topology::Link& link : graph.links()) rates.insert(rates.end(), 2, link.bytes_per_second);
    return rates;
  }
  bool Up(uint32_t arc) const { return rates_[arc] > 0; }
  bool AreHosts(uint32_t a, uint32_t b) const { return hosts_.IsHost(a) && hosts_.IsHost(b); }
  Ends EndsOf(uint32_t from, uint32_t to) const {
    return {hosts_.Arcs(from), hosts_.Arcs(to), hosts_.Of(from).leaf_arcs, hosts_.Of(to).leaf_arcs};
  }
  static uint64_t Pair(uint32_t from, uint32_t to) { return uint64_t{from} << 32 | to; }

  const std::shared_ptr<const Template>& Find(uint32_t from, uint32_t to) const {
    const HostClasses::Class &sender = hosts_.Of(from), &receiver = hosts_.Of(to);
    if (!hosts_.ShareLeaf(sender, receiver)) {
      const auto& found = FindIn(of_kinds_, Pair(sender.kind, receiver.kind), from, to, true);
      if (!found->of_classes) return found;
    }
    return FindIn(of_classes_, Pair(hosts_.ClassOf(from), hosts_.ClassOf(to)), from, to, false);
  }

  const std::shared_ptr<const Template>& FindIn(Templates& kept, uint64_t key, uint32_t from, uint32_t to, bool of_kinds) const {
    if (const auto it = kept.find(key); it != kept.end()) return it->second;
    auto made = std::make_shared<Template>(Make(from, to, of_kinds));
    if (kept_turns_ > kMaxKeptTurns) {
      of_kinds_.clear();
      of_classes_.clear();
      kept_turns_ = 0;
    }
    kept_turns_ += Size(*made);
    return kept[key] = std::move(made);
  }

  static size_t Size(const Template& way) { return way.turns.size() + way.first.size() + 8; }   // in turns

  // Fills near_ of the vertices of host `to` with their distances to it.
  void NearReceiver(uint32_t to) const {
    near_[to] = 0;
    for (bool again = true; again;) {
      again = false;
      for (const uint32_t arc : hosts_.Arcs(to)) {
        const uint32_t nearer = hosts_.Tail(arc), farther = hosts_.Head(arc);
        if (graph_.vertex(farther).host != to || !Up(arc ^ 1) || near_[nearer] == kNone) continue;
        if (near_[farther] != kNone && near_[farther] <= near_[nearer] + 1) continue;
        near_[farther] = near_[nearer] + 1;
        again = true;
      }
    }
  }

  // Fills near_ of the vertices of host `from` with their distances to the receiver, which has its own already.
  void NearSender(uint32_t from, uint32_t to, const std::vector<uint32_t>& distances) const {
    for (bool again = true; again;) {
      again = false;
      for (const uint32_t arc : hosts_.Arcs(from)) {
        const uint32_t tail = hosts_.Tail(arc), beyond = DistanceAt(hosts_.Head(arc), from, to, distances);
        if (!Up(arc) || beyond == kNone || (near_[tail] != kNone && near_[tail] <= beyond + 1)) continue;
        near_[tail] = beyond + 1;
        again = true;
      }
    }
  }

  uint32_t DistanceAt(uint32_t v, uint32_t from, uint32_t to, const std::vector<uint32_t>& distances) const {
    const uint32_t host = graph_.vertex(v).host;
    if (host == kNone) return distances[switches_.Number(v)];
    return host == from || host == to ? near_[v] : kNone;
  }

  void Forget(uint32_t host) const {
    near_[host] = kNone;
    for (const uint32_t arc : hosts_.Arcs(host))
      if (graph_.vertex(hosts_.Head(arc)).host == host) near_[hosts_.Head(arc)] = kNone;
  }

  // Of each switch, to a host of the class of `to`, whose near_ is there.
  const std::vector<uint32_t>& Distances(uint32_t to) const {
    const uint32_t group = hosts_.ClassOf(to);
    if (const auto it = distances_.find(group); it != distances_.end()) return it->second;
    if ((distances_.size() + 1) * switches_.size() > kMaxKeptDistances) distances_.clear();
    std::vector<std::pair<uint32_t, uint32_t>> entries;   // distance, switch: where ways enter the host
    for (const uint32_t arc : hosts_.Arcs(to)) {
      const uint32_t at = switches_.Number(hosts_.Head(arc)), near = near_[hosts_.Tail(arc)];
      if (at != kNone && near != kNone && Up(arc ^ 1)) entries.push_back({near + 1, at});
    }
    std::sort(entries.begin(), entries.end());
    std::vector<uint32_t>& of = distances_[group];
    of.assign(switches_.size(), kNone);
    std::vector<uint32_t> level, next;
    size_t entered = 0;
    for (uint32_t distance = 0; entered < entries.size() || !level.empty(); ++distance) {
      for (; entered < entries.size() && entries[entered].first == distance; ++entered) {
        uint32_t& known = of[entries[entered].second];
        if (known != kNone) continue;
        known = distance;
        level.push_back(entries[entered].second);
      }
      for (const uint32_t at : level)
        for (const SwitchGraph::Arc& away : switches_.Arcs(at)) {
          if (of[away.to] != kNone || !Up(away.arc ^ 1)) continue;
          of[away.to] = distance + 1;
          next.push_back(away.to);
        }
      level.swap(next);
      next.clear();
    }
    return of;
  }

  Template Make(uint32_t from, uint32_t to, bool of_kinds) const {
    NearReceiver(to);
    const std::vector<uint32_t>& distances = Distances(to);
    NearSender(from, to, distances);
    Template way;
    way.hops = near_[from];
    if (way.hops != kNone) FillTurns(from, to, distances, of_kinds, &way);
    Forget(from);
    Forget(to);
    return way;
  }

  // Places of the arcs of both ends, by arc.
  absl::flat_hash_map<uint32_t, uint32_t> Places(uint32_t from, uint32_t to, bool of_kinds) const {
    absl::flat_hash_map<uint32_t, uint32_t> places;
    const Ends ends = EndsOf(from, to);
    for (uint32_t i = 0; i < ends.sender.size(); ++i) places[ends.sender[i]] = kSender | i;
    for (uint32_t i = 0; i < ends.receiver.size(); ++i) places[ends.receiver[i] ^ 1] = kReceiver | i;
    if (!of_kinds) return places;
    for (uint32_t i = 0; i < ends.sender_leaf.size(); ++i) places[ends.sender_leaf[i]] = kSenderLeaf | i;
    for (uint32_t i = 0; i < ends.receiver_leaf.size(); ++i) places[ends.receiver_leaf[i] ^ 1] = kReceiverLeaf | i;
    return places;
  }

  static bool Has(const std::vector<uint32_t>& list, uint32_t value) { return std::find(list.begin(), list.end(), value) != list.end(); }
  bool IsLeaf(uint32_t number, uint32_t from, uint32_t to) const {
    return Has(hosts_.Of(from).leaves, number) || Has(hosts_.Of(to).leaves, number);
  }

  // Whether on a way from a switch another pair of the same kinds may differ in more than its own and its leaves' arcs: the
  // switch is no leaf, but a twin of one, so a leaf to other pairs; or it is a leaf, and so is the next.
  bool IsPeculiar(uint32_t number, uint32_t next, uint32_t from, uint32_t to) const {
    if (IsLeaf(number, from, to)) return next != kNone && IsLeaf(next, from, to);
    return Has(hosts_.Of(from).twins, hosts_.TwinsOf(number)) || Has(hosts_.Of(to).twins, hosts_.TwinsOf(number));
  }

  // Nodes are found in order of their distance, so a node's share is complete when its turn comes.
  void FillTurns(uint32_t from, uint32_t to, const std::vector<uint32_t>& distances, bool of_kinds, Template* way) const {
    const std::span<const uint32_t> sender = hosts_.Arcs(from), receiver = hosts_.Arcs(to);
    const absl::flat_hash_map<uint32_t, uint32_t> places = Places(from, to, of_kinds);
    std::vector<uint32_t> vertices = {from};
    std::vector<double> shares = {1};
    node_of_[from] = 0;
    for (size_t node = 0; node < vertices.size(); ++node) {
      const uint32_t v = vertices[node];
      const uint32_t number = switches_.Number(v), left = DistanceAt(v, from, to, distances);
      way->first.push_back(static_cast<uint32_t>(way->turns.size()));
      way->salt.push_back(static_cast<uint32_t>(node));
      if (v == to) continue;
      double cables = 0;
      const auto take = [&](uint32_t arc, uint32_t head) {
        if (!Up(arc) || DistanceAt(head, from, to, distances) + 1 != left) return;
        if (node_of_[head] == kNone) {
          node_of_[head] = static_cast<uint32_t>(vertices.size());
          vertices.push_back(head);
          shares.push_back(0);
        }
        const float count = static_cast<float>(graph_.link(arc >> 1).cables);
        cables += count;
        if (of_kinds && number != kNone && IsPeculiar(number, switches_.Number(head), from, to)) way->of_classes = true;
        const auto place = places.find(arc);
        way->turns.push_back({place != places.end() ? place->second : kFabric | arc, count, node_of_[head]});
      };
      if (graph_.vertex(v).host == from) {
        for (const uint32_t arc : sender)
          if (hosts_.Tail(arc) == v) take(arc, hosts_.Head(arc));
      } else {
        if (number != kNone)
          for (const SwitchGraph::Arc& arc : switches_.Arcs(number)) take(arc.arc, switches_.Vertex(arc.to));
        for (const uint32_t arc : receiver)
          if (hosts_.Head(arc) == v) take(arc ^ 1, hosts_.Tail(arc));
      }
      for (size_t t = way->first.back(); t < way->turns.size(); ++t) {
        Turn& turn = way->turns[t];
        const double share = shares[node] * turn.share / cables;
        turn.share = static_cast<float>(share);
        shares[turn.next] += share;
      }
    }
    way->first.push_back(static_cast<uint32_t>(way->turns.size()));
    for (const uint32_t v : vertices) node_of_[v] = kNone;
    if (way->of_classes) *way = {.hops = way->hops, .of_classes = true};
    for (uint32_t t = 0; t < way->turns.size(); ++t)
      if ((way->turns[t].code & ~kIndexMask) != kFabric) way->at_ends.push_back(t);
    way->turns.shrink_to_fit();
  }

  // Drops the distances that an arc's going down or coming up may have changed, the templates to hosts of those classes,
  // and the templates that the arc is in or may come into. Of a kind any class speaks for all, as all twins are at the same
  // distances from the rest of the network; but for those whose kind has just changed.
  void Invalidate(uint32_t arc) {
    const uint32_t tail = switches_.Number(hosts_.Tail(arc)), head = switches_.Number(hosts_.Head(arc));
    absl::flat_hash_map<uint32_t, uint32_t> kind_before;
    for (const auto& [c, unused] : distances_) kind_before[c] = hosts_.Get(c).kind;
    hosts_.Changed(arc);
    if (tail == kNone || head == kNone) return;   // of a host, whose class is another now
    absl::flat_hash_map<uint32_t, bool> classes, kinds;   // whether templates to them that lack the arc may stay
    for (auto it = distances_.begin(); it != distances_.end();) {
      const Effect effect = EffectOn(it->second, arc, tail, head);
      classes[it->first] = effect == Effect::kNothing;
      if (const uint32_t kind = hosts_.Get(it->first).kind; kind == kind_before[it->first])
        kinds[kind] = (kinds.count(kind) == 0 || kinds[kind]) && effect == Effect::kNothing;
      if (effect == Effect::kDistances) distances_.erase(it++);
      else ++it;
    }
    Drop(of_classes_, classes, [&](uint32_t other) { return other == arc; });
    // The ends of the arc may have become twins of leaves, so that a way past them serves its kinds no more.
    Drop(of_kinds_, kinds, [&](uint32_t other) {
      const uint32_t a = switches_.Number(hosts_.Tail(other)), b = switches_.Number(hosts_.Head(other));
      return a == tail || a == head || b == tail || b == head;
    });
  }

  enum class Effect { kNothing, kWays, kDistances };   // kNothing: but on ways with the arc in them

  Effect EffectOn(const std::vector<uint32_t>& distances, uint32_t arc, uint32_t tail, uint32_t head) const {
    const uint32_t before = distances[tail], beyond = distances[head];
    if (beyond == kNone) return Effect::kNothing;
    if (Up(arc)) {
      if (before == kNone || before > beyond + 1) return Effect::kDistances;
      return before == beyond + 1 ? Effect::kWays : Effect::kNothing;
    }
    if (before != beyond + 1) return Effect::kNothing;
    for (const SwitchGraph::Arc& other : switches_.Arcs(tail))
      if (Up(other.arc) && distances[other.to] != kNone && distances[other.to] + 1 == before) return Effect::kNothing;
    return Effect::kDistances;
  }

  void Drop(Templates& kept, const absl::flat_hash_map<uint32_t, bool>& may_stay, absl::FunctionRef<bool(uint32_t)> touched) {
    for (auto it = kept.begin(); it != kept.end();) {
      const Template& way = *it->second;
      const auto found = may_stay.find(static_cast<uint32_t>(it->first));
      const bool stays = found != may_stay.end() && found->second && !way.of_classes &&
                         std::none_of(way.turns.begin(), way.turns.end(), [&](const Turn& turn) {
                           return (turn.code & ~kIndexMask) == kFabric && touched(turn.code & kIndexMask);
                         });
      if (stays) {
        ++it;
        continue;
      }
      kept_turns_ -= Size(way);
      kept.erase(it++);
    }
  }

  const Graph& graph_;
  std::vector<double> rates_;                     // of each arc
  const SwitchGraph switches_;
  HostClasses hosts_;
  mutable absl::flat_hash_map<uint32_t, std::vector<uint32_t>> distances_;   // of switches, by class of the receiver
  mutable Templates of_kinds_, of_classes_;       // by those of sender and receiver
  mutable size_t kept_turns_ = 0;
  mutable std::vector<uint32_t> near_, node_of_;  // of each vertex; kNone but during Make
};

}  // namespace

bool Routes::AddLoads(std::span<const Part> senders, std::span<const Part> receivers, std::vector<double>* load) const {
  bool complete = true;
  for (const Part& from : senders)
    for (const Part& to : receivers)
      complete = Spread(from.host, to.host, [&](uint32_t arc, double share) { (*load)[arc] += share * from.weight * to.weight; }) && complete;
  return complete;
}

std::unique_ptr<Routes> Routes::Create(const Graph* graph) { return std::make_unique<GraphRoutes>(graph); }

}  // namespace sluice::fabric
