// Slurm's topology.yaml (24.11 and later): a list of topologies, of which one is read.
//
//   - topology: NAME
//     cluster_default: true
//     tree: {switches: [{switch: s1, nodes: "n[01-02]"}, {switch: r, children: s1}]}
//   or block: {block_sizes: [4, 16], blocks: [{block: b1, nodes: …}]}
//   or flat: true
//   or ring: {rings: [{ring: r1, nodes: …}]}                                            (25.05)
//   or torus3d: {toruses: [{name: t1, dims: {x: 4, y: 4, z: 2}, nodes: … or regions: [{anchor:, dims:, nodes:}]}]}
//
// The one that Input.choice names, else the first with cluster_default, else the first. All are checked.
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/hostlist.h"
#include "scheduler/topology/formats/list.h"
#include "scheduler/topology/formats/slurm.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/yaml.h"

namespace sluice::topology {
namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;  // yaml-cpp takes some forty times as much memory
constexpr size_t kMaxBlockSizes = 16;

bool LooksLike(absl::string_view text) {
  const absl::string_view head = text.substr(0, 65536), first = FirstLine(text);
  if (first.empty() || first[0] == '<' || first[0] == '{') return false;
  for (size_t at = head.find("topology"); at != absl::string_view::npos; at = head.find("topology", at + 1)) {
    absl::string_view after = head.substr(at + 8);
    if (!after.empty() && (after[0] == '"' || after[0] == '\'')) after.remove_prefix(1);
    const bool begins = at == 0 || absl::string_view(" \t\n-{\"',").find(head[at - 1]) != absl::string_view::npos;
    if (begins && !after.empty() && after[0] == ':') return true;
  }
  return false;
}

size_t LineOf(const YAML::Node& node) { return node.Mark().is_null() ? 0 : static_cast<size_t>(node.Mark().line) + 1; }

// A map of which every key must be asked for, and stand once.
class Map {
 public:
  static absl::StatusOr<Map> Of(const YAML::Node& node, absl::string_view what, const Reading& reading) {
    Map map(LineOf(node), what, reading);
    if (!node.IsMap()) return reading.Refuse(map.line_, absl::StrCat(what, " is no map of keys and values"));
    for (const auto& pair : node) {
      if (!pair.first.IsScalar())
        return reading.Refuse(LineOf(pair.first), absl::StrCat("a key of ", what, " is no word"));
      if (!map.values_.emplace(pair.first.Scalar(), Value{LineOf(pair.first), pair.second}).second)
        return reading.Refuse(LineOf(pair.first),
                              absl::StrCat("key ", Shown(pair.first.Scalar()), " stands twice in ", what),
                              "keep one of them");
    }
    return map;
  }

  size_t line() const { return line_; }
  bool Has(const std::string& key) const { return values_.contains(key); }

  // "" if it is not there.
  absl::StatusOr<std::string> Text(const std::string& key) {
    SLUICE_ASSIGN_OR_RETURN(const YAML::Node node, Take(key));
    if (!node.IsDefined() || node.IsNull()) return "";
    if (!node.IsScalar()) return Refuse(node, absl::StrCat("the value of ", key, " is no word"));
    return node.Scalar();
  }
  absl::StatusOr<bool> Bool(const std::string& key) {
    SLUICE_ASSIGN_OR_RETURN(const YAML::Node node, Take(key));
    if (!node.IsDefined()) return false;
    bool value = false;
    if (!node.IsScalar() || !YAML::convert<bool>::decode(node, value))
      return Refuse(node, absl::StrCat("the value of ", key, " is neither true nor false"));
    return value;
  }
  absl::StatusOr<uint32_t> Number(const std::string& key) {
    SLUICE_ASSIGN_OR_RETURN(const std::string text, Text(key));
    uint32_t value = 0;
    if (!text.empty() && !absl::SimpleAtoi(text, &value))
      return reading_->Refuse(line_, absl::StrCat("the value of ", key, " is no number: ", Shown(text)));
    return value;
  }
  // Empty if it is not there.
  absl::StatusOr<std::vector<YAML::Node>> List(const std::string& key) {
    SLUICE_ASSIGN_OR_RETURN(const YAML::Node node, Take(key));
    std::vector<YAML::Node> nodes;
    if (!node.IsDefined()) return nodes;
    if (!node.IsSequence()) return Refuse(node, absl::StrCat("the value of ", key, " is no list"));
    for (const YAML::Node& item : node) nodes.push_back(item);
    return nodes;
  }
  absl::StatusOr<YAML::Node> Take(const std::string& key) {
    const auto it = values_.find(key);
    if (it == values_.end()) return YAML::Node(YAML::NodeType::Undefined);
    const YAML::Node node = it->second.node;
    values_.erase(it);
    return node;
  }
  // To be asked at the end.
  absl::Status Done() const {
    size_t first = ~size_t{0};
    std::string key;
    for (const auto& [name, value] : values_)
      if (value.line < first) {
        first = value.line;
        key = name;
      }
    return key.empty() ? absl::OkStatus()
                       : reading_->Refuse(first, absl::StrCat("unknown key ", Shown(key), " in ", what_));
  }

 private:
  struct Value {
    size_t line;
    YAML::Node node;
  };
  Map(size_t line, absl::string_view what, const Reading& reading) : line_(line), what_(what), reading_(&reading) {}
  absl::Status Refuse(const YAML::Node& node, absl::string_view what) const {
    return reading_->Refuse(LineOf(node), absl::StrCat(what, ", in ", what_));
  }

  size_t line_;
  std::string what_;
  const Reading* reading_;
  absl::flat_hash_map<std::string, Value> values_;
};

struct Topology {
  size_t line = 0;
  std::string name, kind;  // kind: "tree"
  bool is_default = false;
  std::vector<slurm::Switch> switches;
  std::vector<slurm::Group> groups;  // blocks or rings
  std::vector<uint32_t> sizes;
  size_t sizes_line = 0;
  std::vector<slurm::Torus> toruses;
};

class Parser {
 public:
  explicit Parser(Reading* reading) : reading_(*reading) {}

  absl::StatusOr<std::vector<Topology>> Parse(const YAML::Node& root) {
    if (!root.IsSequence())
      return reading_.Refuse(LineOf(root), "it is no list of topologies", "begin each with \"- topology: NAME\"");
    std::vector<Topology> topologies;
    for (const YAML::Node& item : root) {
      SLUICE_ASSIGN_OR_RETURN(Topology topology, One(item));
      for (const Topology& other : topologies)
        if (other.name == topology.name)
          return reading_.Refuse(
              topology.line, absl::StrCat("topology ", Shown(topology.name), " is in line ", other.line, " already"));
      topologies.push_back(std::move(topology));
    }
    if (topologies.empty()) return reading_.Refuse(0, "the list of topologies is empty");
    return topologies;
  }

 private:
  absl::StatusOr<Topology> One(const YAML::Node& item) {
    SLUICE_ASSIGN_OR_RETURN(Map map, Map::Of(item, "a topology", reading_));
    Topology out{.line = map.line()};
    SLUICE_ASSIGN_OR_RETURN(out.name, map.Text("topology"));
    if (out.name.empty())
      return reading_.Refuse(out.line, "a topology without a name", "begin it with \"- topology: NAME\"");
    SLUICE_ASSIGN_OR_RETURN(out.is_default, map.Bool("cluster_default"));
    for (const char* kind : {"tree", "block", "flat", "ring", "torus3d"}) {
      if (!map.Has(kind)) continue;
      SLUICE_ASSIGN_OR_RETURN(const YAML::Node node, map.Take(kind));
      if (!out.kind.empty())
        return reading_.Refuse(LineOf(node),
                               absl::StrCat("topology ", Shown(out.name), " is ", out.kind, " and ", kind),
                               "Slurm allows one of tree, block, flat, ring, torus3d");
      out.kind = kind;
      SLUICE_RETURN_IF_ERROR(Body(node, &out));
    }
    SLUICE_RETURN_IF_ERROR(map.Done());
    if (out.kind.empty())
      return reading_.Refuse(
          out.line, absl::StrCat("topology ", Shown(out.name), " has none of tree, block, flat, ring, torus3d"));
    return out;
  }

  absl::Status Body(const YAML::Node& node, Topology* out) {
    if (out->kind == "flat" && node.IsScalar()) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(Map map, Map::Of(node, out->kind, reading_));
    if (out->kind == "flat") {
      SLUICE_RETURN_IF_ERROR(map.Bool("alpha_step_rank").status());
    } else if (out->kind == "tree") {
      SLUICE_ASSIGN_OR_RETURN(const std::vector<YAML::Node> items, map.List("switches"));
      for (const YAML::Node& item : items) {
        SLUICE_ASSIGN_OR_RETURN(Map entry, Map::Of(item, "a switch", reading_));
        slurm::Switch s{.line = entry.line()};
        SLUICE_ASSIGN_OR_RETURN(s.name, Name(&entry, "switch"));
        SLUICE_ASSIGN_OR_RETURN(s.nodes, entry.Text("nodes"));
        SLUICE_ASSIGN_OR_RETURN(s.children, entry.Text("children"));
        SLUICE_RETURN_IF_ERROR(entry.Done());
        out->switches.push_back(std::move(s));
      }
    } else if (out->kind == "block") {
      SLUICE_RETURN_IF_ERROR(Sizes(&map, out));
      SLUICE_RETURN_IF_ERROR(Groups(&map, "blocks", "block", out));
    } else if (out->kind == "ring") {
      SLUICE_RETURN_IF_ERROR(Groups(&map, "rings", "ring", out));
    } else {
      SLUICE_RETURN_IF_ERROR(Toruses(&map, out));
    }
    SLUICE_RETURN_IF_ERROR(map.Done());
    if (out->kind != "flat" && out->switches.empty() && out->groups.empty() && out->toruses.empty())
      return reading_.Refuse(map.line(), absl::StrCat(out->kind, " of topology ", Shown(out->name), " is empty"));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Name(Map* entry, const std::string& key) {
    SLUICE_ASSIGN_OR_RETURN(std::string name, entry->Text(key));
    if (!IsHostlistName(name))
      return reading_.Refuse(entry->line(), absl::StrCat(key, ": ", Shown(name), " is no name of one"));
    return name;
  }

  absl::Status Sizes(Map* map, Topology* out) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<YAML::Node> sizes, map->List("block_sizes"));
    for (const YAML::Node& size : sizes) {
      uint32_t value = 0;
      if (!size.IsScalar() || !absl::SimpleAtoi(size.Scalar(), &value) || out->sizes.size() == kMaxBlockSizes)
        return reading_.Refuse(LineOf(size), "block_sizes is no list of at most 16 numbers");
      out->sizes.push_back(value);
      out->sizes_line = LineOf(size);
    }
    return absl::OkStatus();
  }

  absl::Status Groups(Map* map, const std::string& key, const std::string& name, Topology* out) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<YAML::Node> items, map->List(key));
    for (const YAML::Node& item : items) {
      SLUICE_ASSIGN_OR_RETURN(Map entry, Map::Of(item, absl::StrCat("a ", name), reading_));
      slurm::Group group{.line = entry.line()};
      SLUICE_ASSIGN_OR_RETURN(group.name, Name(&entry, name));
      SLUICE_ASSIGN_OR_RETURN(group.nodes, entry.Text("nodes"));
      SLUICE_RETURN_IF_ERROR(entry.Done());
      out->groups.push_back(std::move(group));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<slurm::Torus::Dims> Dims(Map* map, const std::string& key) {
    slurm::Torus::Dims dims;
    SLUICE_ASSIGN_OR_RETURN(const YAML::Node node, map->Take(key));
    if (!node.IsDefined()) return dims;
    SLUICE_ASSIGN_OR_RETURN(Map entry, Map::Of(node, key, reading_));
    SLUICE_ASSIGN_OR_RETURN(dims.x, entry.Number("x"));
    SLUICE_ASSIGN_OR_RETURN(dims.y, entry.Number("y"));
    SLUICE_ASSIGN_OR_RETURN(dims.z, entry.Number("z"));
    SLUICE_RETURN_IF_ERROR(entry.Done());
    constexpr uint32_t kMax = 65535;
    if (dims.x > kMax || dims.y > kMax || dims.z > kMax)
      return reading_.Refuse(entry.line(), absl::StrCat(key, ": a number above ", kMax));
    return dims;
  }

  absl::Status Toruses(Map* map, Topology* out) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<YAML::Node> items, map->List("toruses"));
    for (const YAML::Node& item : items) {
      SLUICE_ASSIGN_OR_RETURN(Map entry, Map::Of(item, "a torus", reading_));
      slurm::Torus torus{.line = entry.line()};
      SLUICE_ASSIGN_OR_RETURN(torus.name, Name(&entry, "name"));
      SLUICE_ASSIGN_OR_RETURN(torus.nodes, entry.Text("nodes"));
      SLUICE_ASSIGN_OR_RETURN(torus.dims, Dims(&entry, "dims"));
      SLUICE_RETURN_IF_ERROR(entry.List("placements").status());  // shapes of jobs: nothing of the network
      SLUICE_ASSIGN_OR_RETURN(const std::vector<YAML::Node> regions, entry.List("regions"));
      for (const YAML::Node& part : regions) {
        SLUICE_ASSIGN_OR_RETURN(Map of, Map::Of(part, "a region", reading_));
        slurm::Torus::Region region{.line = of.line()};
        SLUICE_ASSIGN_OR_RETURN(region.anchor, Dims(&of, "anchor"));
        SLUICE_ASSIGN_OR_RETURN(region.dims, Dims(&of, "dims"));
        SLUICE_ASSIGN_OR_RETURN(region.nodes, of.Text("nodes"));
        SLUICE_RETURN_IF_ERROR(of.Done());
        torus.regions.push_back(std::move(region));
      }
      SLUICE_RETURN_IF_ERROR(entry.Done());
      out->toruses.push_back(std::move(torus));
    }
    return absl::OkStatus();
  }

  const Reading& reading_;
};

absl::StatusOr<Topology> Choose(std::vector<Topology> topologies, Reading* reading) {
  std::vector<std::string> names;
  for (const Topology& t : topologies) names.push_back(absl::StrCat(t.name, " (", t.kind, ")"));
  size_t chosen = topologies.size();
  for (size_t i = topologies.size(); i-- > 0;)
    if (reading->input.choice.empty() ? topologies[i].is_default : topologies[i].name == reading->input.choice)
      chosen = i;
  if (chosen == topologies.size()) {
    if (!reading->input.choice.empty())
      return reading->Refuse(0, absl::StrCat("it has no topology ", Shown(reading->input.choice)),
                             absl::StrCat("it has ", absl::StrJoin(names, ", ")));
    chosen = 0;
    if (topologies.size() > 1)
      reading->Warn(topologies[0].line,
                    absl::StrCat("no topology is cluster_default: the first, ", names[0], ", is read"));
  }
  if (topologies.size() > 1)
    reading->Warn(topologies[chosen].line, absl::StrCat("of ", absl::StrJoin(names, ", "), " ", names[chosen],
                                                        " is read; another is read by FILE#NAME"));
  return std::move(topologies[chosen]);
}

absl::Status ReadRoot(const YAML::Node& root, Reading* reading) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Topology> topologies, Parser(reading).Parse(root));
  SLUICE_ASSIGN_OR_RETURN(const Topology topology, Choose(std::move(topologies), reading));
  absl::StrAppend(&reading->report.title, " (", topology.kind, ")");
  if (topology.kind == "tree") return slurm::AddTree(topology.switches, reading);
  if (topology.kind == "block") return slurm::AddBlocks(topology.groups, topology.sizes, topology.sizes_line, reading);
  if (topology.kind == "ring") return slurm::AddRings(topology.groups, reading);
  if (topology.kind == "torus3d") return slurm::AddToruses(topology.toruses, reading);
  return reading->Refuse(topology.line, absl::StrCat("topology ", Shown(topology.name), " is flat: it names no node"),
                         "choose another as FILE#NAME, or leave the file out");
}

class Nothing final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// YAML::LoadAll would tell, but never ends on some texts that are no YAML: it finds empty documents without moving on.
bool HasSecondDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Nothing nothing;
  return parser.HandleNextDocument(nothing) && parser.HandleNextDocument(nothing);
}

absl::Status ReadYaml(Reading* reading) {
  // yaml-cpp throws; nothing of it leaves this function.
  try {
    const std::string text(reading->input.text);
    if (HasSecondDocument(text))
      return reading->Refuse(0, "it has more than one YAML document", "keep one, without further \"---\"");
    return ReadRoot(YAML::Load(text), reading);
  } catch (const YAML::Exception& error) {
    return reading->Refuse(error.mark.is_null() ? 0 : static_cast<size_t>(error.mark.line) + 1,
                           absl::StrCat("no YAML: ", error.msg));
  } catch (const std::exception& error) {
    return reading->Refuse(0, absl::StrCat("no YAML: ", error.what()));
  }
}

}  // namespace

const Format& SlurmYamlFormat() {
  static const Format format = {.name = "slurm-yaml",
                                .title = "Slurm topology.yaml",
                                .max_bytes = kMaxBytes,
                                .looks_like = LooksLike,
                                .read = ReadYaml};
  return format;
}

}  // namespace sluice::topology
