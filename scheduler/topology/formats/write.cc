#include "scheduler/topology/formats/write.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "scheduler/topology/formats/hostlist.h"
#include "scheduler/topology/formats/units.h"

namespace sluice::topology {
namespace {

constexpr size_t kMaxRun = 10000;  // names in a line

absl::string_view Keyword(VertexKind kind) {
  switch (kind) {
    case VertexKind::kHost: return "host";
    case VertexKind::kSwitch: return "switch";
    case VertexKind::kGpu: return "gpu";
    case VertexKind::kNic: return "nic";
    case VertexKind::kCpu: return "cpu";
    case VertexKind::kBridge: return "bridge";
  }
  return "";
}

std::string Quoted(const std::string& text) { return absl::StrCat("\"", absl::CHexEscape(text), "\""); }

// One name, or a list of names that all can stand in one.
std::string Names(const std::vector<std::string>& names) {
  return names.size() == 1 && !IsHostlistName(names[0]) ? Quoted(names[0]) : CompressHostlist(names);
}

// What a vertex's line says behind its name.
std::string Rest(const Graph& graph, const Vertex& vertex) {
  std::string out;
  if (vertex.kind == VertexKind::kHost) {
    if (vertex.slots > 0) absl::StrAppend(&out, " slots=", vertex.slots);
  } else if (vertex.host != kNone) {
    const std::string& host = graph.vertex(vertex.host).name;
    const size_t slash = vertex.name.rfind('/');
    const bool implied =
        vertex.kind != VertexKind::kSwitch && slash != std::string::npos && vertex.name.substr(0, slash) == host;
    if (!implied) absl::StrAppend(&out, " in=", Quoted(host));
  }
  if (!vertex.note.empty()) absl::StrAppend(&out, " note=", Quoted(vertex.note));
  return out;
}

std::string Rest(const Link& link) {
  std::string out;
  if (link.medium != Medium::kUnknown) absl::StrAppend(&out, " ", MediumName(link.medium));
  if (link.bytes_per_second > 0) absl::StrAppend(&out, " ", BandwidthText(link.bytes_per_second));
  if (link.latency_s > 0) absl::StrAppend(&out, " ", LatencyText(link.latency_s));
  if (link.cables != 1) absl::StrAppend(&out, " cables=", link.cables);
  const Source usual = link.bytes_per_second > 0 ? Source::kFile : Source::kAssumed;
  if (link.source != usual) absl::StrAppend(&out, " source=", SourceName(link.source));
  return out;
}

bool SameRest(const Link& a, const Link& b) {
  return a.medium == b.medium && a.bytes_per_second == b.bytes_per_second && a.latency_s == b.latency_s &&
         a.cables == b.cables && a.source == b.source;
}

class Writer {
 public:
  explicit Writer(const Graph& graph) : graph_(graph) {}

  std::string Write() {
    out_ = "sluice-topology 1\n";
    const size_t vertices = graph_.vertices().size();
    for (size_t begin = 0, end = 0; begin < vertices; begin = end) {
      const Vertex& first = graph_.vertex(begin);
      const std::string rest = Rest(graph_, first);
      std::vector<std::string> names = {first.name};
      for (end = begin + 1; end < vertices && names.size() < kMaxRun; ++end) {
        const Vertex& next = graph_.vertex(end);
        if (next.kind != first.kind || !IsHostlistName(first.name) || !IsHostlistName(next.name) ||
            Rest(graph_, next) != rest)
          break;
        names.push_back(next.name);
      }
      absl::StrAppend(&out_, Keyword(first.kind), " ", Names(names), rest, "\n");
    }
    for (size_t l = 0; l < graph_.links().size();) l = WriteLinks(l);
    return std::move(out_);
  }

 private:
  // The names of one side of the links from `begin` to `end`, if they can stand in a line: one, or a list.
  std::vector<std::string> Side(size_t begin, size_t end, uint32_t Link::*side) const {
    std::vector<std::string> names;
    for (size_t l = begin; l < end; ++l) names.push_back(graph_.vertex(graph_.link(l).*side).name);
    return names;
  }

  // How many links from `begin` on have the same rest, and ends that `fits` for a link and the one before it.
  template <typename Fits>
  size_t Run(size_t begin, Fits fits) const {
    const std::vector<Link>& links = graph_.links();
    size_t end = begin + 1;
    while (end < links.size() && end - begin < kMaxRun && SameRest(links[end], links[begin]) &&
           fits(links[end - 1], links[end]))
      ++end;
    return end;
  }

  bool Listable(uint32_t vertex) const { return IsHostlistName(graph_.vertex(vertex).name); }

  size_t WriteLinks(size_t begin) {
    const Link& first = graph_.link(begin);
    size_t end = Run(begin, [&](const Link& before, const Link& link) {
      return link.b == before.b && Listable(before.a) && Listable(link.a);
    });
    if (end > begin + 1) return Line("link", begin, end, Side(begin, end, &Link::a), Side(begin, begin + 1, &Link::b));
    end = Run(begin, [&](const Link& before, const Link& link) {
      return link.a == before.a && Listable(before.b) && Listable(link.b);
    });
    if (end > begin + 1) return Line("link", begin, end, Side(begin, begin + 1, &Link::a), Side(begin, end, &Link::b));
    end = Run(begin, [&](const Link& before, const Link& link) {
      return link.a != before.a && link.b != before.b && Listable(before.a) && Listable(before.b) && Listable(link.a) &&
             Listable(link.b);
    });
    // The last one may begin a run of its own.
    if (end > begin + 2 && end < graph_.links().size() &&
        (graph_.link(end).a == graph_.link(end - 1).a || graph_.link(end).b == graph_.link(end - 1).b))
      --end;
    if (end > begin + 1) return Line("pairs", begin, end, Side(begin, end, &Link::a), Side(begin, end, &Link::b));
    return Line("link", begin, begin + 1, {graph_.vertex(first.a).name}, {graph_.vertex(first.b).name});
  }

  size_t Line(absl::string_view keyword, size_t begin, size_t end, const std::vector<std::string>& a,
              const std::vector<std::string>& b) {
    absl::StrAppend(&out_, keyword, " ", Names(a), " ", Names(b), Rest(graph_.link(begin)), "\n");
    return end;
  }

  const Graph& graph_;
  std::string out_;
};

}  // namespace

std::string WritePlain(const Graph& graph) { return Writer(graph).Write(); }

}  // namespace sluice::topology
