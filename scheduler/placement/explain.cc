#include "scheduler/placement/explain.h"

#include "absl/strings/str_cat.h"
#include "scheduler/topology/formats/affinity.h"

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

std::vector<std::string> DeviceNames(const topology::Graph& graph, uint32_t host) {
  const topology::HostDevices devices = topology::OrderDevices(graph, host);
  std::vector<std::string> names;
  for (size_t i = 0; i < devices.gpus.size(); ++i)
    names.push_back(absl::StrCat(LastPart(graph.vertex(devices.gpus[i]).name),
                                 devices.nics[i] == kNone ? "" : absl::StrCat(" ", LastPart(graph.vertex(devices.nics[i]).name))));
  return names;
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
