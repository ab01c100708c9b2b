#include "scheduler/network/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "scheduler/network/view.h"
#include "scheduler/topology/complete.h"

namespace sluice::network {
namespace {

using topology::Graph;
using topology::kNone;
using topology::Medium;
using topology::VertexKind;

constexpr char kUnlisted[] = "(unlisted)";
constexpr char kAssumedCore[] = "(assumed core)";
constexpr size_t kNamed = 5;          // hosts in a note

// The fabric of each vertex: numbers of connected parts.
std::vector<uint32_t> Parts(const Graph& graph) {
  std::vector<uint32_t> part(graph.vertices().size(), kNone), stack;
  uint32_t parts = 0;
  for (uint32_t v = 0; v < part.size(); ++v) {
    if (part[v] != kNone) continue;
    part[v] = parts;
    stack.push_back(v);
    while (!stack.empty()) {
      const uint32_t at = stack.back();
      stack.pop_back();
      for (const Graph::Half& half : graph.Incident(at)) {
        if (part[half.to] != kNone) continue;
        part[half.to] = parts;
        stack.push_back(half.to);
      }
    }
    ++parts;
  }
  return part;
}

std::string Named(const std::vector<std::string>& names) {
  const std::vector<std::string> first(names.begin(), names.begin() + std::min(names.size(), kNamed));
  return absl::StrCat(absl::StrJoin(first, ", "), names.size() > kNamed ? absl::StrCat(", … (", names.size(), ")") : "");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> Network::Create(Graph read, const proto::TopologyConfig& config) {
  std::unique_ptr<Network> network(new Network(std::move(read), config));
  SLUICE_RETURN_IF_ERROR(network->Rebuild());
  return network;
}

void Network::AddHosts(const std::vector<std::string>& names) {
  bool is_new = false;
  for (const std::string& name : names) {
    if (name.empty() || members_.count(name) > 0) continue;
    const uint32_t listed = read_.Find(name);
    if (listed == kNone && unlisted_.size() >= kMaxUnlistedHosts) continue;
    members_.insert(name);
    if (listed == kNone) unlisted_.push_back(name);
    is_new = true;
  }
  if (!is_new) return;
  if (Rebuild().ok()) ++version_;   // what cannot be added (a name that a switch has) is nowhere
}

absl::Status Network::Rebuild() {
  Graph graph = read_;
  if (!unlisted_.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t around, graph.Add(VertexKind::kSwitch, kUnlisted));
    for (const std::string& name : unlisted_) {
      const absl::StatusOr<uint32_t> host = graph.Add(VertexKind::kHost, name);
      if (host.ok()) graph.Connect(*host, around, Medium::kUnknown).IgnoreError();
    }
  }
  graph.Finish();
  graph_ = std::move(graph);
  SLUICE_RETURN_IF_ERROR(Join());
  topology::Complete(&graph_, {.host_link_bytes_per_second = static_cast<double>(config_.link_bytes()),
                               .oversubscription = config_.oversubscription()});
  domains_ = topology::Domains::Find(graph_);
  routes_ = fabric::Routes::Create(&graph_);
  nominal_.resize(routes_->arcs());
  for (uint32_t arc = 0; arc < nominal_.size(); ++arc) nominal_[arc] = {routes_->BytesPerSecond(arc), graph_.link(arc / 2).source == topology::Source::kAssumed};
  arcs_.clear();
  return absl::OkStatus();
}

absl::Status Network::Join() {
  const std::vector<uint32_t> part = Parts(graph_);
  std::map<uint32_t, uint32_t> tops;   // of each part that has members: its highest switch, or else the host itself
  const std::vector<uint32_t> levels = topology::Levels(graph_, graph_.Hosts());
  for (const std::string& name : members_) {
    if (const uint32_t host = graph_.Find(name); host != kNone) tops.emplace(part[host], host);
  }
  joined_ = tops.size() > 1 ? tops.size() : 0;
  if (joined_ == 0) return absl::OkStatus();
  const auto height = [&](uint32_t v) { return levels[v] == kNone ? 0 : levels[v]; };
  for (uint32_t v = 0; v < part.size(); ++v) {
    const auto top = tops.find(part[v]);
    if (top == tops.end() || graph_.vertex(v).kind != VertexKind::kSwitch) continue;
    if (graph_.vertex(top->second).kind != VertexKind::kSwitch || height(v) > height(top->second)) top->second = v;
  }
  SLUICE_ASSIGN_OR_RETURN(const uint32_t core, graph_.Add(VertexKind::kSwitch, kAssumedCore));
  for (const auto& [number, top] : tops) SLUICE_RETURN_IF_ERROR(graph_.Connect(top, core, Medium::kUnknown).status());
  graph_.Finish();
  return absl::OkStatus();
}

uint32_t Network::Host(const std::string& name) const { return View(*this).Host(name); }

void Network::Take(const std::string& from, const std::string& to, uint64_t who, const PairMeasure& measure) {
  const uint32_t a = Host(from), b = Host(to);
  if (a != kNone && b != kNone) estimates_.Take(a, b, who, measure);
}

void Network::TakeProbe(const std::string& from, const std::string& to, const PairMeasure& measure) {
  const uint32_t a = Host(from), b = Host(to);
  if (a != kNone && b != kNone) estimates_.TakeProbe(a, b, measure);
}

bool Network::Refresh(TimeNs now) {
  estimates_.Forget(now);
  std::map<uint32_t, ArcEstimate> next = estimates_.Arcs(*routes_, nominal_, now);
  bool changed = false;
  const auto set = [&](uint32_t arc, double to) {
    const double before = routes_->BytesPerSecond(arc);
    if (std::abs(to - before) <= 0.05 * before) return;
    routes_->SetBytesPerSecond(arc, to);
    changed = true;
  };
  for (const auto& [arc, estimate] : arcs_)
    if (next.count(arc) == 0) set(arc, nominal_[arc].bytes_per_second);
  for (const auto& [arc, estimate] : next) set(arc, estimate.bytes_per_second);
  arcs_ = std::move(next);
  if (changed) ++version_;
  return changed;
}

topology::Source Network::SourceOf(uint32_t arc) const {
  return arcs_.count(arc) > 0 ? topology::Source::kMeasured : graph_.link(arc / 2).source;
}

std::vector<bool> Network::InQuestion(bool all) const {
  std::vector<bool> wanted(nominal_.size());
  for (uint32_t arc = 0; arc < wanted.size(); ++arc) {
    if (!topology::IsNetworkLink(graph_, graph_.link(arc / 2))) continue;
    const auto known = arcs_.find(arc);
    wanted[arc] = all || known == arcs_.end() || known->second.confidence < 0.5;
  }
  return wanted;
}

std::string Network::ArcName(uint32_t arc) const {
  const topology::Link& link = graph_.link(arc / 2);
  const std::string &a = graph_.vertex(link.a).name, &b = graph_.vertex(link.b).name;
  return arc % 2 == 0 ? absl::StrCat(a, " -> ", b) : absl::StrCat(b, " -> ", a);
}

uint32_t Network::NarrowestArc(uint32_t from, uint32_t to) const {
  uint32_t narrowest = kNone;
  (void)routes_->Spread(from, to, [&](uint32_t arc, double) {
    if (!topology::IsNetworkLink(graph_, graph_.link(arc / 2))) return;
    if (narrowest == kNone || routes_->BytesPerSecond(arc) < routes_->BytesPerSecond(narrowest)) narrowest = arc;
  });
  return narrowest;
}

std::vector<proto::LinkEstimate> Network::Estimates(TimeNs now, size_t most) const {
  std::vector<proto::LinkEstimate> out;
  const auto add = [&](uint32_t arc, const ArcEstimate* estimate) {
    const topology::Link& link = graph_.link(arc / 2);
    if (!topology::IsNetworkLink(graph_, link)) return;
    proto::LinkEstimate& row = out.emplace_back();
    row.set_from(graph_.vertex(arc % 2 == 0 ? link.a : link.b).name);
    row.set_to(graph_.vertex(arc % 2 == 0 ? link.b : link.a).name);
    row.set_medium(std::string(topology::MediumName(link.medium)));
    row.set_bytes_per_second(routes_->BytesPerSecond(arc));
    row.set_nominal(nominal_[arc].bytes_per_second);
    row.set_source(std::string(topology::SourceName(SourceOf(arc))));
    if (estimate == nullptr) return;
    row.set_age_ms(static_cast<uint64_t>(std::max<TimeNs>(0, now - estimate->at) / kMillisecond));
    row.set_confidence(estimate->confidence);
    row.set_rtt_us(1e6 * estimate->rtt_s);
    row.set_retransmits(estimate->retransmits);
  };
  for (const auto& [arc, estimate] : arcs_)
    if (out.size() < most) add(arc, &estimate);
  for (uint32_t arc = 0; arc < nominal_.size() && out.size() < most; ++arc)
    if (arcs_.count(arc) == 0) add(arc, nullptr);
  return out;
}

std::string Network::Summary() const {
  size_t hosts = 0, switches = 0;
  for (const topology::Vertex& vertex : graph_.vertices()) {
    hosts += vertex.kind == VertexKind::kHost;
    switches += vertex.kind == VertexKind::kSwitch;
  }
  return absl::StrCat(hosts, hosts == 1 ? " host, " : " hosts, ", switches, switches == 1 ? " switch, " : " switches, ", graph_.links().size(), " links, ",
                      config_.files().empty() ? "no topology file (topology.files)" : absl::StrCat("from ", config_.files()));
}

std::vector<std::string> Network::Notes() const {
  std::vector<std::string> notes;
  if (!unlisted_.empty() && read_.vertices().empty())
    notes.push_back("no topology is given (topology.files): all hosts are taken to hang on one switch");
  else if (!unlisted_.empty())
    notes.push_back(absl::StrCat("hosts that no topology file names are taken to hang on a switch of their own: ",
                                 Named(unlisted_), "; node.host is the name that a process goes by"));
  if (joined_ > 0)
    notes.push_back(absl::StrCat("the topology does not join the ", joined_, " fabrics that members are on; they are taken to meet in one switch"));
  size_t assumed = 0, network = 0;
  for (const topology::Link& link : graph_.links()) {
    if (!topology::IsNetworkLink(graph_, link)) continue;
    ++network;
    assumed += link.source == topology::Source::kAssumed;
  }
  if (assumed > 0)
    notes.push_back(absl::StrCat("the bandwidth of ", assumed, " of ", network, " links is assumed: ", config_.link_bytes() / 1000000,
                                 " MB/s to a host (topology.link_bytes), ", config_.oversubscription(),
                                 ":1 at each switch (topology.oversubscription)"));
  return notes;
}

}  // namespace sluice::network
