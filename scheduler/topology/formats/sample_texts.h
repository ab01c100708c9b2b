// For tests: how they read a text, and how they compare graphs.
#pragma once

#include <bit>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/topology/formats/format.h"

namespace sluice::topology {

inline absl::StatusOr<Graph> ReadText(absl::string_view text, Report* report = nullptr, std::string host = "",
                                      std::string choice = "", ReadOptions options = {}) {
  return Read({.file = "f", .text = text, .host = std::move(host), .choice = std::move(choice)}, options, report);
}

inline std::string Refusal(absl::string_view text, std::string host = "", std::string choice = "") {
  const absl::StatusOr<Graph> graph = ReadText(text, nullptr, std::move(host), std::move(choice));
  return graph.ok() ? "it was read" : std::string(graph.status().message());
}

// One line a vertex and link, in their order.
inline std::string Dump(const Graph& graph) {
  std::string out;
  for (const Vertex& v : graph.vertices())
    absl::StrAppend(&out, KindName(v.kind), " ", v.name, " ", v.note, " ",
                    v.host == kNone ? "-" : graph.vertex(v.host).name, " ", v.slots, "\n");
  for (const Link& l : graph.links())
    absl::StrAppend(&out, graph.vertex(l.a).name, " - ", graph.vertex(l.b).name, " ", MediumName(l.medium), " ",
                    l.cables, " ", absl::Hex(std::bit_cast<uint64_t>(l.bytes_per_second)), " ",
                    absl::Hex(std::bit_cast<uint64_t>(l.latency_s)), " ", SourceName(l.source), "\n");
  return out;
}

// The links of a vertex as names, in their order.
inline std::vector<std::string> Neighbours(const Graph& graph, absl::string_view name) {
  std::vector<std::string> out;
  const uint32_t v = graph.Find(name);
  if (v == kNone) return {"no vertex of that name"};
  for (const Graph::Half& half : graph.Incident(v)) out.push_back(graph.vertex(half.to).name);
  return out;
}

inline double Gbps(const Graph& graph, absl::string_view a, absl::string_view b, Medium medium) {
  const uint32_t l = graph.FindLink(graph.Find(a), graph.Find(b), medium);
  return l == kNone ? -1 : graph.link(l).bytes_per_second * 8 / 1e9;
}

}  // namespace sluice::topology
