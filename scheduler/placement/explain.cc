#include "scheduler/placement/explain.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "scheduler/placement/arc_loads.h"

namespace sluice::placement {
namespace {

using topology::kNone;
using topology::VertexKind;

std::string LastPart(const std::string& name) { return name.substr(name.rfind('/') + 1); }

// Connected parts that hold a host.
size_t Fabrics(const topology::Graph& graph) {
  std::vector<char> seen(graph.vertices().size());
  size_t fabrics = 0;
  std::vector<uint32_t> stack;
  for (const uint32_t host : graph.Hosts()) {
    if (seen[host]) continue;
    ++fabrics;
    stack.push_back(host);
    seen[host] = 1;
    while (!stack.empty()) {
      const uint32_t v = stack.back();
      stack.pop_back();
      // A host and what is inside it are one.
      for (const auto& half : graph.Incident(v)) {
        if (seen[half.to]) continue;
        seen[half.to] = 1;
        stack.push_back(half.to);
      }
    }
  }
  return fabrics;
}

}  // namespace

std::string TopologyLine(const topology::Graph& graph) {
  size_t hosts = 0, switches = 0;
  uint64_t slots = 0;
  for (const topology::Vertex& vertex : graph.vertices()) {
    hosts += vertex.kind == VertexKind::kHost;
    switches += vertex.kind == VertexKind::kSwitch;
    if (vertex.kind == VertexKind::kHost) slots += vertex.slots;
  }
  const size_t fabrics = Fabrics(graph);
  return absl::StrCat(hosts, " hosts (", slots, " slots), ", switches, " switches, ", graph.links().size(), " links",
                      fabrics > 1 ? absl::StrCat("; ", fabrics, " fabrics that nothing joins") : "");
}

void FillBusiest(const topology::Graph& graph, const fabric::Routes& routes, const std::vector<double>& arc_bytes, size_t count,
                 proto::Explanation* explanation) {
  for (const Busiest& busy : BusiestOf(arc_bytes, routes, count)) {
    const topology::Link& link = graph.link(busy.arc / 2);
    const bool from_a = busy.arc % 2 == 0;
    proto::LinkLoad* load = explanation->add_busiest();
    load->set_from(graph.vertex(from_a ? link.a : link.b).name);
    load->set_to(graph.vertex(from_a ? link.b : link.a).name);
    load->set_bytes(arc_bytes[busy.arc]);
    load->set_bytes_per_second(routes.BytesPerSecond(busy.arc));
    load->set_busy_ms(1e3 * busy.seconds);
    load->set_source(std::string(topology::SourceName(link.source)));
  }
}

void FillTimes(double compute_ms, double communication_s, double bound_s, proto::Explanation* explanation) {
  explanation->set_compute_ms(compute_ms);
  explanation->set_communication_ms(1e3 * communication_s);
  explanation->set_bound_ms(1e3 * bound_s);
  explanation->set_step_ms(compute_ms + 1e3 * communication_s);
}

std::vector<std::string> DevicesOf(const topology::Graph& graph, uint32_t host) {
  std::vector<uint32_t> gpus, nics;
  // What is inside a host hangs on it or on each other.
  std::map<uint32_t, char> inside;
  std::vector<uint32_t> stack;
  const auto visit = [&](uint32_t v) {
    if (graph.vertex(v).host == host && inside.emplace(v, 1).second) stack.push_back(v);
  };
  visit(host);
  while (!stack.empty()) {
    const uint32_t v = stack.back();
    stack.pop_back();
    if (graph.vertex(v).kind == VertexKind::kGpu) gpus.push_back(v);
    if (graph.vertex(v).kind == VertexKind::kNic) nics.push_back(v);
    for (const auto& half : graph.Incident(v)) visit(half.to);
  }
  std::sort(gpus.begin(), gpus.end());
  std::sort(nics.begin(), nics.end());
  std::vector<std::string> devices;
  std::map<uint32_t, uint32_t> given;
  for (const uint32_t gpu : gpus) {
    std::map<uint32_t, uint32_t> distance{{gpu, 0}};
    std::deque<uint32_t> queue{gpu};
    while (!queue.empty()) {
      const uint32_t v = queue.front();
      queue.pop_front();
      for (const auto& half : graph.Incident(v)) {
        // Not through another GPU: a NIC is reached over PCIe.
        if (graph.vertex(half.to).host != host || graph.vertex(half.to).kind == VertexKind::kGpu) continue;
        if (distance.emplace(half.to, distance[v] + 1).second) queue.push_back(half.to);
      }
    }
    uint32_t best = kNone;
    const auto rank = [&](uint32_t nic) { return std::tuple(distance.count(nic) ? distance[nic] : kNone, given[nic], nic); };
    for (const uint32_t nic : nics)
      if (best == kNone || rank(nic) < rank(best)) best = nic;
    if (best != kNone) ++given[best];
    devices.push_back(absl::StrCat(LastPart(graph.vertex(gpu).name), best == kNone ? "" : absl::StrCat(" ", LastPart(graph.vertex(best).name))));
  }
  return devices;
}

std::vector<std::string> NotesOn(const topology::Graph& graph) {
  std::vector<std::string> notes;
  size_t assumed = 0, network = 0;
  for (const topology::Link& link : graph.links()) {
    if (graph.vertex(link.a).host != kNone && graph.vertex(link.b).host != kNone) continue;
    ++network;
    assumed += link.source == topology::Source::kAssumed;
  }
  if (assumed > 0)
    notes.push_back(absl::StrCat("the bandwidth of ", assumed, " of ", network,
                                 " network links is assumed (topology.link_bytes, topology.oversubscription); no file says it and nothing measured it"));
  if (const size_t fabrics = Fabrics(graph); fabrics > 1)
    notes.push_back(absl::StrCat("nothing joins the ", fabrics, " fabrics of this topology: a job runs in one of them"));
  return notes;
}

}  // namespace sluice::placement
