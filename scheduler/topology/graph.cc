#include "scheduler/topology/graph.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::topology {

absl::StatusOr<uint32_t> Graph::Add(VertexKind kind, absl::string_view name, uint32_t host) {
  if (name.empty() || name.size() > kMaxVertexNameBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("the name of a ", KindName(kind), " must have 1 to ", kMaxVertexNameBytes, " bytes, this one has ", name.size()));
  if (const auto it = by_name_.find(name); it != by_name_.end()) {
    const Vertex& known = vertices_[it->second];
    if (known.kind != kind)
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is a ", KindName(known.kind), " and a ", KindName(kind)));
    if (kind != VertexKind::kHost && known.host != host)
      return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is inside of two hosts"));
    return it->second;
  }
  if (vertices_.size() >= kMaxVertices)
    return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxVertices, " hosts, switches and devices"));
  const uint32_t index = static_cast<uint32_t>(vertices_.size());
  vertices_.push_back({.kind = kind, .name = std::string(name), .note = "",
                       .host = kind == VertexKind::kHost ? index : host, .slots = 0});
  by_name_.emplace(std::string(name), index);
  return index;
}

uint32_t Graph::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? kNone : it->second;
}

absl::StatusOr<uint32_t> Graph::Connect(uint32_t a, uint32_t b, Medium medium, double bytes_per_second,
                                        double latency_s, uint32_t cables) {
  if (a >= vertices_.size() || b >= vertices_.size()) return absl::InternalError("a link of no vertex");
  if (a == b) return absl::InvalidArgumentError(absl::StrCat("\"", vertices_[a].name, "\" is linked with itself"));
  if (!(bytes_per_second >= 0) || !std::isfinite(bytes_per_second) || !(latency_s >= 0) || !std::isfinite(latency_s) || cables == 0)
    return absl::InvalidArgumentError(absl::StrCat("the link of \"", vertices_[a].name, "\" and \"", vertices_[b].name,
                                                   "\" has a bandwidth, latency or number of cables that cannot be"));
  const auto [it, is_new] = by_ends_.emplace(Key(a, b, medium), static_cast<uint32_t>(links_.size()));
  if (!is_new) {
    Link& link = links_[it->second];
    if (link.cables > kNone - cables) return absl::ResourceExhaustedError("too many cables");
    // Of some cables the speed may be known and of others not: all are then as fast as those on average.
    const double known = link.bytes_per_second > 0 ? link.bytes_per_second / link.cables : 0;
    const double more = bytes_per_second > 0 ? bytes_per_second : known * cables;
    if (known == 0 && more > 0) link.bytes_per_second = more / cables * link.cables;
    link.bytes_per_second += more;
    link.cables += cables;
    if (latency_s > 0) link.latency_s = link.latency_s > 0 ? std::min(link.latency_s, latency_s) : latency_s;
    if (bytes_per_second > 0) link.source = std::max(link.source, Source::kFile);
    return it->second;
  }
  if (links_.size() >= kMaxLinks) {
    by_ends_.erase(it);
    return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxLinks, " links"));
  }
  links_.push_back({.a = a, .b = b, .medium = medium, .cables = cables, .bytes_per_second = bytes_per_second,
                    .latency_s = latency_s, .source = bytes_per_second > 0 ? Source::kFile : Source::kAssumed});
  return it->second;
}

uint32_t Graph::FindLink(uint32_t a, uint32_t b, Medium medium) const {
  const auto it = by_ends_.find(Key(a, b, medium));
  return it == by_ends_.end() ? kNone : it->second;
}

absl::Status Graph::Merge(const Graph& other) {
  std::vector<uint32_t> here(other.vertices_.size());
  for (size_t v = 0; v < other.vertices_.size(); ++v) {   // a host comes before what is inside of it
    const Vertex& vertex = other.vertices_[v];
    const uint32_t host = vertex.host == kNone || vertex.kind == VertexKind::kHost ? kNone : here[vertex.host];
    SLUICE_ASSIGN_OR_RETURN(here[v], Add(vertex.kind, vertex.name, host));
    Vertex& mine = vertices_[here[v]];
    if (mine.note.empty()) mine.note = vertex.note;
    mine.slots = std::max(mine.slots, vertex.slots);
  }
  for (const Link& theirs : other.links_) {
    const uint32_t a = here[theirs.a], b = here[theirs.b];
    const uint32_t known = FindLink(a, b, theirs.medium);
    if (known == kNone) {
      SLUICE_ASSIGN_OR_RETURN(const uint32_t index,
                              Connect(a, b, theirs.medium, theirs.bytes_per_second, theirs.latency_s, theirs.cables));
      links_[index].source = theirs.source;
      continue;
    }
    Link& mine = links_[known];
    const bool better = theirs.bytes_per_second > 0 &&
                        (mine.bytes_per_second == 0 ||
                         std::pair(theirs.source, theirs.cables) > std::pair(mine.source, mine.cables));
    if (better) {
      mine.bytes_per_second = theirs.bytes_per_second;
      mine.source = theirs.source;
      mine.cables = theirs.cables;
    }
    if (mine.latency_s == 0) mine.latency_s = theirs.latency_s;
  }
  return absl::OkStatus();
}

void Graph::Finish() {
  first_.assign(vertices_.size() + 1, 0);
  for (const Link& link : links_) {
    ++first_[link.a + 1];
    ++first_[link.b + 1];
  }
  for (size_t v = 0; v < vertices_.size(); ++v) first_[v + 1] += first_[v];
  halves_.resize(2 * links_.size());
  std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
  for (uint32_t l = 0; l < links_.size(); ++l) {
    halves_[next[links_[l].a]++] = {l, links_[l].b};
    halves_[next[links_[l].b]++] = {l, links_[l].a};
  }
}

std::span<const Graph::Half> Graph::Incident(uint32_t vertex) const {
  if (vertex + 1 >= first_.size()) return {};
  return std::span(halves_).subspan(first_[vertex], first_[vertex + 1] - first_[vertex]);
}

std::vector<uint32_t> Graph::Hosts() const {
  std::vector<uint32_t> hosts;
  for (uint32_t v = 0; v < vertices_.size(); ++v)
    if (vertices_[v].kind == VertexKind::kHost) hosts.push_back(v);
  return hosts;
}

absl::string_view KindName(VertexKind kind) {
  switch (kind) {
    case VertexKind::kHost: return "host";
    case VertexKind::kSwitch: return "switch";
    case VertexKind::kGpu: return "GPU";
    case VertexKind::kNic: return "NIC";
    case VertexKind::kCpu: return "CPU";
    case VertexKind::kBridge: return "bridge";
  }
  return "?";
}

absl::string_view MediumName(Medium medium) {
  switch (medium) {
    case Medium::kUnknown: return "network";
    case Medium::kEthernet: return "ethernet";
    case Medium::kInfiniband: return "infiniband";
    case Medium::kNvlink: return "nvlink";
    case Medium::kXgmi: return "xgmi";
    case Medium::kPcie: return "pcie";
    case Medium::kSocket: return "socket";
  }
  return "?";
}

absl::string_view SourceName(Source source) {
  switch (source) {
    case Source::kAssumed: return "assumed";
    case Source::kFile: return "file";
    case Source::kMeasured: return "measured";
  }
  return "?";
}

}  // namespace sluice::topology
