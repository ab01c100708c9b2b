#include "base/config.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/config_defaults.h"
#include "base/config_flags.h"
#include "base/config_schema.h"
#include "base/config_text.h"
#include "base/cpu_check.h"
#include "base/status_macros.h"
#include "base/version.h"

namespace sluice {
namespace {

constexpr char kPrefix[] = "SLUICE_";
constexpr char kFileVariable[] = "SLUICE_CONFIG";

absl::Status Apply(const std::vector<ConfigAssignment>& assignments, const std::string& source, bool with_line,
                   LoadedConfig* loaded) {
  for (const ConfigAssignment& assignment : assignments) {
    SLUICE_RETURN_IF_ERROR(SetConfigValue(*assignment.key, assignment.text, &loaded->config));
    loaded->sources[assignment.key->name] = with_line ? absl::StrCat(source, ":", assignment.line) : source;
  }
  return absl::OkStatus();
}

absl::Status ApplyDefaults(const std::string& of_program, LoadedConfig* loaded) {
  for (const ConfigKey& key : ConfigKeys()) loaded->sources[key.name] = "default";
  SLUICE_ASSIGN_OR_RETURN(auto general, ParseConfigText(kConfigDefaults, "defaults"));
  SLUICE_RETURN_IF_ERROR(Apply(general, "default", false, loaded));
  SLUICE_ASSIGN_OR_RETURN(auto special, ParseConfigText(of_program, "defaults of the program"));
  return Apply(special, "default", false, loaded);
}

absl::Status Set(const ConfigKey& key, absl::string_view text, const std::string& source, absl::string_view where,
                 LoadedConfig* loaded) {
  if (absl::Status status = SetConfigValue(key, text, &loaded->config); !status.ok())
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", status.message()));
  loaded->sources[key.name] = source;
  return absl::OkStatus();
}

absl::Status ApplyLauncher(const LaunchInfo& launch, LoadedConfig* loaded) {
  for (const LauncherValue& value : launch.values) {
    const std::string where = absl::StrCat("environment variable ", value.variable);
    SLUICE_RETURN_IF_ERROR(
        Set(*FindConfigKey(value.key), value.text, absl::StrCat("env ", value.variable), where, loaded));
  }
  return absl::OkStatus();
}

absl::Status ApplyEnvironment(const Environment& environment, LoadedConfig* loaded) {
  std::map<std::string, const ConfigKey*> keys;
  std::vector<std::string> names = {kFileVariable};
  for (const ConfigKey& key : ConfigKeys()) {
    names.push_back(key.EnvironmentName());
    keys[names.back()] = &key;
  }
  for (const auto& [name, value] : environment.variables()) {
    if (!absl::StartsWith(name, kPrefix) || name == kFileVariable) continue;
    const auto it = keys.find(name);
    const std::string where = absl::StrCat("environment variable ", name.substr(0, 200));
    if (it == keys.end())
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": no such setting; the nearest is ", Nearest(name, names)));
    SLUICE_RETURN_IF_ERROR(Set(*it->second, value, absl::StrCat("env ", name), where, loaded));
  }
  return absl::OkStatus();
}

absl::Status ApplySettings(const std::vector<std::string>& settings, LoadedConfig* loaded) {
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos)
      return absl::InvalidArgumentError(absl::StrCat("setting \"", setting.substr(0, 200), "\" has no \"=\""));
    const std::string name = setting.substr(0, equals);
    const ConfigKey* key = FindConfigKey(name);
    if (key == nullptr) return absl::InvalidArgumentError(UnknownKeyText("setting", name));
    SLUICE_RETURN_IF_ERROR(
        Set(*key, absl::string_view(setting).substr(equals + 1), "setting", absl::StrCat("setting ", name), loaded));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadedConfig> LoadConfig(const ConfigOptions& options, const std::vector<std::string>& arguments,
                                        const Environment& environment) {
  LoadedConfig loaded;
  SLUICE_RETURN_IF_ERROR(ApplyDefaults(options.defaults, &loaded));
  SLUICE_ASSIGN_OR_RETURN(ParsedFlags flags, ParseFlags(options, arguments));
  loaded.action = flags.action;
  loaded.arguments = std::move(flags.arguments);
  // Help and version must work whatever else is wrong.
  if (loaded.action == LoadedConfig::Action::kHelp || loaded.action == LoadedConfig::Action::kVersion) return loaded;

  std::string file = flags.config_file.empty() ? options.config_file : flags.config_file;
  if (file.empty() && options.use_environment) file = environment.Get(kFileVariable).value_or("");
  if (!file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(auto assignments, ParseConfigFile(file));
    SLUICE_RETURN_IF_ERROR(Apply(assignments, absl::StrCat("file ", file), true, &loaded));
  }
  if (options.use_environment) {
    SLUICE_ASSIGN_OR_RETURN(loaded.launch, ReadLauncher(environment, options.role));
    SLUICE_RETURN_IF_ERROR(ApplyLauncher(loaded.launch, &loaded));
    SLUICE_RETURN_IF_ERROR(ApplyEnvironment(environment, &loaded));
  }
  SLUICE_RETURN_IF_ERROR(ApplySettings(options.settings, &loaded));
  for (const auto& [key, text] : flags.values)
    SLUICE_RETURN_IF_ERROR(Set(*key, text, "flag", absl::StrCat("flag --", key->name), &loaded));
  SLUICE_RETURN_IF_ERROR(CheckConfig(loaded.config));
  return loaded;
}

std::optional<LoadedConfig> LoadConfigForMain(const ConfigOptions& options, int argc, char** argv, int* exit_code) {
  *exit_code = 0;
  if (const absl::Status cpu = CheckCpu(); !cpu.ok()) {
    std::fprintf(stderr, "%s: %s\n", options.program.c_str(), std::string(cpu.message()).c_str());
    *exit_code = 2;
    return std::nullopt;
  }
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  absl::StatusOr<LoadedConfig> loaded = LoadConfig(options, arguments, Environment::FromProcess());
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s: %s\n(%s --help lists every setting)\n", options.program.c_str(),
                 std::string(loaded.status().message()).c_str(), options.program.c_str());
    *exit_code = 2;
    return std::nullopt;
  }
  std::string text;
  switch (loaded->action) {
    case LoadedConfig::Action::kRun: return *std::move(loaded);
    case LoadedConfig::Action::kHelp: text = HelpText(options); break;
    case LoadedConfig::Action::kVersion: text = absl::StrCat(options.program, " ", kVersion, "\n"); break;
    case LoadedConfig::Action::kPrintConfig: text = PrintConfigText(*loaded); break;
  }
  std::fputs(text.c_str(), stdout);
  return std::nullopt;
}

std::vector<EffectiveValue> EffectiveValues(const LoadedConfig& loaded) {
  std::vector<EffectiveValue> values;
  for (const ConfigKey& key : ConfigKeys()) {
    const auto source = loaded.sources.find(key.name);
    values.push_back(
        {key.name, GetConfigValue(key, loaded.config), source == loaded.sources.end() ? "default" : source->second});
  }
  return values;
}

proto::Config DefaultConfig() {
  LoadedConfig loaded;
  ApplyDefaults("", &loaded).IgnoreError();  // the table is a constant, parsed by a test
  return std::move(loaded.config);
}

}  // namespace sluice
