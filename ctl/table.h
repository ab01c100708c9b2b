// A table of text with aligned columns: the first row is the header.
//
//   ID    RANK  ALIVE
//   w0:7     0  yes
#pragma once

#include <string>
#include <vector>

namespace sluice::ctl {

class Table {
 public:
  // Columns whose name starts with '>' are right-aligned (numbers).
  explicit Table(std::vector<std::string> columns);
  void Add(std::vector<std::string> row);   // cells that are missing are empty; those that are too many are dropped
  std::string Text() const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

std::string Bytes(uint64_t bytes);           // "64.0 MiB"
std::string Duration(uint64_t milliseconds); // "1.5 s", "3 min 20 s", "2 h 5 min"
std::string YesNo(bool value);
// What a member or trainer called itself may hold anything: control characters become '?'.
std::string Clean(const std::string& text);

}  // namespace sluice::ctl
