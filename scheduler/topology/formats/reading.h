// What the formats' readers share: where they are in a text, how they refuse it, how they add to the graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/topology/formats/format.h"
#include "scheduler/topology/graph.h"

namespace sluice::topology {

// Links between tier - 1 and tier (hosts are 0) are so fast where no file says it.
struct TierSpeed {
  uint32_t tier = 1;
  double bytes_per_second = 0;  // 0 = not said
  double latency_s = 0;
};

struct Format;

// One text on its way into a graph.
struct Reading {
  Reading(const Format& f, const Input& i, const ReadOptions& o) : format(f), input(i), options(o) {}

  const Format& format;
  const Input& input;  // its host is one host, not a list
  const ReadOptions& options;
  Graph graph;
  std::vector<TierSpeed> tiers;
  Report report;

  // "FILE:LINE: what, in format F; to_do". Line 0: there is none to name.
  absl::Status Refuse(size_t line, absl::string_view what, absl::string_view to_do = "") const;
  // The same for an error of the graph or of a list of names.
  absl::Status Refuse(size_t line, const absl::Status& status, absl::string_view to_do = "") const;
  void Warn(size_t line, absl::string_view what);

  // As the graph's own, with line and file in the error.
  absl::StatusOr<uint32_t> Add(size_t line, VertexKind kind, absl::string_view name, uint32_t host = kNone);
  absl::Status Connect(size_t line, uint32_t a, uint32_t b, Medium medium, double bytes_per_second = 0,
                       double latency_s = 0, uint32_t cables = 1);
  // A list of names (hostlist.h).
  absl::StatusOr<std::vector<std::string>> Names(size_t line, absl::string_view list) const;
};

struct Format {
  absl::string_view name;    // "slurm-conf"
  absl::string_view title;   // "Slurm topology.conf"
  bool inside_host = false;  // says what is inside one host
  size_t max_bytes = 0;      // of the text
  bool (*looks_like)(absl::string_view text) = nullptr;
  absl::Status (*read)(Reading* reading) = nullptr;
};

// The lines of a text, one by one.
class Lines {
 public:
  explicit Lines(absl::string_view text) : rest_(text) {}
  // False: there is none left. Without its end ("\n" or "\r\n").
  bool Next(absl::string_view* line);
  size_t number() const { return number_; }  // of the last one, from 1 on

 private:
  absl::string_view rest_;
  size_t number_ = 0;
};

// Tells the line of an offset.
class LineIndex {
 public:
  explicit LineIndex(absl::string_view text);
  size_t At(size_t offset) const;  // from 1 on

 private:
  std::vector<size_t> ends_;  // offsets of '\n'
};

// The first line that is not blank and no comment (that begins with '#'); "" if there is none in the first `max_bytes`.
absl::string_view FirstLine(absl::string_view text, size_t max_bytes = 65536);
// For messages: in quotes, shortened, without control characters.
std::string Shown(absl::string_view text);

}  // namespace sluice::topology
