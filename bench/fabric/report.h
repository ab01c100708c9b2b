// Rows of a table that is printed and written as JSON, and what all parts of the benchmark share.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace sluice::bench {

using Json = nlohmann::ordered_json;

class Table {
 public:
  Table(Json* json, std::string name, std::vector<std::string> headings)
      : rows_((*json)[name] = Json::array()), name_(std::move(name)), headings_(std::move(headings)) {}
  ~Table() { Print(); }

  // A cell is its text; numbers are given to JSON as such.
  struct Cell {
    std::string text;
    Json value;
    Cell(const char* t) : text(t), value(t) {}                       // NOLINT: implicit
    Cell(const std::string& t) : text(t), value(t) {}                // NOLINT
    Cell(double number, const char* format) : value(number) {
      char buffer[64];
      std::snprintf(buffer, sizeof(buffer), format, number);
      text = buffer;
    }
  };
  void Row(const std::vector<Cell>& cells) {
    Json row = Json::object();
    texts_.emplace_back();
    for (size_t i = 0; i < cells.size(); ++i) {
      row[headings_[i]] = cells[i].value;
      texts_.back().push_back(cells[i].text);
    }
    rows_.push_back(row);
  }

 private:
  void Print() const {
    std::vector<size_t> widths;
    for (const std::string& heading : headings_) widths.push_back(heading.size());
    for (const auto& row : texts_)
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    std::printf("\n%s\n", name_.c_str());
    const auto line = [&](const std::vector<std::string>& row) {
      for (size_t i = 0; i < row.size(); ++i) std::printf(i == 0 ? "%-*s" : "  %*s", static_cast<int>(widths[i]), row[i].c_str());
      std::printf("\n");
    };
    line(headings_);
    for (const auto& row : texts_) line(row);
    std::fflush(stdout);
  }

  Json& rows_;
  const std::string name_;
  const std::vector<std::string> headings_;
  std::vector<std::vector<std::string>> texts_;
};

class Stopwatch {
 public:
  double Seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", std::string(value.status().message()).c_str());
  std::exit(1);
}

void MeasureSpeed(Json* json);    // speed.cc
void MeasureSteps(Json* json);    // steps.cc
void MeasureWays(Json* json);     // ways.cc

}  // namespace sluice::bench
