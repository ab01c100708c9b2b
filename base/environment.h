// The process's environment as a value: only this file reads it, so tests and embedded clusters bring their own.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

class Environment {
 public:
  Environment() = default;
  explicit Environment(std::map<std::string, std::string, std::less<>> variables) : variables_(std::move(variables)) {}

  // A copy of what this process was started with.
  static Environment FromProcess();

  std::optional<std::string> Get(std::string_view name) const;
  const std::map<std::string, std::string, std::less<>>& variables() const { return variables_; }

 private:
  std::map<std::string, std::string, std::less<>> variables_;
};

}  // namespace sluice
