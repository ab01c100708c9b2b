// Reads the files in which operators describe their networks, and merges them into one graph. docs/topology/formats.md
//
// 1. A file's format is recognised by its content (Recognise), never by its name.
// 2. Its reader (one .cc a format; the list is formats.cc) fills a graph of its own, or refuses the file: with
//    "FILE:LINE: what, in format F; what to do". A file is never read half.
// 3. ReadAll merges the graphs in the order of the files: a cluster's file, and one for the inside of each host. What
// they
//    give the same name is the same.
// 4. What `tier` lines of the plain format say is filled in at the end, where no file knew a link's speed.
// Bandwidths that no file says stay 0: scheduler/topology/complete.h fills them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/topology/graph.h"

namespace sluice::topology {

inline constexpr size_t kMaxTextBytes = size_t{256} << 20;  // of all inputs of a call
inline constexpr size_t kMaxLineBytes = size_t{4} << 20;
inline constexpr size_t kMaxWarnings = 50;  // a file; more are counted

struct Input {
  std::string file;  // for messages
  absl::string_view text;
  std::string host;    // of a file about the inside of a host: its name, or a list of hosts that are alike
  std::string choice;  // of a file with several topologies: the name of one. Empty: its default
};

struct ReadOptions {
  // Labels of Kubernetes nodes that say where a node is, the widest first. Empty: DefaultNodeLabels().
  std::vector<std::string> node_labels;
  size_t max_names = size_t{1} << 20;  // that a list such as n[01-08] may have
};

// What stands beside the graph.
struct Report {
  std::string file, host, format;  // `format`: "slurm-conf"
  std::string title;               // "Slurm topology.conf (tree)"
  size_t hosts = 0, switches = 0, gpus = 0, nics = 0, links = 0;
  std::vector<std::string> warnings;  // each begins with FILE or FILE:LINE
  size_t more_warnings = 0;
};

// INVALID_ARGUMENT or RESOURCE_EXHAUSTED: the file is refused. `report` may be null.
absl::StatusOr<Graph> Read(const Input& input, const ReadOptions& options, Report* report);

// All of `inputs` in one graph, which is finished. `reports`, if not null, gets one a file.
absl::StatusOr<Graph> ReadAll(std::span<const Input> inputs, const ReadOptions& options, std::vector<Report>* reports);

// Short names of the formats: "slurm-conf", "nccl-xml", ...
std::vector<std::string> FormatNames();
// The format that `text` is in, or INVALID_ARGUMENT: what it looks like instead.
absl::StatusOr<std::string> Recognise(absl::string_view text);

// All that are known of clouds and of node-labelling tools, the widest first.
const std::vector<std::string>& DefaultNodeLabels();

// "[HOSTS=]FILE[#CHOICE]", as on command lines and in topology.files.
struct FileSpec {
  std::string hosts, file, choice;
};
absl::StatusOr<FileSpec> ParseFileSpec(absl::string_view text);
// A list of such, joined by ',': commas in brackets belong to lists of hosts.
std::vector<std::string> SplitFileSpecs(absl::string_view text);

}  // namespace sluice::topology
