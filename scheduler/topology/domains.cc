#include "scheduler/topology/domains.h"

#include <algorithm>
#include <utility>

#include "scheduler/topology/complete.h"

namespace sluice::topology {

// Tarjan's search numbers switches in preorder, so a subtree is a range of numbers. Removing switch s leaves, of its
// component, one part for each child whose subtree reaches nothing above s, and the rest (nothing, if s is the root).
// Switches outside the main part, and s itself, form the "shadow" of s: a host is parted by the loss of s if all its
// switches are in it.
class DomainFinder {
 public:
  explicit DomainFinder(const Graph& graph) : graph_(graph), hosts_(graph.Hosts()) {}

  Domains Run() {
    Attach();
    Search();
    Shadows();
    return Collect();
  }

 private:
  static constexpr uint32_t kUnseen = kNone;
  using Range = std::pair<uint32_t, uint32_t>;   // numbers, end excluded

  struct Shadow {
    uint32_t of = 0;             // number of the switch
    uint32_t size = 0;           // numbers in it
    std::vector<Range> ranges;
  };

  bool IsSwitch(uint32_t v) const { return graph_.vertex(v).host == kNone; }

  // The switches of each host.
  void Attach() {
    std::vector<std::pair<uint32_t, uint32_t>> pairs;   // host, switch
    for (const Link& link : graph_.links()) {
      if (IsSwitch(link.a) == IsSwitch(link.b) || !IsNetworkLink(graph_, link)) continue;
      const uint32_t inside = IsSwitch(link.a) ? link.b : link.a, outside = IsSwitch(link.a) ? link.a : link.b;
      pairs.push_back({graph_.vertex(inside).host, outside});
    }
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    attached_first_.assign(graph_.vertices().size() + 1, 0);
    for (const auto& [host, leaf] : pairs) ++attached_first_[host + 1];
    for (size_t v = 0; v < graph_.vertices().size(); ++v) attached_first_[v + 1] += attached_first_[v];
    for (const auto& [host, leaf] : pairs) attached_.push_back(leaf);
  }

  std::span<const uint32_t> Attached(uint32_t host) const {
    return std::span(attached_).subspan(attached_first_[host], attached_first_[host + 1] - attached_first_[host]);
  }

  void Search() {
    const size_t vertices = graph_.vertices().size();
    number_.assign(vertices, kUnseen);
    struct Frame {
      uint32_t vertex, parent;
      size_t next = 0;
    };
    std::vector<Frame> stack;
    for (uint32_t root = 0; root < vertices; ++root) {
      if (!IsSwitch(root) || number_[root] != kUnseen) continue;
      stack.push_back({root, kNone});
      while (!stack.empty()) {
        Frame& frame = stack.back();
        const uint32_t v = frame.vertex;
        if (frame.next == 0 && number_[v] == kUnseen) Enter(v, frame.parent);
        const auto incident = graph_.Incident(v);
        if (frame.next == incident.size()) {
          Leave(v, frame.parent);
          stack.pop_back();
          continue;
        }
        const Graph::Half half = incident[frame.next++];
        if (!IsSwitch(half.to) || !IsNetworkLink(graph_, graph_.link(half.link))) continue;
        if (number_[half.to] == kUnseen) stack.push_back({half.to, v});
        else if (half.to != frame.parent) low_[number_[v]] = std::min(low_[number_[v]], number_[half.to]);
      }
    }
    // Hosts count at each of their switches in equal parts.
    weight_.assign(vertex_.size() + 1, 0);
    for (const uint32_t host : hosts_)
      for (const uint32_t leaf : Attached(host)) weight_[number_[leaf] + 1] += 1.0 / static_cast<double>(Attached(host).size());
    for (size_t n = 0; n < vertex_.size(); ++n) weight_[n + 1] += weight_[n];
  }

  void Enter(uint32_t v, uint32_t parent) {
    number_[v] = static_cast<uint32_t>(vertex_.size());
    vertex_.push_back(v);
    low_.push_back(number_[v]);
    end_.push_back(0);
    parent_.push_back(parent == kNone ? kNone : number_[parent]);
    root_.push_back(parent == kNone ? number_[v] : root_[number_[parent]]);
  }

  void Leave(uint32_t v, uint32_t parent) {
    end_[number_[v]] = static_cast<uint32_t>(vertex_.size());
    if (parent != kNone) low_[number_[parent]] = std::min(low_[number_[parent]], low_[number_[v]]);
  }

  double Weight(Range range) const { return weight_[range.second] - weight_[range.first]; }

  void Shadows() {
    const uint32_t count = static_cast<uint32_t>(vertex_.size());
    std::vector<std::vector<Range>> parted(count);   // subtrees that the loss of a switch cuts off from what is above it
    for (uint32_t n = 0; n < count; ++n)
      if (parent_[n] != kNone && low_[n] >= parent_[n]) parted[parent_[n]].push_back({n, end_[n]});
    for (uint32_t s = 0; s < count; ++s) shadows_.push_back(ShadowOf(s, parted[s]));
    std::stable_sort(shadows_.begin(), shadows_.end(), [](const Shadow& a, const Shadow& b) { return a.size < b.size; });
  }

  Shadow ShadowOf(uint32_t s, const std::vector<Range>& subtrees) const {
    const Range whole = {root_[s], end_[root_[s]]};
    // The rest above: whole without s and its parted subtrees.
    double rest_weight = Weight(whole) - Weight({s, s + 1});
    uint32_t rest_size = whole.second - whole.first - 1;
    for (const Range& r : subtrees) {
      rest_weight -= Weight(r);
      rest_size -= r.second - r.first;
    }
    constexpr size_t kRest = ~size_t{0}, kNobody = kRest - 1;
    size_t main = rest_size > 0 ? kRest : kNobody;
    double main_weight = rest_size > 0 ? rest_weight : -1;
    uint32_t main_size = rest_size;
    for (size_t i = 0; i < subtrees.size(); ++i) {
      const double weight = Weight(subtrees[i]);
      const uint32_t size = subtrees[i].second - subtrees[i].first;
      const bool equal = weight > main_weight - kSlack && weight < main_weight + kSlack;
      if ((equal && size == main_size)) {
        main = kNobody;
      } else if (equal ? size > main_size : weight > main_weight) {
        main = i;
        main_weight = weight;
        main_size = size;
      }
    }
    Shadow shadow{.of = s, .ranges = {{s, s + 1}}};
    if (main == kNobody || main_weight < kSlack) {   // all is parted from all, or nobody is left
      shadow.ranges = {whole};
    } else if (main == kRest) {
      shadow.ranges.insert(shadow.ranges.end(), subtrees.begin(), subtrees.end());
    } else {
      shadow.ranges = {{whole.first, subtrees[main].first}, {subtrees[main].second, whole.second}};
    }
    for (const Range& r : shadow.ranges) shadow.size += r.second - r.first;
    return shadow;
  }

  // Narrowest first. A budget bounds what chains of switches, each in the shadow of the next, would make.
  Domains Collect() {
    // Single-homed hosts by the number of their switch, so that a range of switches is a range of hosts; others need all
    // their switches in the shadow.
    const uint32_t count = static_cast<uint32_t>(vertex_.size());
    std::vector<std::vector<uint32_t>> at(count), several(count);   // of each switch
    for (const uint32_t host : hosts_)
      for (const uint32_t leaf : Attached(host)) (Attached(host).size() == 1 ? at : several)[number_[leaf]].push_back(host);
    std::vector<std::vector<uint32_t>> ids(graph_.vertices().size());
    Domains domains;
    for (const uint32_t host : hosts_) {
      ids[host].push_back(static_cast<uint32_t>(domains.all_.size()));
      domains.all_.push_back({host, 1});
    }
    size_t budget = 64 * (graph_.vertices().size() + graph_.links().size());
    std::vector<uint32_t> seen(graph_.vertices().size());   // switches of a host that are in the shadow at hand
    std::vector<std::pair<Domain, std::vector<uint32_t>>> found;
    for (const Shadow& shadow : shadows_) {
      size_t cost = 1;
      for (const auto& [from, end] : shadow.ranges)
        for (uint32_t n = from; n < end; ++n) cost += 1 + at[n].size() + several[n].size();
      if (cost > budget) break;
      budget -= cost;
      std::vector<uint32_t> members, touched;
      for (const auto& [from, end] : shadow.ranges)
        for (uint32_t n = from; n < end; ++n) {
          members.insert(members.end(), at[n].begin(), at[n].end());
          for (const uint32_t host : several[n]) {
            if (seen[host]++ == 0) touched.push_back(host);
            if (seen[host] == Attached(host).size()) members.push_back(host);
          }
        }
      for (const uint32_t host : touched) seen[host] = 0;
      if (members.empty()) continue;
      found.push_back({{vertex_[shadow.of], static_cast<uint32_t>(members.size())}, std::move(members)});
    }
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first.hosts < b.first.hosts; });
    for (const auto& [domain, members] : found) {
      for (const uint32_t host : members) ids[host].push_back(static_cast<uint32_t>(domains.all_.size()));
      domains.all_.push_back(domain);
    }
    domains.first_.push_back(0);
    for (const std::vector<uint32_t>& of : ids) {
      domains.ids_.insert(domains.ids_.end(), of.begin(), of.end());
      domains.first_.push_back(static_cast<uint32_t>(domains.ids_.size()));
    }
    return domains;
  }

  static constexpr double kSlack = 1e-6;   // of sums of parts of hosts

  const Graph& graph_;
  const std::vector<uint32_t> hosts_;
  std::vector<uint32_t> attached_first_, attached_;
  std::vector<uint32_t> number_;                          // of each vertex
  std::vector<uint32_t> vertex_, low_, end_, parent_, root_;   // by number
  std::vector<double> weight_;                            // of all below a number: hosts
  std::vector<Shadow> shadows_;
};

Domains Domains::Find(const Graph& graph) { return DomainFinder(graph).Run(); }

std::span<const uint32_t> Domains::Of(uint32_t host) const {
  if (host + size_t{1} >= first_.size()) return {};
  return std::span(ids_).subspan(first_[host], first_[host + 1] - first_[host]);
}

uint32_t Domains::Common(uint32_t host_a, uint32_t host_b) const {
  // Ids rise from narrow to wide, so both lists are sorted.
  const auto a = Of(host_a), b = Of(host_b);
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) return a[i];
    if (a[i] < b[j]) ++i;
    else ++j;
  }
  return kNone;
}

}  // namespace sluice::topology
