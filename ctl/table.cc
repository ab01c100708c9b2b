#include "ctl/table.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::ctl {
namespace {

// Columns on the screen: UTF-8 continuation bytes take none.
size_t Width(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

Table::Table(std::vector<std::string> columns) {
  for (std::string& column : columns) {
    right_.push_back(!column.empty() && column[0] == '>');
    if (right_.back()) column.erase(0, 1);
  }
  rows_.push_back(std::move(columns));
}

void Table::Add(std::vector<std::string> row) {
  row.resize(right_.size());
  for (std::string& cell : row) cell = Clean(cell);
  rows_.push_back(std::move(row));
}

std::string Table::Text() const {
  std::vector<size_t> widths(right_.size());
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - Width(row[i]), ' ');
      absl::StrAppend(&line, i == 0 ? "" : "  ", right_[i] ? pad : "", row[i], right_[i] ? "" : pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string Bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  int unit = -1;
  while (value >= 1024 && unit < 5) value /= 1024, ++unit;
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string Duration(uint64_t ms) {
  if (ms < 60'000) return absl::StrFormat("%.1f s", ms / 1000.0);
  const uint64_t minutes = ms / 60'000;
  if (minutes < 60) return absl::StrCat(minutes, " min ", ms / 1000 % 60, " s");
  if (minutes < 24 * 60) return absl::StrCat(minutes / 60, " h ", minutes % 60, " min");
  return absl::StrCat(minutes / (24 * 60), " d ", minutes / 60 % 24, " h");
}

std::string YesNo(bool value) { return value ? "yes" : "no"; }

std::string Clean(const std::string& text) {
  std::string clean = text;
  for (char& c : clean)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  return clean;
}

}  // namespace sluice::ctl
