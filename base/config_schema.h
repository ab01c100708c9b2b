// The keys of proto::Config by reflection: "node.lease_ms", "job.optimizer.rate", … Each has a type, a way from and to
// text. A new field of proto/config.proto is a key at once: on the command line, in the environment, in files and in
// --help.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/config.pb.h"

namespace sluice {

struct ConfigKey {
  std::string name;                                            // "job.optimizer.rate"
  std::vector<const google::protobuf::FieldDescriptor*> path;  // sections, then the field itself

  const google::protobuf::FieldDescriptor* field() const { return path.back(); }
  std::string EnvironmentName() const;  // "SLUICE_JOB_OPTIMIZER_RATE"
  // "text", "number", "bytes (…KiB, MiB, GiB)", "bsp|ssp|asp", …
  std::string TypeName() const;
};

// All keys in order of the .proto file.
const std::vector<ConfigKey>& ConfigKeys();
const ConfigKey* FindConfigKey(absl::string_view name);
// `name` without its sections, if only one key ends so ("trace" is "node.trace"); nullptr otherwise.
const ConfigKey* FindConfigKeyByLastPart(absl::string_view name);

// Sets one field from text. Integers take suffixes by the field's name: *_bytes takes B, KiB, MiB, GiB; *_ms and *_us
// take us, ms, s, min. Enums take their short lower-case name ("ssp") or the full one. Booleans: true, false, 1, 0,
// yes, no. The error names the key and what would be taken; the message is unchanged then.
absl::Status SetConfigValue(const ConfigKey& key, absl::string_view text, proto::Config* config);
// The inverse: text that SetConfigValue takes back to the same value.
std::string GetConfigValue(const ConfigKey& key, const proto::Config& config);

// The name by which an enum's value is given: "ssp" for MODE_SSP.
std::string ShortEnumName(const google::protobuf::EnumValueDescriptor* value);

// Bytes to insert, drop, replace or swap with their neighbour, at least, to make one of the other.
size_t EditDistance(absl::string_view a, absl::string_view b);
// The candidate nearest to `name` (the first of several); "" if there are no candidates.
std::string Nearest(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace sluice
