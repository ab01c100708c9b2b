#include "scheduler/fabric/host_classes.h"

#include <algorithm>
#include <utility>

#include "scheduler/topology/complete.h"

namespace sluice::fabric {

using topology::Graph;
using topology::kNone;
using topology::Link;
using topology::VertexKind;

SwitchGraph::SwitchGraph(const Graph& graph) : number_(graph.vertices().size(), kNone) {
  for (uint32_t v = 0; v < graph.vertices().size(); ++v) {
    if (graph.vertex(v).host != kNone) continue;
    number_[v] = static_cast<uint32_t>(vertices_.size());
    vertices_.push_back(v);
  }
  for (const uint32_t v : vertices_) {
    first_.push_back(static_cast<uint32_t>(arcs_.size()));
    for (const Graph::Half& half : graph.Incident(v)) {
      const Link& link = graph.link(half.link);
      if (number_[half.to] != kNone && IsNetworkLink(graph, link))
        arcs_.push_back({2 * half.link + (link.a == v ? 0 : 1), number_[half.to]});
    }
    std::stable_sort(arcs_.begin() + first_.back(), arcs_.end(), [](const Arc& x, const Arc& y) { return x.to < y.to; });
  }
  first_.push_back(static_cast<uint32_t>(arcs_.size()));
}

HostClasses::HostClasses(const Graph& graph, const SwitchGraph& switches, const std::vector<double>& rates)
    : graph_(graph),
      switches_(switches),
      rates_(rates),
      class_of_(graph.vertices().size(), kNone),
      twins_(switches.size()),
      classes_at_(switches.size()),
      local_(graph.vertices().size(), kNone) {
  first_.reserve(graph.vertices().size() + 1);
  first_.push_back(0);
  for (uint32_t v = 0; v < graph.vertices().size(); ++v) {
    if (graph.vertex(v).kind == VertexKind::kHost) Walk(v);
    first_.push_back(static_cast<uint32_t>(arcs_.size()));
  }
  for (uint32_t s = 0; s < switches.size(); ++s) FindTwins(s);
  for (uint32_t v = 0; v < graph.vertices().size(); ++v)
    if (graph.vertex(v).kind == VertexKind::kHost) Classify(v);
}

void HostClasses::Walk(uint32_t host) {
  std::vector<uint32_t> queue = {host};
  local_[host] = 0;
  for (size_t i = 0; i < queue.size(); ++i) {
    for (const Graph::Half& half : graph_.Incident(queue[i])) {
      const Link& link = graph_.link(half.link);
      const topology::Vertex& to = graph_.vertex(half.to);
      const bool inside = to.host == host;
      if (to.kind == VertexKind::kGpu || (!inside && !IsNetworkLink(graph_, link))) continue;
      arcs_.push_back(2 * half.link + (link.a == queue[i] ? 0 : 1));
      if (!inside || local_[half.to] != kNone) continue;
      local_[half.to] = static_cast<uint32_t>(queue.size());
      queue.push_back(half.to);
    }
  }
  for (const uint32_t v : queue) local_[v] = kNone;
}

void HostClasses::FindTwins(uint32_t switch_number) {
  Key key;
  for (const SwitchGraph::Arc& arc : switches_.Arcs(switch_number))
    key.insert(key.end(), {arc.to, graph_.link(arc.arc >> 1).cables, State(arc.arc)});
  twins_[switch_number] = twin_numbers_.emplace(std::move(key), static_cast<uint32_t>(twin_numbers_.size())).first->second;
}

void HostClasses::Classify(uint32_t host) {
  // The shape: as arcs, with vertices and leaves numbered as they come.
  Key shape;
  std::vector<uint32_t> inside = {host}, leaves;
  local_[host] = 0;
  bool direct = false;   // on a link to another host: of a shape of its own
  for (const uint32_t arc : Arcs(host)) {
    const uint32_t tail = Tail(arc), head = Head(arc), owner = graph_.vertex(head).host;
    uint32_t to = head;
    if (owner == host) {
      if (local_[head] == kNone) {
        local_[head] = static_cast<uint32_t>(inside.size());
        inside.push_back(head);
      }
      to = local_[head];
    } else if (owner == kNone) {
      to = static_cast<uint32_t>(std::find(leaves.begin(), leaves.end(), switches_.Number(head)) - leaves.begin());
      if (to == leaves.size()) leaves.push_back(switches_.Number(head));
    } else {
      direct = true;
    }
    shape.insert(shape.end(), {local_[tail], owner == host ? 0u : owner == kNone ? 1u : 2u, to,
                               graph_.link(arc >> 1).cables, State(arc)});
  }
  if (direct) shape.push_back(host);
  for (const uint32_t v : inside) local_[v] = kNone;

  Class made;
  made.shape = shape_numbers_.emplace(std::move(shape), static_cast<uint32_t>(shape_numbers_.size())).first->second;
  Key key = leaves;
  key.push_back(made.shape);
  const auto [it, is_new] = class_numbers_.emplace(std::move(key), static_cast<uint32_t>(classes_.size()));
  class_of_[host] = it->second;
  if (!is_new) return;
  for (const uint32_t leaf : leaves) {
    made.mask |= uint64_t{1} << (leaf % 64);
    classes_at_[leaf].push_back(it->second);
    for (const SwitchGraph::Arc& arc : switches_.Arcs(leaf)) made.leaf_arcs.push_back(arc.arc);
  }
  made.leaves = std::move(leaves);
  FindKind(&made);
  classes_.push_back(std::move(made));
}

void HostClasses::FindKind(Class* of) {
  of->twins.clear();
  for (const uint32_t leaf : of->leaves) of->twins.push_back(twins_[leaf]);
  Key key = of->twins;
  key.push_back(of->shape);
  of->kind = kind_numbers_.emplace(std::move(key), static_cast<uint32_t>(kind_numbers_.size())).first->second;
}

bool HostClasses::ShareLeaf(const Class& a, const Class& b) const {
  if ((a.mask & b.mask) == 0) return false;
  return std::find_first_of(a.leaves.begin(), a.leaves.end(), b.leaves.begin(), b.leaves.end()) != a.leaves.end();
}

void HostClasses::Changed(uint32_t arc) {
  for (const uint32_t v : {Tail(arc), Head(arc)}) {
    if (const uint32_t host = graph_.vertex(v).host; host != kNone) {
      Classify(host);
      continue;
    }
    const uint32_t number = switches_.Number(v), before = twins_[number];
    FindTwins(number);
    if (twins_[number] == before) continue;
    for (const uint32_t c : classes_at_[number]) FindKind(&classes_[c]);
  }
}

}  // namespace sluice::fabric
