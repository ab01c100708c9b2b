// Reads a configuration file: protobuf's text format of proto::Config, and the conveniences of the command line in it
// (short enum names, "4MiB", "5s").
//
//   node { scheduler: "10.0.0.1:7700"  lease_ms: 3s }
//   job { name: "mnist"  mode: ssp  optimizer { kind: "adam" rate: 0.001 } }   # a comment
//
// Not protobuf's own parser, because a proto3 message cannot tell "fusion_bytes: 0" from an absent key, and its errors
// do not know the nearest key.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/config_schema.h"

namespace sluice {

struct ConfigAssignment {
  const ConfigKey* key;
  std::string text;  // what SetConfigValue takes
  int line = 0;      // from 1
  int column = 0;
};

// The assignments in order of the text. Errors start with "NAME:LINE:COLUMN: ". `name` is for messages.
absl::StatusOr<std::vector<ConfigAssignment>> ParseConfigText(absl::string_view text, absl::string_view name);

// The same for a file of at most 1 MiB.
absl::StatusOr<std::vector<ConfigAssignment>> ParseConfigFile(const std::string& path);

}  // namespace sluice
