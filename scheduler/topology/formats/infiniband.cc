#include "scheduler/topology/formats/infiniband.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/hostlist.h"

namespace sluice::topology::infiniband {
namespace {

constexpr size_t kMaxNoteBytes = 255;  // of a description; devices have 64, name maps may have more
constexpr uint32_t kMaxPort = 254;     // of InfiniBand

// Gb/s of payload bits of a lane: 8b/10b up to QDR, 64b/66b since.
constexpr struct {
  absl::string_view name;
  double gigabits;
} kSpeeds[] = {{"SDR", 2},  {"DDR", 4},  {"QDR", 8},   {"FDR10", 10}, {"FDR", 14.0625 * 64 / 66},
               {"EDR", 25}, {"HDR", 50}, {"NDR", 100}, {"XDR", 200},  {"GDR", 400}};

bool IsVendorsName(absl::string_view text) {
  return text.empty() || absl::StrContains(text, "Technologies") || absl::StrContains(text, "ConnectX") ||
         absl::StrContains(text, "Infiniscale") || absl::StrContains(text, "SwitchX") ||
         (absl::StartsWith(text, "MT") && text.size() > 2 && absl::ascii_isdigit(text[2]));
}

// What operators call a switch: "MF0;NAME:MODEL/U1" is NAME; of a modular one, "MF0;NAME:MODEL/L01/U1", also
// NAME/L01/U1.
std::vector<std::string> SwitchNames(absl::string_view description) {
  if (IsVendorsName(description)) return {};
  if (!absl::StartsWith(description, "MF0;")) return {std::string(description)};
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(description.substr(4), absl::MaxSplits(':', 1));
  std::vector<std::string> names = {std::string(parts.first)};
  const size_t slash = parts.second.find('/');
  if (slash != absl::string_view::npos) names.push_back(absl::StrCat(parts.first, parts.second.substr(slash)));
  return names;
}

}  // namespace

double BytesPerSecond(absl::string_view width, absl::string_view speed) {
  uint32_t lanes = 0;
  if (absl::StartsWith(speed, "?") || absl::StartsWith(width, "?")) return 0;
  if (!absl::EndsWith(width, "x") || !absl::SimpleAtoi(width.substr(0, width.size() - 1), &lanes)) return -1;
  if (lanes != 1 && lanes != 2 && lanes != 4 && lanes != 8 && lanes != 12) return -1;
  for (const auto& known : kSpeeds)
    if (speed == known.name) return lanes * known.gigabits * 1e9 / 8;
  return -1;
}

absl::StatusOr<uint32_t> Fabric::NodeOf(size_t line, const End& end) {
  const auto [it, is_new] = by_id_.emplace(end.id, static_cast<uint32_t>(nodes_.size()));
  if (is_new) {
    if (nodes_.size() >= kMaxVertices) return reading_->Refuse(line, "too many nodes");
    nodes_.push_back({.line = line, .kind = end.kind, .id = end.id});
  }
  Node& node = nodes_[it->second];
  if (node.kind != end.kind)
    return reading_->Refuse(line, absl::StrCat("\"", end.id, "\" is a switch here and an adapter in line ", node.line));
  if (node.description.empty() && !end.description.empty()) {
    node.description = end.description;
    node.aggregation = end.kind == Kind::kAdapter && absl::StrContains(end.description, "Aggregation Node");
  }
  return it->second;
}

absl::Status Fabric::AddNode(size_t line, const End& end) { return NodeOf(line, end).status(); }

std::string Fabric::Text(uint64_t key) const {
  return absl::StrCat("port ", static_cast<uint32_t>(key), " of \"", nodes_[key >> 32].id, "\"");
}

absl::Status Fabric::AddCable(size_t line, const End& from, const End& to, double bytes_per_second) {
  SLUICE_ASSIGN_OR_RETURN(const uint32_t a, NodeOf(line, from));
  SLUICE_ASSIGN_OR_RETURN(const uint32_t b, NodeOf(line, to));
  if (from.port == 0 || from.port > kMaxPort || to.port == 0 || to.port > kMaxPort)
    return reading_->Refuse(line, absl::StrCat("a port is not within 1 to ", kMaxPort));
  if (bytes_per_second < 0)
    return reading_->Refuse(line, "no such width and speed", "known are 1x to 12x of SDR to XDR");
  const uint64_t near = Key(a, from.port), far = Key(b, to.port);
  if (near == far) return reading_->Refuse(line, absl::StrCat(Text(near), " is cabled with itself"));
  if (const auto known = ports_.find(near); known != ports_.end()) {
    Port& port = known->second;
    if (port.peer != far)
      return reading_->Refuse(line,
                              absl::StrCat(Text(near), " is cabled with ", Text(far), " here and with ",
                                           Text(port.peer), " in line ", port.line),
                              "run ibnetdiscover again while nothing is being changed");
    if (port.listed)
      return reading_->Refuse(line, absl::StrCat(Text(near), " is listed in line ", port.line, " already"));
    if (port.bytes_per_second != bytes_per_second) {
      reading_->Warn(line, absl::StrCat(Text(near), " has another speed at its other end: the slower one counts"));
      port.bytes_per_second = ports_[far].bytes_per_second = std::min(port.bytes_per_second, bytes_per_second);
    }
    port.listed = true;
    return absl::OkStatus();
  }
  if (const auto known = ports_.find(far); known != ports_.end())
    return reading_->Refuse(line,
                            absl::StrCat(Text(far), " is cabled with ", Text(near), " here and with ",
                                         Text(known->second.peer), " in line ", known->second.line),
                            "run ibnetdiscover again while nothing is being changed");
  ports_[near] = {.peer = far, .line = line, .bytes_per_second = bytes_per_second, .listed = true};
  ports_[far] = {.peer = near, .line = line, .bytes_per_second = bytes_per_second, .listed = false};
  cables_.push_back({near, far});
  return absl::OkStatus();
}

absl::Status Fabric::NameSwitches() {
  absl::flat_hash_map<std::string, size_t> uses;
  absl::flat_hash_set<std::string> hosts;
  for (const Node& node : nodes_) {
    if (node.kind == Kind::kAdapter)
      hosts.insert(std::string(node.description.substr(0, node.description.find(' '))));
    else
      for (const std::string& name : SwitchNames(node.description)) ++uses[name];
  }
  for (Node& node : nodes_) {
    if (node.kind == Kind::kAdapter) continue;
    std::string chosen = node.id;
    for (const std::string& name : SwitchNames(node.description))
      if (uses[name] == 1 && IsHostlistName(name) && !hosts.contains(name) && !by_id_.contains(name)) {
        chosen = name;
        break;
      }
    SLUICE_ASSIGN_OR_RETURN(node.vertex, reading_->Add(node.line, VertexKind::kSwitch, chosen));
    reading_->graph.vertex(node.vertex).note = node.description.substr(0, kMaxNoteBytes);
  }
  return absl::OkStatus();
}

absl::Status Fabric::NameAdapters() {
  size_t aggregation = 0, nameless = 0, numbered = 0;
  std::string first_nameless;
  for (Node& node : nodes_) {
    if (node.kind != Kind::kAdapter) continue;
    if (node.aggregation) {
      ++aggregation;
      continue;
    }
    const std::vector<std::string> words = absl::StrSplit(node.description, ' ', absl::SkipEmpty());
    std::string host = node.id;
    node.nic = "hca";
    if (IsVendorsName(node.description) || words.empty() || words.size() > 2 || !IsHostlistName(words[0]) ||
        words[0] == "localhost" || !IsHostlistName(words.back())) {
      if (nameless++ == 0) first_nameless = node.description;
    } else {
      host = words[0];
      node.nic = words.size() == 2 ? words[1] : node.id;
      numbered += absl::StartsWith(node.nic, "HCA-");
    }
    SLUICE_ASSIGN_OR_RETURN(node.host, reading_->Add(node.line, VertexKind::kHost, host));
    if (host == node.id) reading_->graph.vertex(node.host).note = node.description.substr(0, kMaxNoteBytes);
  }
  if (aggregation > 0)
    reading_->Warn(
        0, absl::StrCat(aggregation, " aggregation nodes (SHARP, inside switches) are left out: they are no hosts"));
  if (nameless > 0)
    reading_->Warn(
        0, absl::StrCat(nameless, " adapters do not say whose they are (such as ", Shown(first_nameless),
                        "): each is taken as a host of its own, named by its GUID; set node descriptions (rdma-ndd)"));
  if (numbered > 0)
    reading_->Warn(
        0,
        absl::StrCat(numbered, " adapters are called HCA-N: these do not match device names (mlx5_N) of other files"));
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Fabric::VertexOf(const Node& node, uint32_t port) {
  if (node.kind != Kind::kAdapter) return node.vertex;
  // A port has one cable, so this is its first and only time.
  std::string name =
      absl::StrCat(reading_->graph.vertex(node.host).name, "/", node.nic, port > 1 ? absl::StrCat(":", port) : "");
  if (reading_->graph.Find(name) != kNone) {
    reading_->Warn(node.line, absl::StrCat("\"", node.description, "\" is the description of several adapters"));
    absl::StrAppend(&name, "@", node.id);
  }
  SLUICE_ASSIGN_OR_RETURN(const uint32_t nic, reading_->Add(node.line, VertexKind::kNic, name, node.host));
  SLUICE_RETURN_IF_ERROR(reading_->Connect(node.line, nic, node.host, Medium::kPcie));
  return nic;
}

absl::Status Fabric::Finish() {
  SLUICE_RETURN_IF_ERROR(NameSwitches());
  SLUICE_RETURN_IF_ERROR(NameAdapters());
  for (const auto& [near, far] : cables_) {
    const Node &a = nodes_[near >> 32], &b = nodes_[far >> 32];
    if (a.aggregation || b.aggregation) continue;
    const Port& port = ports_[near];
    if (a.vertex != kNone && a.vertex == b.vertex) {
      reading_->Warn(port.line, absl::StrCat(Text(near), " is cabled with the same switch: left out"));
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(const uint32_t from, VertexOf(a, static_cast<uint32_t>(near)));
    SLUICE_ASSIGN_OR_RETURN(const uint32_t to, VertexOf(b, static_cast<uint32_t>(far)));
    // A cable may be listed as down at one end only; then its speed is not known.
    SLUICE_RETURN_IF_ERROR(reading_->Connect(port.line, from, to, Medium::kInfiniband, port.bytes_per_second));
  }
  if (down_ports_ > 0) reading_->Warn(0, absl::StrCat(down_ports_, " ports are down and have no link"));
  return absl::OkStatus();
}

}  // namespace sluice::topology::infiniband
