// Spread(), Way() and AddLoads() read the templates of ways that way_templates.h makes and keeps.
#include "scheduler/fabric/routes.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "scheduler/fabric/way_templates.h"

namespace sluice::fabric {
namespace {

using topology::Graph;
using topology::kNone;

uint64_t Mix(uint64_t x) {   // splitmix64's finalizer (Steele, Lea, Flood, OOPSLA 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class GraphRoutes final : public Routes {
 public:
  explicit GraphRoutes(const Graph* graph) : graph_(*graph), rates_(Rates(*graph)), templates_(*graph, rates_), hosts_(templates_.hosts()) {}

  size_t arcs() const override { return rates_.size(); }
  double BytesPerSecond(uint32_t arc) const override { return rates_[arc]; }

  void SetBytesPerSecond(uint32_t arc, double bytes_per_second) override {
    const bool was_up = Up(arc);
    rates_[arc] = std::max(0.0, bytes_per_second);
    if (was_up != Up(arc)) templates_.Changed(arc);
  }

  bool Spread(uint32_t from, uint32_t to, absl::FunctionRef<void(uint32_t, double)> each) const override {
    if (!AreHosts(from, to)) return false;
    if (from == to) return true;
    const Template& way = *templates_.Find(from, to);
    if (way.hops == kNone) return false;
    const Ends ends = templates_.EndsOf(from, to);
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
        const auto& way = templates_.Find(from.members.front().first, to.members.back().first);
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
    const Template& way = *templates_.Find(from, to);
    if (way.hops == kNone) return false;
    const Ends ends = templates_.EndsOf(from, to);
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
    return from == to ? 0 : templates_.Find(from, to)->hops;
  }

 private:
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
  static std::vector<double> Rates(const Graph& graph) {
    std::vector<double> rates;
    rates.reserve(2 * graph.links().size());
    for (const topology::Link& link : graph.links()) rates.insert(rates.end(), 2, link.bytes_per_second);
    return rates;
  }
  bool Up(uint32_t arc) const { return rates_[arc] > 0; }
  bool AreHosts(uint32_t a, uint32_t b) const { return hosts_.IsHost(a) && hosts_.IsHost(b); }

  const Graph& graph_;
  std::vector<double> rates_;      // of each arc
  WayTemplates templates_;
  const HostClasses& hosts_;
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
