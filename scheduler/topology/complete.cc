#include "scheduler/topology/complete.h"

#include <algorithm>

namespace sluice::topology {
namespace {

constexpr double kNvlink = 20e9, kXgmi = 36e9, kPcie = 24e9, kSocket = 10e9;

double LatencyOf(Medium medium) {
  switch (medium) {
    case Medium::kNvlink:
    case Medium::kXgmi: return 0.6e-6;
    case Medium::kPcie: return 0.5e-6;
    case Medium::kSocket: return 0.2e-6;
    case Medium::kInfiniband: return 0.3e-6;
    case Medium::kUnknown:
    case Medium::kEthernet: break;
  }
  return 1e-6;
}

// Of a cable inside of a host.
double InsideSpeed(Medium medium) {
  switch (medium) {
    case Medium::kNvlink: return kNvlink;
    case Medium::kXgmi: return kXgmi;
    case Medium::kSocket: return kSocket;
    default: return kPcie;
  }
}

// Sums over the network links of a switch.
struct Sides {
  double below = 0;                  // bandwidth to lower levels
  double known_up = 0;               // bandwidth of the cables up that have one
  double known_up_cables = 0, up_cables = 0;
};

class Completion {
 public:
  Completion(Graph* graph, const Assumptions& assumptions)
      : graph_(*graph), assumptions_(assumptions), levels_(Levels(*graph, graph->Hosts())) {}

  void Run() {
    HostLinks();
    SwitchLinks();
    for (uint32_t l = 0; l < graph_.links().size(); ++l) {
      Link& link = graph_.link(l);
      if (link.bytes_per_second == 0 && !IsNetworkLink(graph_, link))
        link.bytes_per_second = std::max(InsideSpeed(link.medium) * link.cables, CardSpeed(link));
      if (link.latency_s == 0) link.latency_s = LatencyOf(link.medium);
    }
    Slots();
  }

 private:
  bool IsSwitch(uint32_t v) const { return graph_.vertex(v).host == kNone; }

  void HostLinks() {
    for (uint32_t l = 0; l < graph_.links().size(); ++l) {
      Link& link = graph_.link(l);
      const bool among_switches = IsSwitch(link.a) && IsSwitch(link.b);
      if (link.bytes_per_second == 0 && IsNetworkLink(graph_, link) &&
          (!among_switches || levels_[link.a] == levels_[link.b]))
        link.bytes_per_second = assumptions_.host_link_bytes_per_second * link.cables;
    }
  }

  // From the lowest level up, as a switch's cables up depend on those below it.
  void SwitchLinks() {
    std::vector<uint32_t> order;
    for (uint32_t v = 0; v < graph_.vertices().size(); ++v)
      if (IsSwitch(v) && levels_[v] != kNone) order.push_back(v);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t x, uint32_t y) { return levels_[x] < levels_[y]; });
    for (const uint32_t v : order) {
      Sides sides;
      for (const Graph::Half& half : graph_.Incident(v)) {
        const Link& link = graph_.link(half.link);
        if (!IsNetworkLink(graph_, link)) continue;
        if (levels_[half.to] < levels_[v]) sides.below += link.bytes_per_second;
        if (levels_[half.to] <= levels_[v]) continue;
        sides.up_cables += link.cables;
        if (link.bytes_per_second == 0) continue;
        sides.known_up += link.bytes_per_second;
        sides.known_up_cables += link.cables;
      }
      const double cable = sides.known_up_cables > 0 ? sides.known_up / sides.known_up_cables
                                                     : sides.below / assumptions_.oversubscription / sides.up_cables;
      for (const Graph::Half& half : graph_.Incident(v)) {
        Link& link = graph_.link(half.link);
        if (link.bytes_per_second == 0 && IsNetworkLink(graph_, link) && levels_[half.to] > levels_[v])
          link.bytes_per_second = cable * link.cables;
      }
    }
  }

  // What the network card at an end of `link` has towards switches.
  double CardSpeed(const Link& link) const {
    double speed = 0;
    for (const uint32_t v : {link.a, link.b}) {
      if (graph_.vertex(v).kind != VertexKind::kNic) continue;
      for (const Graph::Half& half : graph_.Incident(v))
        if (IsNetworkLink(graph_, graph_.link(half.link))) speed += graph_.link(half.link).bytes_per_second;
    }
    return speed;
  }

  void Slots() {
    std::vector<uint32_t> gpus(graph_.vertices().size());
    for (const Vertex& vertex : graph_.vertices())
      if (vertex.kind == VertexKind::kGpu && vertex.host != kNone) ++gpus[vertex.host];
    for (uint32_t v = 0; v < graph_.vertices().size(); ++v)
      if (graph_.vertex(v).kind == VertexKind::kHost && graph_.vertex(v).slots == 0)
        graph_.vertex(v).slots = std::max(1u, gpus[v]);
  }

  Graph& graph_;
  const Assumptions assumptions_;
  const std::vector<uint32_t> levels_;
};

}  // namespace

bool IsNetworkLink(const Graph& graph, const Link& link) {
  const uint32_t host = graph.vertex(link.a).host;
  if (host != kNone && host == graph.vertex(link.b).host) return false;
  return link.medium <= Medium::kInfiniband;
}

std::vector<uint32_t> Levels(const Graph& graph, const std::vector<uint32_t>& hosts) {
  std::vector<uint32_t> levels(graph.vertices().size(), kNone), queue;
  std::vector<bool> chosen(graph.vertices().size());
  for (const uint32_t host : hosts) chosen[host] = true;
  for (uint32_t v = 0; v < graph.vertices().size(); ++v) {
    const uint32_t host = graph.vertex(v).host;
    if (host == kNone) continue;
    levels[v] = 0;
    if (chosen[host]) queue.push_back(v);
  }
  for (size_t i = 0; i < queue.size(); ++i) {
    for (const Graph::Half& half : graph.Incident(queue[i])) {
      if (levels[half.to] != kNone || !IsNetworkLink(graph, graph.link(half.link))) continue;
      levels[half.to] = levels[queue[i]] + 1;
      queue.push_back(half.to);
    }
  }
  return levels;
}

void Complete(Graph* graph, const Assumptions& assumptions) {
  graph->Finish();
  Assumptions sane = assumptions;
  if (!(sane.host_link_bytes_per_second > 0)) sane.host_link_bytes_per_second = Assumptions().host_link_bytes_per_second;
  if (!(sane.oversubscription > 0)) sane.oversubscription = 1;
  Completion(graph, sane).Run();
}

}  // namespace sluice::topology
