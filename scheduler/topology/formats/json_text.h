// JSON of files: nothing is thrown, nesting is bounded, and what no reader looks at is not kept.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "scheduler/topology/formats/reading.h"

namespace sluice::topology {

inline constexpr size_t kMaxJsonDepth = 64;

// `dropped`: keys whose values are left out, wherever they stand.
absl::StatusOr<nlohmann::json> ParseJson(const Reading& reading, const std::vector<std::string>& dropped);

// The value of a key of an object; null if `value` is no object or has no such key.
const nlohmann::json& Member(const nlohmann::json& value, const std::string& key);
// The text of a string; "" of all else.
std::string TextOf(const nlohmann::json& value);

}  // namespace sluice::topology
