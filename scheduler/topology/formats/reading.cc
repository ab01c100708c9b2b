#include "scheduler/topology/formats/reading.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "scheduler/topology/formats/hostlist.h"

namespace sluice::topology {
namespace {

std::string Place(const std::string& file, size_t line) {
  return line == 0 ? absl::StrCat(file, ": ") : absl::StrCat(file, ":", line, ": ");
}

}  // namespace

absl::Status Reading::Refuse(size_t line, absl::string_view what, absl::string_view to_do) const {
  return absl::InvalidArgumentError(
      absl::StrCat(Place(input.file, line), what, ", in format ", format.name, to_do.empty() ? "" : "; ", to_do));
}

absl::Status Reading::Refuse(size_t line, const absl::Status& status, absl::string_view to_do) const {
  return absl::Status(status.code(), Refuse(line, absl::string_view(status.message()), to_do).message());
}

void Reading::Warn(size_t line, absl::string_view what) {
  if (report.warnings.size() >= kMaxWarnings) {
    ++report.more_warnings;
    return;
  }
  report.warnings.push_back(absl::StrCat(Place(input.file, line), what));
}

absl::StatusOr<uint32_t> Reading::Add(size_t line, VertexKind kind, absl::string_view name, uint32_t host) {
  absl::StatusOr<uint32_t> vertex = graph.Add(kind, name, host);
  if (!vertex.ok()) return Refuse(line, vertex.status());
  return vertex;
}

absl::Status Reading::Connect(size_t line, uint32_t a, uint32_t b, Medium medium, double bytes_per_second,
                              double latency_s, uint32_t cables) {
  const absl::StatusOr<uint32_t> link = graph.Connect(a, b, medium, bytes_per_second, latency_s, cables);
  return link.ok() ? absl::OkStatus() : Refuse(line, link.status());
}

absl::StatusOr<std::vector<std::string>> Reading::Names(size_t line, absl::string_view list) const {
  absl::StatusOr<std::vector<std::string>> names = ExpandHostlist(list, options.max_names);
  if (!names.ok()) return Refuse(line, names.status(), "write lists such as n[01-08,12],login1");
  return names;
}

bool Lines::Next(absl::string_view* line) {
  if (rest_.empty()) return false;
  const size_t end = rest_.find('\n');
  *line = rest_.substr(0, end);
  rest_.remove_prefix(end == absl::string_view::npos ? rest_.size() : end + 1);
  if (!line->empty() && line->back() == '\r') line->remove_suffix(1);
  ++number_;
  return true;
}

LineIndex::LineIndex(absl::string_view text) {
  for (size_t at = text.find('\n'); at != absl::string_view::npos; at = text.find('\n', at + 1)) ends_.push_back(at);
}

size_t LineIndex::At(size_t offset) const {
  return 1 + static_cast<size_t>(std::lower_bound(ends_.begin(), ends_.end(), offset) - ends_.begin());
}

absl::string_view FirstLine(absl::string_view text, size_t max_bytes) {
  Lines lines(text.substr(0, max_bytes));
  absl::string_view line;
  while (lines.Next(&line)) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty() && line[0] != '#') return line;
  }
  return "";
}

std::string Shown(absl::string_view text) {
  constexpr size_t kShown = 60;
  std::string out = absl::StrCat("\"", absl::Utf8SafeCHexEscape(text.substr(0, kShown)));
  absl::StrAppend(&out, text.size() > kShown ? "…" : "", "\"");
  return out;
}

}  // namespace sluice::topology
