// How long it takes to read topologies of 24,000 nodes and more (the requirement: 24 k nodes of Slurm text in under 2
// s), to write them in the plain format, and to read that. Prints a table to stderr and JSON to stdout.
#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "bench/topology/rows.h"
#include "scheduler/topology/formats/format.h"
#include "scheduler/topology/formats/write.h"

namespace sluice::bench {
namespace {

constexpr uint32_t kPerLeaf = 24, kPerGroup = 40;  // nodes of a leaf, leaves of a group

// A tree of three tiers, as a list of ranges or, as some files have it, every node by name.
std::string SlurmText(uint32_t nodes, bool by_name) {
  std::string text;
  const uint32_t leaves = (nodes + kPerLeaf - 1) / kPerLeaf, groups = (leaves + kPerGroup - 1) / kPerGroup;
  for (uint32_t leaf = 0; leaf < leaves; ++leaf) {
    absl::StrAppend(&text, "SwitchName=leaf", leaf, " Nodes=");
    const uint32_t first = leaf * kPerLeaf, last = std::min(nodes, first + kPerLeaf) - 1;
    if (by_name)
      for (uint32_t n = first; n <= last; ++n)
        absl::StrAppend(&text, n == first ? "" : ",", "node", absl::Dec(n, absl::kZeroPad5));
    else
      absl::StrAppend(&text, "node[", absl::Dec(first, absl::kZeroPad5), "-", absl::Dec(last, absl::kZeroPad5), "]");
    text += "\n";
  }
  for (uint32_t group = 0; group < groups; ++group)
    absl::StrAppend(&text, "SwitchName=group", group, " Switches=leaf[", group * kPerGroup, "-",
                    std::min(leaves, (group + 1) * kPerGroup) - 1, "]\n");
  return absl::StrCat(text, "SwitchName=root Switches=group[0-", groups - 1, "]\n");
}

// As ibnetdiscover prints it: every cable from both ends.
std::string InfinibandText(uint32_t nodes) {
  const auto id = [](const char* kind, uint32_t n) {
    return absl::StrCat(kind, absl::Hex(0x100000 + n, absl::kZeroPad16));
  };
  std::string text = "# Topology file: generated on a day\n";
  const uint32_t leaves = (nodes + kPerLeaf - 1) / kPerLeaf;
  for (uint32_t leaf = 0; leaf < leaves; ++leaf) {
    absl::StrAppend(&text, "\nswitchguid=0x1\nSwitch\t65 \"", id("S-", leaf), "\"\t\t# \"MF0;leaf", leaf,
                    ":MQM9700/U1\" enhanced port 0 lid 1 lmc 0\n");
    for (uint32_t n = leaf * kPerLeaf; n < std::min(nodes, (leaf + 1) * kPerLeaf); ++n)
      absl::StrAppend(&text, "[", n % kPerLeaf + 1, "]\t\"", id("H-", n), "\"[1](1) \t\t# \"node", n,
                      " mlx5_0\" lid 2 4xNDR\n");
  }
  for (uint32_t n = 0; n < nodes; ++n)
    absl::StrAppend(&text, "\ncaguid=0x1\nCa\t1 \"", id("H-", n), "\"\t\t# \"node", n, " mlx5_0\"\n[1](1) \t\"",
                    id("S-", n / kPerLeaf), "\"[", n % kPerLeaf + 1, "]\t\t# lid 2 lmc 0 \"MF0;leaf", n / kPerLeaf,
                    ":MQM9700/U1\" lid 1 4xNDR\n");
  return text;
}

std::string KubernetesText(uint32_t nodes) {
  std::string text = "{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [";
  for (uint32_t n = 0; n < nodes; ++n)
    absl::StrAppend(&text, n == 0 ? "" : ",", "{\"kind\": \"Node\", \"metadata\": {\"name\": \"node", n,
                    "\", \"labels\": {\"topology.kubernetes.io/zone\": \"z", n % 4,
                    "\", \"topology.k8s.aws/network-node-layer-3\": \"nn-", n / kPerLeaf,
                    "\"}}, \"status\": {\"capacity\": {\"nvidia.com/gpu\": \"8\"}, \"conditions\": [{\"type\": "
                    "\"Ready\", \"status\": \"True\"}]}}");
  return text + "]}";
}

int Main() {
  nlohmann::json rows = nlohmann::json::array();
  bool ok = true;
  std::fprintf(stderr, "%-34s %8s %10s %8s %8s %8s\n", "text", "nodes", "KiB", "read", "write", "again");
  const auto row = [&](const std::string& name, uint32_t nodes, const std::string& text) {
    const double t0 = Seconds();
    const absl::StatusOr<topology::Graph> graph = topology::Read({.file = name, .text = text}, {}, nullptr);
    const double t1 = Seconds();
    if (!graph.ok() || graph->Hosts().size() != nodes) {
      std::fprintf(stderr, "%s: %s\n", name.c_str(), graph.status().ToString().c_str());
      ok = false;
      return;
    }
    const std::string written = topology::WritePlain(*graph);
    const double t2 = Seconds();
    const bool same = topology::Read({.file = "written", .text = written}, {}, nullptr).ok();
    const double t3 = Seconds();
    ok = ok && same;
    std::fprintf(stderr, "%-34s %8u %10zu %7.3fs %7.3fs %7.3fs\n", name.c_str(), nodes, text.size() >> 10, t1 - t0,
                 t2 - t1, t3 - t2);
    rows.push_back({{"text", name},
                    {"nodes", nodes},
                    {"bytes", text.size()},
                    {"read_s", t1 - t0},
                    {"write_s", t2 - t1},
                    {"read_again_s", t3 - t2}});
  };
  for (const uint32_t nodes : {24000u, 100000u}) {
    row("Slurm topology.conf, ranges", nodes, SlurmText(nodes, false));
    row("Slurm topology.conf, every name", nodes, SlurmText(nodes, true));
    row("ibnetdiscover", nodes, InfinibandText(nodes));
    row("kubectl get nodes -o json", nodes, KubernetesText(nodes));
  }
  std::printf("%s\n", nlohmann::json{{"import", rows}}.dump(2).c_str());
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace sluice::bench

int main() { return sluice::bench::Main(); }
