// The command line's part of the configuration (base/config.h says what is taken).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/config.h"
#include "base/config_schema.h"

namespace sluice {

struct ParsedFlags {
  LoadedConfig::Action action = LoadedConfig::Action::kRun;
  std::string config_file;
  std::vector<std::pair<const ConfigKey*, std::string>> values;  // in order; a later one wins
  std::vector<std::string> arguments;
};

// Also stores the program's own flags where options.flags says (but with --help or --version, which need the defaults).
absl::StatusOr<ParsedFlags> ParseFlags(const ConfigOptions& options, const std::vector<std::string>& arguments);

// "setting job.codecs: no such key; the nearest is job.codec".
std::string UnknownKeyText(absl::string_view what, absl::string_view name);

}  // namespace sluice
