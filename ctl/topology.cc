#include "ctl/topology.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "scheduler/topology/complete.h"
#include "scheduler/topology/formats/affinity.h"
#include "scheduler/topology/formats/files.h"
#include "scheduler/topology/formats/hostlist.h"
#include "scheduler/topology/formats/units.h"

namespace sluice::ctl {
namespace {

using topology::Graph;
using topology::kNone;
using topology::Link;
using topology::Medium;
using topology::Source;
using topology::Vertex;
using topology::VertexKind;

constexpr size_t kMaxListBytes = 160;  // of a list of names in a line
constexpr size_t kMaxIndent = 24;      // a chain of switches goes no further to the right

std::string Names(const std::vector<std::string>& names) {
  const std::string list = topology::CompressHostlist(names);
  return list.size() <= kMaxListBytes ? list : absl::StrCat(list.substr(0, kMaxListBytes), "… (", names.size(), ")");
}

// "infiniband 2 x 400 Gb/s, 0.3 us (assumed)": the parts in brackets are what no file and no measurement says.
std::string SpeedText(const Link& link) {
  std::string out = link.medium == Medium::kUnknown ? "" : absl::StrCat(topology::MediumName(link.medium), " ");
  if (link.cables > 1) absl::StrAppend(&out, link.cables, " x ");
  absl::StrAppend(&out, link.bytes_per_second > 0 ? topology::ShortBandwidth(link.bytes_per_second / link.cables)
                                                  : "speed not known");
  if (link.latency_s > 0) absl::StrAppend(&out, ", ", topology::ShortLatency(link.latency_s));
  if (link.bytes_per_second > 0) absl::StrAppend(&out, " (", topology::SourceName(link.source), ")");
  return out;
}

// Sizes of the parts that are joined, the largest first, by hosts.
std::vector<size_t> Parts(const Graph& graph) {
  std::vector<uint32_t> parent(graph.vertices().size());
  std::iota(parent.begin(), parent.end(), 0);
  const auto find = [&](uint32_t v) {
    while (parent[v] != v) v = parent[v] = parent[parent[v]];
    return v;
  };
  for (const Link& link : graph.links()) parent[find(link.a)] = find(link.b);
  std::map<uint32_t, size_t> hosts;
  for (uint32_t v = 0; v < parent.size(); ++v) hosts[find(v)] += graph.vertex(v).kind == VertexKind::kHost;
  std::vector<size_t> sizes;
  for (const auto& [root, size] : hosts) sizes.push_back(size);
  std::sort(sizes.rbegin(), sizes.rend());
  return sizes;
}

std::string Counted(size_t count, const char* what) { return absl::StrCat(count, " ", what, count == 1 ? "" : "s"); }

class Tree {
 public:
  explicit Tree(const Graph& graph)
      : graph_(graph), levels_(topology::Levels(graph, graph.Hosts())), shown_(graph.vertices().size()) {}

  std::string Text() {
    std::vector<uint32_t> order;
    for (uint32_t v = 0; v < graph_.vertices().size(); ++v)
      if (graph_.vertex(v).host == kNone) order.push_back(v);
    const auto level = [&](uint32_t v) { return levels_[v] == kNone ? 0 : levels_[v]; };
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return level(a) > level(b); });
    for (const uint32_t root : order)
      if (!shown_[root]) From(root);
    std::vector<uint32_t> alone;
    for (const uint32_t host : graph_.Hosts())
      if (!shown_[host]) alone.push_back(host);
    if (!alone.empty()) {
      out_ += "on no switch\n";
      Hosts(kNone, alone, 1);
    }
    return std::move(out_);
  }

 private:
  struct Step {
    uint32_t vertex, link;  // link: to what it stands under; kNone: a root
    size_t depth;
  };

  // A switch and what is below it, each under the first that leads to it.
  void From(uint32_t root) {
    std::vector<Step> open = {{root, kNone, 0}};
    while (!open.empty()) {
      const Step step = open.back();
      open.pop_back();
      if (shown_[step.vertex]) continue;
      shown_[step.vertex] = true;
      Switch(step);
      std::vector<uint32_t> hosts;
      std::vector<Step> below;
      for (const Graph::Half& half : graph_.Incident(step.vertex)) {
        const Vertex& to = graph_.vertex(half.to);
        if (to.host != kNone) {
          if (!shown_[to.host]) hosts.push_back(to.host);
        } else if (!shown_[half.to] && levels_[half.to] < levels_[step.vertex]) {
          below.push_back({half.to, half.link, step.depth + 1});
        }
      }
      Hosts(step.vertex, hosts, step.depth + 1);
      open.insert(open.end(), below.rbegin(), below.rend());
    }
  }

  void Indent(size_t depth) { out_.append(2 * std::min(depth, kMaxIndent), ' '); }

  void Switch(const Step& step) {
    const Vertex& vertex = graph_.vertex(step.vertex);
    Indent(step.depth);
    absl::StrAppend(&out_, vertex.name);
    if (step.link != kNone) absl::StrAppend(&out_, "  ", SpeedText(graph_.link(step.link)));
    if (!vertex.note.empty() && vertex.note != vertex.name) absl::StrAppend(&out_, "  \"", vertex.note, "\"");
    // Other switches at the same height or above, by speed.
    std::map<std::string, std::vector<std::string>> others;
    for (const Graph::Half& half : graph_.Incident(step.vertex))
      if (graph_.vertex(half.to).host == kNone && half.link != step.link && levels_[half.to] >= levels_[step.vertex])
        others[SpeedText(graph_.link(half.link))].push_back(graph_.vertex(half.to).name);
    for (const auto& [speed, names] : others) absl::StrAppend(&out_, "; also ", Names(names), " ", speed);
    out_ += "\n";
  }

  // Hosts below a switch; those that are alike, to their last device, in one line.
  void Hosts(uint32_t below, const std::vector<uint32_t>& hosts, size_t depth) {
    std::vector<std::pair<std::string, std::vector<std::string>>> groups;  // in order of the first host
    std::map<std::string, size_t> known;
    for (const uint32_t host : hosts) {
      if (shown_[host]) continue;
      shown_[host] = true;
      const std::string text = HostText(host, below, depth);
      const auto [it, is_new] = known.emplace(text, groups.size());
      if (is_new) groups.push_back({text, {}});
      groups[it->second].second.push_back(graph_.vertex(host).name);
    }
    for (const auto& [text, names] : groups) {
      Indent(depth);
      absl::StrAppend(&out_, Names(names), text);
    }
  }

  // All about a host but its name, which is "" in it.
  std::string HostText(uint32_t host, uint32_t below, size_t depth) {
    const Vertex& vertex = graph_.vertex(host);
    std::string out;
    std::map<std::string, std::vector<std::string>> here, elsewhere;  // links to switches, by speed
    for (const Graph::Half& half : graph_.Incident(host)) Outside(half, "", below, &here, &elsewhere);
    const std::vector<uint32_t> nics = topology::DevicesOf(graph_, host, VertexKind::kNic);
    for (const uint32_t nic : nics)
      for (const Graph::Half& half : graph_.Incident(nic)) Outside(half, Own(nic), below, &here, &elsewhere);
    for (const auto& [speed, names] : here)
      absl::StrAppend(&out, "  ", names[0].empty() ? "" : absl::StrCat(Names(names), " "), speed);
    if (vertex.slots > 0) absl::StrAppend(&out, "  ", Counted(vertex.slots, "slot"));
    if (!vertex.note.empty()) absl::StrAppend(&out, "  \"", vertex.note, "\"");
    for (const auto& [speed, names] : elsewhere) absl::StrAppend(&out, "; also ", Names(names), " ", speed);
    out += "\n";
    const topology::HostDevices devices = topology::OrderDevices(graph_, host);
    for (size_t i = 0; i < devices.gpus.size(); ++i) {
      std::string line =
          absl::StrCat(Own(devices.gpus[i]), "  ", devices.nics[i] == kNone ? "no NIC" : Own(devices.nics[i]));
      std::map<std::string, std::vector<std::string>> links;
      for (const Graph::Half& half : graph_.Incident(devices.gpus[i]))
        links[SpeedText(graph_.link(half.link))].push_back(Own(half.to));
      for (const auto& [speed, names] : links) absl::StrAppend(&line, "; ", Names(names), " ", speed);
      out.append(2 * std::min(depth + 1, kMaxIndent), ' ');
      absl::StrAppend(&out, line, "\n");
    }
    return out;
  }

  void Outside(const Graph::Half& half, const std::string& own, uint32_t below,
               std::map<std::string, std::vector<std::string>>* here,
               std::map<std::string, std::vector<std::string>>* elsewhere) const {
    if (graph_.vertex(half.to).host != kNone) return;
    const std::string speed = SpeedText(graph_.link(half.link));
    if (half.to == below)
      (*here)[speed].push_back(own);
    else
      (*elsewhere)[speed].push_back(absl::StrCat(own, own.empty() ? "" : ">", graph_.vertex(half.to).name));
  }

  // A device's name without its host's.
  std::string Own(uint32_t device) const {
    const Vertex& vertex = graph_.vertex(device);
    if (vertex.kind == VertexKind::kHost) return "memory";
    const std::string prefix = vertex.host == kNone ? "" : graph_.vertex(vertex.host).name + "/";
    return vertex.name.rfind(prefix, 0) == 0 ? vertex.name.substr(prefix.size()) : vertex.name;
  }

  const Graph& graph_;
  const std::vector<uint32_t> levels_;
  std::vector<bool> shown_;
  std::string out_;
};

}  // namespace

absl::StatusOr<LoadedTopology> LoadTopologyFiles(const std::vector<std::string>& files,
                                                 const proto::TopologyConfig& config) {
  topology::ReadOptions options;
  options.node_labels = absl::StrSplit(config.node_labels(), ',', absl::SkipWhitespace());
  const std::vector<std::string> specs = files.empty() ? topology::SplitFileSpecs(config.files()) : files;
  if (specs.empty())
    return absl::InvalidArgumentError(
        "no topology file: name one or several, or set topology.files (HOST=FILE for the inside of a host)");
  LoadedTopology loaded;
  SLUICE_ASSIGN_OR_RETURN(loaded.graph, topology::ReadFiles(specs, options, &loaded.reports));
  return loaded;
}

std::string RenderCheck(const LoadedTopology& loaded, double milliseconds) {
  std::string out;
  for (const topology::Report& report : loaded.reports) {
    absl::StrAppend(&out, report.host.empty() ? "" : absl::StrCat(report.host, "="), report.file, ": ", report.title,
                    " [", report.format, "]: ", Counted(report.hosts, "host"), ", ", report.switches,
                    report.switches == 1 ? " switch, " : " switches, ", Counted(report.gpus, "GPU"), ", ",
                    Counted(report.nics, "NIC"), ", ", Counted(report.links, "link"), "\n");
    for (const std::string& warning : report.warnings) absl::StrAppend(&out, "  warning: ", warning, "\n");
    if (report.more_warnings > 0) absl::StrAppend(&out, "  warning: ", report.more_warnings, " more\n");
  }
  size_t said = 0;
  for (const Link& link : loaded.graph.links()) said += link.bytes_per_second > 0;
  const std::vector<size_t> parts = Parts(loaded.graph);
  absl::StrAppend(&out, "together: ", Counted(loaded.graph.Hosts().size(), "host"), ", ",
                  Counted(loaded.graph.links().size(), "link"), ", of which ", said, " have a speed; read in ",
                  std::llround(milliseconds), " ms\n");
  if (parts.size() > 1) {
    absl::StrAppend(&out, "  warning: ", parts.size(), " parts that no file joins, of ",
                    absl::StrJoin(parts.begin(), parts.begin() + std::min<size_t>(parts.size(), 8), ", "),
                    parts.size() > 8 ? ", …" : "", " hosts: no way is known between them\n");
  }
  return out;
}

std::string RenderTopology(LoadedTopology loaded, const proto::TopologyConfig& config) {
  topology::Assumptions assumptions;
  if (config.link_bytes() > 0) assumptions.host_link_bytes_per_second = static_cast<double>(config.link_bytes());
  if (config.oversubscription() > 0) assumptions.oversubscription = config.oversubscription();
  topology::Complete(&loaded.graph, assumptions);
  return Tree(loaded.graph).Text();
}

std::string TopologyJson(const LoadedTopology& loaded, bool with_graph) {
  nlohmann::json json;
  json["files"] = nlohmann::json::array();
  for (const topology::Report& report : loaded.reports)
    json["files"].push_back({{"file", report.file},
                             {"host", report.host},
                             {"format", report.format},
                             {"title", report.title},
                             {"hosts", report.hosts},
                             {"switches", report.switches},
                             {"gpus", report.gpus},
                             {"nics", report.nics},
                             {"links", report.links},
                             {"warnings", report.warnings},
                             {"more_warnings", report.more_warnings}});
  json["parts"] = Parts(loaded.graph);
  if (with_graph) {
    const Graph& graph = loaded.graph;
    json["vertices"] = nlohmann::json::array();
    for (const Vertex& v : graph.vertices()) {
      nlohmann::json vertex = {{"name", v.name}, {"kind", topology::KindName(v.kind).data()}};
      if (v.kind == VertexKind::kHost)
        vertex["slots"] = v.slots;
      else if (v.host != kNone)
        vertex["host"] = graph.vertex(v.host).name;
      if (!v.note.empty()) vertex["note"] = v.note;
      json["vertices"].push_back(std::move(vertex));
    }
    json["links"] = nlohmann::json::array();
    for (const Link& l : graph.links())
      json["links"].push_back({{"from", graph.vertex(l.a).name},
                               {"to", graph.vertex(l.b).name},
                               {"medium", topology::MediumName(l.medium).data()},
                               {"cables", l.cables},
                               {"bytes_per_second", l.bytes_per_second},
                               {"latency_s", l.latency_s},
                               {"source", topology::SourceName(l.source).data()}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::ctl
