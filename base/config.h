// How every Sluice process gets its configuration: proto::Config out of, weakest first,
//   1. the defaults of base/config_defaults.cc, then those of the program
//   2. a file (--config FILE or SLUICE_CONFIG, text format)
//   3. variables of other launchers (base/launcher.h)
//   4. SLUICE_<SECTION>_<FIELD> variables, e.g. SLUICE_NODE_LEASE_MS, SLUICE_JOB_OPTIMIZER_RATE
//   5. settings handed in by an embedding program ("job.codec=int8")
//   6. flags: --job.codec=int8, --job.codec int8, --node.exit_when_done; "-" and "_" are the same. Sluice's own programs
//      take them without the section where one key only ends so (--trace out.json); an embedding program does not
// A key, variable or flag that does not exist is an error that names the nearest one. The source of each value is kept.
//
//   int main(int argc, char** argv) {
//     int epochs = 1;
//     sluice::ConfigOptions options{.program = "sluice-worker", .role = "worker", .summary = "Trains …"};
//     options.flags = {{"epochs", "passes over the data", &epochs}};
//     int exit_code = 0;
//     auto loaded = sluice::LoadConfigForMain(options, argc, argv, &exit_code);
//     if (!loaded) return exit_code;            // --help, --version, --print-config, or an error that was printed
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/environment.h"
#include "base/launcher.h"
#include "proto/config.pb.h"

namespace sluice {

// A flag of one program that is not part of the configuration. *value is its default and receives what was given.
struct ProgramFlag {
  std::string name;  // without dashes
  std::string help;
  std::variant<std::string*, int*, int64_t*, double*, bool*, std::vector<std::string>*>
      value;  // a vector: may be repeated
};

struct ConfigOptions {
  std::string program;   // "sluice-server"
  std::string role;      // "scheduler", "server", "worker" or ""
  std::string summary;   // one or two sentences for --help
  std::string defaults;  // text format: what this program defaults to, over the general defaults
  std::vector<ProgramFlag> flags;
  std::vector<std::string> settings;  // "section.key=value"
  std::string config_file;            // as if by --config; a flag wins
  bool use_environment = true;
  bool take_arguments = false;      // words without dashes are collected instead of refused
  // An embedding program's command line: only --node.…, --job.…, --data.…, --config and --print-config are ours. All
  // else, and everything after "--", is passed on in its order.
  bool pass_unknown_flags = false;
};

struct LoadedConfig {
  enum class Action { kRun, kHelp, kVersion, kPrintConfig };

  proto::Config config;
  std::map<std::string, std::string> sources;  // key -> "default", "file PATH:LINE", "env NAME", "setting", "flag"
  LaunchInfo launch;
  std::vector<std::string> arguments;  // with take_arguments or pass_unknown_flags
  Action action = Action::kRun;
};

// Arguments without the program's name.
absl::StatusOr<LoadedConfig> LoadConfig(const ConfigOptions& options, const std::vector<std::string>& arguments,
                                        const Environment& environment);

// For main(): the process's environment; help, version and the configuration go to stdout (exit code 0), errors to
// stderr (exit code 2). Nothing is returned in these cases.
std::optional<LoadedConfig> LoadConfigForMain(const ConfigOptions& options, int argc, char** argv, int* exit_code);

struct EffectiveValue {
  std::string key, value, source;
};
// Every key with its value and source, in order of the .proto file.
std::vector<EffectiveValue> EffectiveValues(const LoadedConfig& loaded);

// What --help and --print-config print.
std::string HelpText(const ConfigOptions& options);
std::string PrintConfigText(const LoadedConfig& loaded);

// Checks that need more than a type: ports, intervals that must fit together, names of modes. Names the key.
absl::Status CheckConfig(const proto::Config& config);

// The defaults alone, for tests and embedded use.
proto::Config DefaultConfig();

}  // namespace sluice
