#include "scheduler/fabric/way_templates.h"

#include <algorithm>
#include <utility>

namespace sluice::fabric {
namespace {

using topology::kNone;

constexpr size_t kMaxKeptDistances = size_t{1} << 26;   // 256 MiB
constexpr size_t kMaxKeptTurns = size_t{1} << 24;       // 192 MiB

uint64_t Pair(uint32_t from, uint32_t to) { return uint64_t{from} << 32 | to; }
size_t Size(const Template& way) { return way.turns.size() + way.first.size() + 8; }   // in turns
bool Has(const std::vector<uint32_t>& list, uint32_t value) { return std::find(list.begin(), list.end(), value) != list.end(); }

}  // namespace

WayTemplates::WayTemplates(const topology::Graph& graph, const std::vector<double>& rates)
    : graph_(graph), rates_(rates), switches_(graph), hosts_(graph, switches_, rates) {
  near_.assign(graph_.vertices().size(), kNone);
  node_of_.assign(graph_.vertices().size(), kNone);
}

const std::shared_ptr<const Template>& WayTemplates::Find(uint32_t from, uint32_t to) const {
  const HostClasses::Class &sender = hosts_.Of(from), &receiver = hosts_.Of(to);
  if (!hosts_.ShareLeaf(sender, receiver)) {
    const auto& found = FindIn(of_kinds_, Pair(sender.kind, receiver.kind), from, to, true);
    if (!found->of_classes) return found;
  }
  return FindIn(of_classes_, Pair(hosts_.ClassOf(from), hosts_.ClassOf(to)), from, to, false);
}

const std::shared_ptr<const Template>& WayTemplates::FindIn(Templates& kept, uint64_t key, uint32_t from, uint32_t to, bool of_kinds) const {
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

// Fills near_ of the vertices of host `to` with their distances to it.
void WayTemplates::NearReceiver(uint32_t to) const {
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
void WayTemplates::NearSender(uint32_t from, uint32_t to, const std::vector<uint32_t>& distances) const {
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

uint32_t WayTemplates::DistanceAt(uint32_t v, uint32_t from, uint32_t to, const std::vector<uint32_t>& distances) const {
  const uint32_t host = graph_.vertex(v).host;
  if (host == kNone) return distances[switches_.Number(v)];
  return host == from || host == to ? near_[v] : kNone;
}

void WayTemplates::Forget(uint32_t host) const {
  near_[host] = kNone;
  for (const uint32_t arc : hosts_.Arcs(host))
    if (graph_.vertex(hosts_.Head(arc)).host == host) near_[hosts_.Head(arc)] = kNone;
}

// Of each switch, to a host of the class of `to`, whose near_ is there.
const std::vector<uint32_t>& WayTemplates::Distances(uint32_t to) const {
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

Template WayTemplates::Make(uint32_t from, uint32_t to, bool of_kinds) const {
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
absl::flat_hash_map<uint32_t, uint32_t> WayTemplates::Places(uint32_t from, uint32_t to, bool of_kinds) const {
  absl::flat_hash_map<uint32_t, uint32_t> places;
  const Ends ends = EndsOf(from, to);
  for (uint32_t i = 0; i < ends.sender.size(); ++i) places[ends.sender[i]] = kSender | i;
  for (uint32_t i = 0; i < ends.receiver.size(); ++i) places[ends.receiver[i] ^ 1] = kReceiver | i;
  if (!of_kinds) return places;
  for (uint32_t i = 0; i < ends.sender_leaf.size(); ++i) places[ends.sender_leaf[i]] = kSenderLeaf | i;
  for (uint32_t i = 0; i < ends.receiver_leaf.size(); ++i) places[ends.receiver_leaf[i] ^ 1] = kReceiverLeaf | i;
  return places;
}

bool WayTemplates::IsLeaf(uint32_t number, uint32_t from, uint32_t to) const {
  return Has(hosts_.Of(from).leaves, number) || Has(hosts_.Of(to).leaves, number);
}

// Whether on a way from a switch another pair of the same kinds may differ in more than its own and its leaves' arcs: the
// switch is no leaf, but a twin of one, so a leaf to other pairs; or it is a leaf, and so is the next.
bool WayTemplates::IsPeculiar(uint32_t number, uint32_t next, uint32_t from, uint32_t to) const {
  if (IsLeaf(number, from, to)) return next != kNone && IsLeaf(next, from, to);
  return Has(hosts_.Of(from).twins, hosts_.TwinsOf(number)) || Has(hosts_.Of(to).twins, hosts_.TwinsOf(number));
}

// Nodes are found in order of their distance, so a node's share is complete when its turn comes.
void WayTemplates::FillTurns(uint32_t from, uint32_t to, const std::vector<uint32_t>& distances, bool of_kinds, Template* way) const {
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

// Of a kind any class speaks for all, as all twins are at the same
// distances from the rest of the network; but for those whose kind has just changed.
void WayTemplates::Changed(uint32_t arc) {
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

WayTemplates::Effect WayTemplates::EffectOn(const std::vector<uint32_t>& distances, uint32_t arc, uint32_t tail, uint32_t head) const {
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

void WayTemplates::Drop(Templates& kept, const absl::flat_hash_map<uint32_t, bool>& may_stay, absl::FunctionRef<bool(uint32_t)> touched) {
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

}  // namespace sluice::fabric
