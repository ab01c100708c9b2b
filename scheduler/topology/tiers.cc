#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "scheduler/topology/complete.h"
#include "scheduler/topology/domains.h"

namespace sluice::topology {
namespace {

constexpr uint32_t kMaxTiers = 16;   // levels beyond are one tier

class Sets {
 public:
  explicit Sets(size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), 0); }
  uint32_t Find(uint32_t v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }
  void Join(uint32_t a, uint32_t b) { parent_[Find(b)] = Find(a); }

 private:
  std::vector<uint32_t> parent_;
};

std::string NameOf(size_t tier) {
  static constexpr const char* kNames[] = {"host", "rack", "zone", "core"};
  return tier < std::size(kNames) ? kNames[tier] : absl::StrCat("tier", tier + 1);
}

// What a GPU has towards the others of its host, for the GPU that has least.
TierSpec InsideHosts(const Graph& graph, const std::vector<uint32_t>& hosts) {
  std::vector<bool> chosen(graph.vertices().size());
  for (const uint32_t host : hosts) chosen[host] = true;
  double least = 0, latency = kMemoryLatency;
  for (uint32_t v = 0; v < graph.vertices().size(); ++v) {
    const Vertex& vertex = graph.vertex(v);
    if (vertex.kind != VertexKind::kGpu || vertex.host == kNone || !chosen[vertex.host]) continue;
    double fast = 0, slow = 0;
    for (const Graph::Half& half : graph.Incident(v)) {
      const Link& link = graph.link(half.link);
      (link.medium == Medium::kNvlink || link.medium == Medium::kXgmi ? fast : slow) += link.bytes_per_second;
      latency = std::max(latency, 2 * link.latency_s);
    }
    const double speed = fast > 0 ? fast : slow;
    if (speed > 0) least = least == 0 ? speed : std::min(least, speed);
  }
  return {"host", least > 0 ? least : kMemoryBytesPerSecond, latency};
}

class TierFinder {
 public:
  TierFinder(const Graph& graph, const std::vector<uint32_t>& hosts)
      : graph_(graph), hosts_(hosts), levels_(Levels(graph, hosts)), sets_(graph.vertices().size()) {
    result_.coordinates.resize(hosts.size());
  }

  Tiers Run() {
    for (uint32_t v = 0; v < graph_.vertices().size(); ++v)   // a host is one with what is inside it
      if (graph_.vertex(v).host != kNone) sets_.Join(graph_.vertex(v).host, v);
    uint32_t top = 0;
    for (const uint32_t level : levels_)
      if (level != kNone) top = std::max(top, level);
    Take(InsideHosts(graph_, hosts_));
    double latency = 0, bandwidth = std::numeric_limits<double>::infinity();
    for (uint32_t level = 1; level <= top && !Whole(); ++level) {
      bandwidth = std::min(bandwidth, CutShare());   // of the domains as they are: those of the tier below
      latency += 2 * JoinLevel(level < kMaxTiers ? level : top);
      if (Domains() < domains_) Take({"", bandwidth, latency});
    }
    if (!Whole()) {   // fabrics that nothing joins
      std::vector<uint32_t> all(hosts_.size(), 0);
      Add({NameOf(result_.tiers.size()), 0, 0}, all);
    }
    return std::move(result_);
  }

 private:
  bool IsMember(uint32_t v) const { return graph_.vertex(v).host != kNone; }

  std::vector<uint32_t> Numbers() {
    absl::flat_hash_map<uint32_t, uint32_t> numbers;
    std::vector<uint32_t> of;
    for (const uint32_t host : hosts_)
      of.push_back(numbers.emplace(sets_.Find(host), static_cast<uint32_t>(numbers.size())).first->second);
    return of;
  }

  uint32_t Domains() {
    uint32_t most = 0;
    for (const uint32_t n : Numbers()) most = std::max(most, n + 1);
    return most;
  }

  bool Whole() const { return domains_ <= 1; }

  void Add(TierSpec spec, const std::vector<uint32_t>& numbers) {
    result_.tiers.push_back(std::move(spec));
    for (size_t i = 0; i < hosts_.size(); ++i) result_.coordinates[i].push_back(numbers[i]);
  }

  void Take(TierSpec spec) {
    spec.name = NameOf(result_.tiers.size());
    const std::vector<uint32_t> numbers = Numbers();
    domains_ = 0;
    for (const uint32_t n : numbers) domains_ = std::max(domains_, n + 1);
    Add(std::move(spec), numbers);
  }

  // Bandwidth out of each set by the workers in it, for the one that has least; sets without workers do not count.
  double CutShare() {
    std::vector<double> out(graph_.vertices().size());
    std::vector<uint32_t> workers(graph_.vertices().size());
    for (const uint32_t host : hosts_) ++workers[sets_.Find(host)];
    for (const Link& link : graph_.links()) {
      const uint32_t a = sets_.Find(link.a), b = sets_.Find(link.b);
      if (a == b || !IsNetworkLink(graph_, link)) continue;
      out[a] += link.bytes_per_second;
      out[b] += link.bytes_per_second;
    }
    double least = std::numeric_limits<double>::infinity();
    for (const uint32_t host : hosts_) {
      const uint32_t set = sets_.Find(host);
      if (out[set] > 0) least = std::min(least, out[set] / workers[set]);
    }
    return least;
  }

  // Joins what switches up to `level` join; returns the mean latency of the links used.
  double JoinLevel(uint32_t level) {
    double sum = 0;
    size_t count = 0;
    for (const Link& link : graph_.links()) {
      if (!IsNetworkLink(graph_, link)) continue;
      const uint32_t high = std::max(levels_[link.a], levels_[link.b]);
      if (high == kNone || high > level) continue;
      // A host joins its switches, as it is in one rack with whatever shares a rail with it; between two hosts too.
      if (sets_.Find(link.a) == sets_.Find(link.b)) continue;
      if ((IsMember(link.a) && !Chosen(link.a)) || (IsMember(link.b) && !Chosen(link.b))) continue;
      sum += link.latency_s;
      ++count;
      sets_.Join(link.a, link.b);
    }
    return count > 0 ? sum / static_cast<double>(count) : 0;
  }

  // Hosts without workers join nothing.
  bool Chosen(uint32_t v) {
    if (chosen_.empty()) {
      chosen_.resize(graph_.vertices().size());
      for (const uint32_t host : hosts_) chosen_[host] = true;
    }
    return chosen_[graph_.vertex(v).host];
  }

  const Graph& graph_;
  const std::vector<uint32_t>& hosts_;
  const std::vector<uint32_t> levels_;
  Sets sets_;
  std::vector<bool> chosen_;
  uint32_t domains_ = 0;   // of the last tier
  Tiers result_;
};

}  // namespace

Tiers FindTiers(const Graph& graph, const std::vector<uint32_t>& hosts) { return TierFinder(graph, hosts).Run(); }

}  // namespace sluice::topology
