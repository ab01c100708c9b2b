// The list of formats, and what is done with all of them alike.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/format.h"
#include "scheduler/topology/formats/hostlist.h"
#include "scheduler/topology/formats/list.h"
#include "scheduler/topology/formats/reading.h"
#include "scheduler/topology/formats/tier_speeds.h"

namespace sluice::topology {
namespace {

constexpr size_t kMaxAlikeHosts = size_t{1} << 16;  // of one file about the inside of a host

absl::string_view Head(absl::string_view text) { return absl::StripAsciiWhitespace(text.substr(0, 65536)); }

// The name of an XML text's outermost element.
absl::string_view XmlRoot(absl::string_view text) {
  for (;;) {
    text = absl::StripLeadingAsciiWhitespace(text);
    if (!absl::ConsumePrefix(&text, "<")) return "";
    if (text.empty() || (text[0] != '?' && text[0] != '!')) break;
    const absl::string_view end_mark = absl::StartsWith(text, "!--") ? "-->" : ">";
    const size_t end = text.find(end_mark);
    if (end == absl::string_view::npos) return "";
    text.remove_prefix(end + end_mark.size());
  }
  size_t end = 0;
  while (end < text.size() && (absl::ascii_isalnum(text[end]) || text[end] == '_' || text[end] == '-')) ++end;
  return text.substr(0, end);
}

// What a text that is in no format we know seems to be.
std::string Guess(absl::string_view text) {
  const absl::string_view head = Head(text);
  if (head.empty()) return "it is empty";
  if (head.find('\0') != absl::string_view::npos) return "it is not text";
  if (head[0] == '<') {
    const absl::string_view root = XmlRoot(head);
    if (root == "topology" || absl::StrContains(head, "hwloc"))
      return "it is hwloc's XML (lstopo), which is not NCCL's; have NCCL write its own with NCCL_TOPO_DUMP_FILE=FILE";
    if (root == "nvidia_smi_log") return "it is `nvidia-smi -q -x`; give `nvidia-smi topo -m` instead";
    if (root == "graphs") return "it is NCCL's dump of graphs; give that of its topology, NCCL_TOPO_DUMP_FILE=FILE";
    return absl::StrCat("it is XML with the root <", root, ">; NCCL's has <system>");
  }
  if (head[0] == '{' || head[0] == '[')
    return "it is JSON, but no list of Kubernetes nodes (`kubectl get nodes -o json`) or LLDP neighbours "
           "(`lldpcli show neighbors -f json`)";
  if (absl::StrContains(head, "apiVersion:")) return "it is YAML of Kubernetes; give JSON, `kubectl get nodes -o json`";
  const absl::string_view line = FirstLine(text);
  if (absl::StartsWith(line, "---") || absl::StartsWith(line, "- ") || absl::EndsWith(line, ":"))
    return absl::StrCat("it may be YAML, but no Slurm topology.yaml: its first line is ", Shown(line));
  return absl::StrCat("its first line is ", Shown(line));
}

const Format* Find(absl::string_view text) {
  for (const Format* format : AllFormats())
    if (format->looks_like(text)) return format;
  return nullptr;
}

absl::Status Unknown(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("the text is in no format that is known: ", Guess(text),
                                                 ". Known are ", absl::StrJoin(FormatNames(), ", ")));
}

void Count(const Graph& graph, Report* report) {
  for (const Vertex& vertex : graph.vertices()) {
    report->hosts += vertex.kind == VertexKind::kHost;
    report->switches += vertex.kind == VertexKind::kSwitch;
    report->gpus += vertex.kind == VertexKind::kGpu;
    report->nics += vertex.kind == VertexKind::kNic;
  }
  report->links = graph.links().size();
}

// Editors of some systems put it before a text in UTF-8; it is no part of it.
absl::string_view WithoutByteOrderMark(absl::string_view text) {
  return absl::StripPrefix(text, "\xEF\xBB\xBF");
}

// One text; of a file about the inside of hosts that are alike, the graph of all.
absl::StatusOr<Graph> ReadOne(const Input& given, const ReadOptions& options, Report* report,
                              std::vector<TierSpeed>* tiers) {
  Input input = given;
  input.text = WithoutByteOrderMark(given.text);
  if (input.text.size() > kMaxTextBytes)
    return absl::ResourceExhaustedError(
        absl::StrCat(input.file, ": ", input.text.size(), " bytes; at most ", kMaxTextBytes, " are read"));
  const Format* format = Find(input.text);
  if (format == nullptr) {
    const absl::Status unknown = Unknown(input.text);
    return absl::Status(unknown.code(), absl::StrCat(input.file, ": ", unknown.message()));
  }
  Input one = input;
  one.host.clear();
  Reading first(*format, one, options);
  first.report.file = input.file;
  first.report.host = input.host;
  first.report.format = std::string(format->name);
  first.report.title = std::string(format->title);
  if (input.text.size() > format->max_bytes)
    return first.Refuse(
        0, absl::ResourceExhaustedError(absl::StrCat("the text has ", input.text.size(), " bytes, and at most ",
                                                     format->max_bytes, " are read")));
  if (format->inside_host && input.host.empty())
    return first.Refuse(
        0, "it says what is inside one host, but not of which",
        absl::StrCat("give it as HOST=", input.file, ", or n[01-32]=", input.file, " for hosts that are alike"));
  if (!format->inside_host && !input.host.empty())
    return first.Refuse(0, "it is about a cluster, not about the inside of a host",
                        absl::StrCat("give it as ", input.file, ", without ", input.host, "="));
  Graph all;
  if (!format->inside_host) {
    SLUICE_RETURN_IF_ERROR(format->read(&first));
    all = std::move(first.graph);
    tiers->insert(tiers->end(), first.tiers.begin(), first.tiers.end());
  } else {
    const absl::StatusOr<std::vector<std::string>> hosts = ExpandHostlist(input.host, kMaxAlikeHosts);
    if (!hosts.ok()) return first.Refuse(0, hosts.status(), "before '=' stands a host or a list of hosts");
    for (size_t i = 0; i < hosts->size(); ++i) {
      one.host = (*hosts)[i];
      Reading reading(*format, one, options);
      reading.report = first.report;
      SLUICE_RETURN_IF_ERROR(format->read(&reading));
      const absl::Status merged = all.Merge(reading.graph);
      if (!merged.ok()) return first.Refuse(0, merged);
      if (i == 0) first.report = std::move(reading.report);  // the others would say the same
    }
  }
  if (all.vertices().empty() && first.tiers.empty()) return first.Refuse(0, "it names no host and no switch");
  if (report != nullptr) {
    *report = std::move(first.report);
    Count(all, report);
  }
  return all;
}

}  // namespace

std::vector<std::string> FormatNames() {
  std::vector<std::string> names;
  for (const Format* format : AllFormats()) names.emplace_back(format->name);
  return names;
}

absl::StatusOr<std::string> Recognise(absl::string_view text) {
  text = WithoutByteOrderMark(text);
  const Format* format = Find(text);
  if (format == nullptr) return Unknown(text);
  return std::string(format->name);
}

absl::StatusOr<Graph> Read(const Input& input, const ReadOptions& options, Report* report) {
  std::vector<TierSpeed> tiers;
  SLUICE_ASSIGN_OR_RETURN(Graph graph, ReadOne(input, options, report, &tiers));
  graph.Finish();
  FillTiers(tiers, &graph);
  return graph;
}

absl::StatusOr<Graph> ReadAll(std::span<const Input> inputs, const ReadOptions& options, std::vector<Report>* reports) {
  size_t bytes = 0;
  for (const Input& input : inputs) bytes += std::min(input.text.size(), kMaxTextBytes + 1);
  if (bytes > kMaxTextBytes)
    return absl::ResourceExhaustedError(
        absl::StrCat("the topology's files have ", bytes, " bytes; at most ", kMaxTextBytes, " are read"));
  std::vector<TierSpeed> tiers;
  Graph all;
  for (const Input& input : inputs) {
    Report report;
    SLUICE_ASSIGN_OR_RETURN(const Graph graph, ReadOne(input, options, &report, &tiers));
    if (reports != nullptr) reports->push_back(std::move(report));
    const absl::Status merged = all.Merge(graph);
    if (!merged.ok())
      return absl::Status(
          merged.code(),
          absl::StrCat(input.file, ": it does not go together with the files before it: ", merged.message()));
  }
  all.Finish();
  FillTiers(tiers, &all);
  return all;
}

absl::StatusOr<FileSpec> ParseFileSpec(absl::string_view text) {
  FileSpec spec;
  // A list of hosts has no '/' but in no case before the '='; a path may have a '=' after one.
  const size_t equals = text.find('=');
  if (equals != absl::string_view::npos && text.substr(0, equals).find('/') == absl::string_view::npos) {
    spec.hosts = std::string(text.substr(0, equals));
    if (spec.hosts.empty())
      return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": a host is missing before '='"));
    text.remove_prefix(equals + 1);
  }
  const size_t hash = text.rfind('#');
  if (hash != absl::string_view::npos && hash + 1 < text.size() && text.find('/', hash) == absl::string_view::npos) {
    spec.choice = std::string(text.substr(hash + 1));
    text = text.substr(0, hash);
  }
  spec.file = std::string(text);
  if (spec.file.empty()) return absl::InvalidArgumentError("the name of a topology file is missing");
  return spec;
}

std::vector<std::string> SplitFileSpecs(absl::string_view text) {
  std::vector<std::string> specs;
  size_t begin = 0;
  bool in_brackets = false;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && (text[i] != ',' || in_brackets)) {
      if (text[i] == '[') in_brackets = true;
      if (text[i] == ']') in_brackets = false;
      continue;
    }
    const absl::string_view spec = absl::StripAsciiWhitespace(text.substr(begin, i - begin));
    if (!spec.empty()) specs.emplace_back(spec);
    begin = i + 1;
  }
  return specs;
}

}  // namespace sluice::topology
