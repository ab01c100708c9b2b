// `kubectl get nodes -o json`: where nodes are, as their labels say.
//
// No set of labels won, so the list of labels, the widest first, is configuration (topology.node_labels). A node hangs
// on the narrowest of the labels that it has, this on the next wider one, and so on; values need be unique only within
// a wider one, so a switch is named by all of them: "us-east/us-east-1a/nn-3". A label that no two nodes share (a name
// of the machine below) says nothing of the network and is skipped.
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/hostlist.h"
#include "scheduler/topology/formats/json_text.h"
#include "scheduler/topology/formats/list.h"

namespace sluice::topology {
namespace {

constexpr uint32_t kMaxSlots = 1024;

bool LooksLike(absl::string_view text) {
  const absl::string_view head = text.substr(0, 65536);
  const absl::string_view first = FirstLine(head);
  if (!absl::StartsWith(first, "{")) return false;
  return absl::StrContains(head, "\"apiVersion\"") && absl::StrContains(head, "\"kind\"");
}

struct Node {
  std::string name;
  std::vector<std::string> values;  // by label; "" = it has not got it
  uint32_t slots = 0;
  bool ready = true, schedulable = true;
};

class Nodes {
 public:
  explicit Nodes(Reading* reading)
      : reading_(reading),
        labels_(reading->options.node_labels.empty() ? DefaultNodeLabels() : reading->options.node_labels) {}

  absl::Status Read() {
    SLUICE_ASSIGN_OR_RETURN(const nlohmann::json json,
                            ParseJson(*reading_, {"managedFields", "images", "annotations", "nodeInfo",
                                                  "volumesAttached", "volumesInUse"}));
    const std::string kind = TextOf(Member(json, "kind"));
    if (kind == "Node") {
      SLUICE_RETURN_IF_ERROR(One(json, 0));
    } else {
      const nlohmann::json& items = Member(json, "items");
      if ((kind != "List" && kind != "NodeList") || !items.is_array())
        return reading_->Refuse(0, absl::StrCat("kind ", Shown(kind), " is no list of nodes"),
                                "give `kubectl get nodes -o json`");
      for (size_t i = 0; i < items.size(); ++i) SLUICE_RETURN_IF_ERROR(One(items[i], i));
    }
    if (nodes_.empty()) return reading_->Refuse(0, "the list of nodes is empty", "ask as one who may list nodes");
    return Build();
  }

 private:
  absl::Status One(const nlohmann::json& item, size_t index) {
    Node node;
    const nlohmann::json& metadata = Member(item, "metadata");
    node.name = TextOf(Member(metadata, "name"));
    const std::string where =
        absl::StrCat("items[", index, "]", node.name.empty() ? "" : absl::StrCat(" (", node.name, ")"));
    if (const std::string kind = TextOf(Member(item, "kind")); !kind.empty() && kind != "Node")
      return reading_->Refuse(0, absl::StrCat(where, " is of kind ", Shown(kind), ", not Node"),
                              "give `kubectl get nodes -o json`");
    if (!IsHostlistName(node.name))
      return reading_->Refuse(0, absl::StrCat(where, ": metadata.name is no name of a host"));
    if (!names_.emplace(node.name, index).second)
      return reading_->Refuse(0, absl::StrCat(where, " has the name of items[", names_[node.name], "]"));
    const nlohmann::json& labels = Member(metadata, "labels");
    for (const std::string& label : labels_) node.values.push_back(TextOf(Member(labels, label)));
    const nlohmann::json& status = Member(item, "status");
    for (const char* resource : {"nvidia.com/gpu", "amd.com/gpu"}) {
      const nlohmann::json& capacity = Member(Member(status, "capacity"), resource);
      if (capacity.is_null()) continue;
      const std::string text = capacity.is_string()
                                   ? capacity.get<std::string>()
                                   : capacity.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      uint32_t gpus = 0;
      if (!absl::SimpleAtoi(text, &gpus) || gpus > kMaxSlots)
        return reading_->Refuse(
            0, absl::StrCat(where, ": capacity of ", resource, " is ", Shown(text), ", no number up to ", kMaxSlots));
      node.slots += gpus;
    }
    const nlohmann::json& conditions = Member(status, "conditions");
    if (conditions.is_array())
      for (const nlohmann::json& condition : conditions)
        if (TextOf(Member(condition, "type")) == "Ready") node.ready = TextOf(Member(condition, "status")) == "True";
    const nlohmann::json& unschedulable = Member(Member(item, "spec"), "unschedulable");
    node.schedulable = !unschedulable.is_boolean() || !unschedulable.get<bool>();
    nodes_.push_back(std::move(node));
    return absl::OkStatus();
  }

  // Labels that two nodes share; the others say nothing of the network.
  std::vector<size_t> UsefulLabels() {
    std::vector<size_t> useful;
    std::vector<std::string> used, own;
    for (size_t l = 0; l < labels_.size(); ++l) {
      absl::flat_hash_map<std::string, size_t> count;
      bool shared = nodes_.size() == 1, any = false;
      for (const Node& node : nodes_) {
        if (node.values[l].empty()) continue;
        any = true;
        shared = ++count[node.values[l]] > 1 || shared;
      }
      if (!any) continue;
      (shared ? used : own).push_back(labels_[l]);
      if (shared) useful.push_back(l);
    }
    if (!own.empty())
      reading_->Warn(0, absl::StrCat("no two nodes share a value of ", absl::StrJoin(own, ", "), ": not used"));
    if (!used.empty()) absl::StrAppend(&reading_->report.title, " (", absl::StrJoin(used, " > "), ")");
    return useful;
  }

  absl::Status Build() {
    const std::vector<size_t> useful = UsefulLabels();
    std::vector<std::string> unlabelled, not_ready, cordoned;
    absl::flat_hash_map<uint32_t, uint32_t> parent;  // of switches
    for (const Node& node : nodes_) {
      SLUICE_ASSIGN_OR_RETURN(const uint32_t host, reading_->Add(0, VertexKind::kHost, node.name));
      Vertex& vertex = reading_->graph.vertex(host);
      vertex.slots = node.slots;
      if (!node.ready)
        not_ready.push_back(node.name), vertex.note = "not ready";
      else if (!node.schedulable)
        cordoned.push_back(node.name), vertex.note = "unschedulable";
      std::string path;
      uint32_t above = kNone;
      for (const size_t l : useful) {
        if (node.values[l].empty()) continue;
        absl::StrAppend(&path, path.empty() ? "" : "/", node.values[l]);
        const bool is_new = reading_->graph.Find(path) == kNone;
        SLUICE_ASSIGN_OR_RETURN(const uint32_t tier, reading_->Add(0, VertexKind::kSwitch, path));
        if (is_new) {
          reading_->graph.vertex(tier).note = labels_[l];
          if (above != kNone) SLUICE_RETURN_IF_ERROR(reading_->Connect(0, tier, above, Medium::kUnknown));
        }
        above = tier;
      }
      if (above == kNone)
        unlabelled.push_back(node.name);
      else
        SLUICE_RETURN_IF_ERROR(reading_->Connect(0, host, above, Medium::kUnknown));
    }
    Warn(unlabelled,
         "have none of the labels that say where a node is: they hang on nothing; set topology.node_labels");
    Warn(not_ready, "are not ready: they are in the graph all the same");
    Warn(cordoned, "are unschedulable: they are in the graph all the same");
    return absl::OkStatus();
  }

  void Warn(const std::vector<std::string>& names, absl::string_view what) {
    if (names.empty()) return;
    constexpr size_t kShownBytes = 200;
    const std::string list = CompressHostlist(names);
    reading_->Warn(0, absl::StrCat(names.size(), " nodes (", list.substr(0, kShownBytes),
                                   list.size() > kShownBytes ? "…" : "", ") ", what));
  }

  Reading* const reading_;
  const std::vector<std::string>& labels_;
  std::vector<Node> nodes_;
  absl::flat_hash_map<std::string, size_t> names_;
};

absl::Status ReadNodes(Reading* reading) { return Nodes(reading).Read(); }

}  // namespace

const std::vector<std::string>& DefaultNodeLabels() {
  static const auto* const labels = new std::vector<std::string>{"topology.kubernetes.io/region",
                                                                 "topology.kubernetes.io/zone",
                                                                 "topology.k8s.aws/network-node-layer-1",
                                                                 "topology.k8s.aws/network-node-layer-2",
                                                                 "topology.k8s.aws/network-node-layer-3",
                                                                 "cloud.google.com/gce-topology-block",
                                                                 "cloud.google.com/gce-topology-subblock",
                                                                 "cloud.google.com/gce-topology-host",
                                                                 "oci.oraclecloud.com/host.network_block_id",
                                                                 "oci.oraclecloud.com/host.rack_id",
                                                                 "fabric.topograph.run/tier-5",
                                                                 "fabric.topograph.run/tier-4",
                                                                 "fabric.topograph.run/tier-3",
                                                                 "fabric.topograph.run/tier-2",
                                                                 "fabric.topograph.run/tier-1",
                                                                 "fabric.topograph.run/tier-0",
                                                                 "nvidia.com/gpu.clique"};
  return *labels;
}

const Format& KubernetesFormat() {
  static const Format format = {.name = "kubernetes",
                                .title = "Kubernetes nodes",
                                .max_bytes = kMaxTextBytes,
                                .looks_like = LooksLike,
                                .read = ReadNodes};
  return format;
}

}  // namespace sluice::topology
