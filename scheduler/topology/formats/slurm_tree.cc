#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/slurm.h"

namespace sluice::topology::slurm {
namespace {

constexpr size_t kNoParent = ~size_t{0};

absl::Status AddNodes(const Switch& leaf, uint32_t vertex, absl::flat_hash_map<std::string, size_t>* leaf_of_node,
                      size_t leaf_index, const std::vector<Switch>& switches, Reading* reading) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> nodes, reading->Names(leaf.line, leaf.nodes));
  for (const std::string& node : nodes) {
    const auto [known, is_new] = leaf_of_node->emplace(node, leaf_index);
    if (!is_new) {
      if (known->second == leaf_index)
        return reading->Refuse(leaf.line,
                               absl::StrCat("node \"", node, "\" stands twice below switch \"", leaf.name, "\""),
                               "name it once");
      reading->Warn(leaf.line, absl::StrCat("node \"", node, "\" is below switch \"", leaf.name, "\" and below \"",
                                            switches[known->second].name, "\": it is taken to have a link to each"));
      known->second = leaf_index;
    }
    SLUICE_ASSIGN_OR_RETURN(const uint32_t host, reading->Add(leaf.line, VertexKind::kHost, node));
    SLUICE_RETURN_IF_ERROR(reading->Connect(leaf.line, host, vertex, Medium::kUnknown));
  }
  return absl::OkStatus();
}

// Every switch has one parent at most, so a cycle is a way up that comes back.
absl::Status RefuseCycles(const std::vector<Switch>& switches, const std::vector<size_t>& parent,
                          const Reading& reading) {
  std::vector<size_t> seen_from(switches.size(), kNoParent);
  for (size_t start = 0; start < switches.size(); ++start)
    for (size_t at = start; at != kNoParent && (seen_from[at] == kNoParent || seen_from[at] == start);
         at = parent[at]) {
      if (seen_from[at] == start)
        return reading.Refuse(switches[at].line, absl::StrCat("switch \"", switches[at].name, "\" is above itself"),
                              "take it out of the switches below it");
      seen_from[at] = start;
    }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddTree(const std::vector<Switch>& switches, Reading* reading) {
  absl::flat_hash_map<std::string, size_t> index;
  std::vector<uint32_t> vertices;
  for (const Switch& s : switches) {
    const auto [known, is_new] = index.emplace(s.name, vertices.size());
    if (!is_new)
      return reading->Refuse(
          s.line, absl::StrCat("switch \"", s.name, "\" is in line ", switches[known->second].line, " already"),
          "give each switch one line");
    if (s.nodes.empty() && s.children.empty())
      return reading->Refuse(s.line, absl::StrCat("switch \"", s.name, "\" has no nodes and no switches"),
                             "say what is below it, or take it out");
    if (!s.nodes.empty() && !s.children.empty())
      return reading->Refuse(s.line, absl::StrCat("switch \"", s.name, "\" has both nodes and switches"),
                             "give the nodes a switch of their own, as Slurm demands");
    SLUICE_ASSIGN_OR_RETURN(const uint32_t vertex, reading->Add(s.line, VertexKind::kSwitch, s.name));
    vertices.push_back(vertex);
  }
  std::vector<size_t> parent(switches.size(), kNoParent);
  absl::flat_hash_map<std::string, size_t> leaf_of_node;
  for (size_t i = 0; i < switches.size(); ++i) {
    const Switch& s = switches[i];
    if (!s.nodes.empty()) {
      SLUICE_RETURN_IF_ERROR(AddNodes(s, vertices[i], &leaf_of_node, i, switches, reading));
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> children, reading->Names(s.line, s.children));
    for (const std::string& name : children) {
      const auto child = index.find(name);
      if (child == index.end())
        return reading->Refuse(s.line,
                               absl::StrCat("switch \"", name, "\" below \"", s.name, "\" is nowhere described"),
                               "add a line for it");
      if (parent[child->second] != kNoParent)
        return reading->Refuse(s.line,
                               absl::StrCat("switch \"", name, "\" is below \"", s.name, "\" and below \"",
                                            switches[parent[child->second]].name, "\""),
                               "a tree gives each switch one switch above it");
      parent[child->second] = i;
      if (child->second == i) continue;  // RefuseCycles says it
      SLUICE_RETURN_IF_ERROR(reading->Connect(s.line, vertices[child->second], vertices[i], Medium::kUnknown));
    }
  }
  return RefuseCycles(switches, parent, *reading);
}

absl::Status AddBlocks(const std::vector<Group>& blocks, const std::vector<uint32_t>& sizes, size_t sizes_line,
                       Reading* reading) {
  for (size_t i = 1; i < sizes.size(); ++i) {
    const uint32_t factor = sizes[i - 1] == 0 ? 0 : sizes[i] / sizes[i - 1];
    if (factor < 2 || factor * sizes[i - 1] != sizes[i] || (factor & (factor - 1)) != 0)
      return reading->Refuse(sizes_line,
                             absl::StrCat("block size ", sizes[i], " is not 2, 4, 8, … times ", sizes[i - 1]),
                             "Slurm joins a power of two of blocks");
  }
  if (!sizes.empty() && sizes[0] == 0) return reading->Refuse(sizes_line, "a block size of 0");
  absl::flat_hash_map<std::string, size_t> lines;
  absl::flat_hash_map<std::string, std::string> block_of_node;
  std::vector<uint32_t> level;  // the vertices to be joined next
  for (const Group& block : blocks) {
    if (const auto [known, is_new] = lines.emplace(block.name, block.line); !is_new)
      return reading->Refuse(block.line,
                             absl::StrCat("block \"", block.name, "\" is in line ", known->second, " already"),
                             "give each block one line");
    if (block.nodes.empty())
      return reading->Refuse(block.line, absl::StrCat("block \"", block.name, "\" has no nodes"),
                             "say which, or take it out");
    SLUICE_ASSIGN_OR_RETURN(const uint32_t vertex, reading->Add(block.line, VertexKind::kSwitch, block.name));
    level.push_back(vertex);
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> nodes, reading->Names(block.line, block.nodes));
    for (const std::string& node : nodes) {
      if (const auto [known, is_new] = block_of_node.emplace(node, block.name); !is_new)
        return reading->Refuse(
            block.line,
            absl::StrCat("node \"", node, "\" is in block \"", known->second, "\" and in \"", block.name, "\""),
            "a node is in one block");
      SLUICE_ASSIGN_OR_RETURN(const uint32_t host, reading->Add(block.line, VertexKind::kHost, node));
      SLUICE_RETURN_IF_ERROR(reading->Connect(block.line, host, vertex, Medium::kUnknown));
    }
  }
  size_t first_span = 1;  // blocks below a vertex of `level`
  for (size_t i = 1; i < sizes.size() && level.size() > 1; ++i) {
    const size_t factor = sizes[i] / sizes[i - 1];
    std::vector<uint32_t> above;
    for (size_t begin = 0; begin < level.size(); begin += factor) {
      const size_t end = std::min(begin + factor, level.size());
      const std::string name = absl::StrCat(blocks[begin * first_span].name, "..",
                                            blocks[std::min(end * first_span, blocks.size()) - 1].name);
      SLUICE_ASSIGN_OR_RETURN(const uint32_t vertex, reading->Add(sizes_line, VertexKind::kSwitch, name));
      for (size_t k = begin; k < end; ++k)
        if (level[k] != vertex)
          SLUICE_RETURN_IF_ERROR(reading->Connect(sizes_line, level[k], vertex, Medium::kUnknown));
      above.push_back(vertex);
    }
    level = std::move(above);
    first_span *= factor;
  }
  return absl::OkStatus();
}

}  // namespace sluice::topology::slurm
