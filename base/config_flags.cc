#include "base/config_flags.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice {
namespace {

std::string Normalised(absl::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '-', '_');
  return result;
}

bool HasSection(absl::string_view name) {
  const google::protobuf::Descriptor* config = proto::Config::descriptor();
  const size_t dot = name.find('.');
  return dot != absl::string_view::npos && config->FindFieldByName(std::string(name.substr(0, dot))) != nullptr;
}

const ProgramFlag* FindProgramFlag(const ConfigOptions& options, absl::string_view name) {
  for (const ProgramFlag& flag : options.flags)
    if (Normalised(flag.name) == name) return &flag;
  return nullptr;
}

absl::Status SetProgramFlag(const ProgramFlag& flag, const std::string& text) {
  bool ok = true;
  const char* type = "";
  if (auto* const* value = std::get_if<std::string*>(&flag.value)) {
    **value = text;
  } else if (auto* const* list = std::get_if<std::vector<std::string>*>(&flag.value)) {
    (*list)->push_back(text);
  } else if (auto* const* number = std::get_if<int*>(&flag.value)) {
    ok = absl::SimpleAtoi(text, *number);
    type = "a whole number";
  } else if (auto* const* large = std::get_if<int64_t*>(&flag.value)) {
    ok = absl::SimpleAtoi(text, *large);
    type = "a whole number";
  } else if (auto* const* real = std::get_if<double*>(&flag.value)) {
    ok = absl::SimpleAtod(text, *real);
    type = "a real number";
  } else if (auto* const* boolean = std::get_if<bool*>(&flag.value)) {
    ok = absl::SimpleAtob(text, *boolean);
    type = "true or false";
  }
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("flag --", flag.name, ": \"", text.substr(0, 200), "\" is not ", type));
}

// Whether the flag is Sluice's. In an embedding program only names that cannot be meant for anybody else are: its own
// --rate or --name must reach it, although keys of the configuration end so.
bool IsOurs(const ConfigOptions& options, absl::string_view name) {
  return !options.pass_unknown_flags || HasSection(name) || name == "config" || name == "print_config";
}

std::string UnknownFlagText(const ConfigOptions& options, const std::string& name) {
  std::vector<std::string> candidates = {"print-config", "config"};
  for (const ConfigKey& key : ConfigKeys()) candidates.push_back(key.name);
  if (options.pass_unknown_flags)
    return absl::StrCat("no flag --", name.substr(0, 200), "; the nearest is --", Nearest(name, candidates));
  candidates.insert(candidates.begin(), {"help", "version"});
  for (const ProgramFlag& flag : options.flags) candidates.push_back(flag.name);
  for (const ConfigKey& key : ConfigKeys())
    if (FindConfigKeyByLastPart(key.field()->name()) != nullptr) candidates.push_back(key.field()->name());
  std::vector<std::string> with_it;  // several keys end so
  for (const ConfigKey& key : ConfigKeys())
    if (key.field()->name() == name) with_it.push_back(absl::StrCat("--", key.name));
  if (with_it.size() > 1) return absl::StrCat("flag --", name, " could be ", with_it[0], " or ", with_it[1]);
  return absl::StrCat("no flag --", name.substr(0, 200), "; the nearest is --", Nearest(name, candidates));
}

std::string FlagName(absl::string_view argument) {
  return argument == "-h" ? "help" : Normalised(argument.substr(2, argument.find('=') - 2));
}

// --help or --version, whatever stands before or after it: nothing else is looked at then, so that the defaults that help
// shows are still those of the program, and nothing that is wrong comes before it.
LoadedConfig::Action AskedFor(const ConfigOptions& options, const std::vector<std::string>& arguments) {
  if (options.pass_unknown_flags) return LoadedConfig::Action::kRun;  // the embedding program's own
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument != "-h" && !absl::StartsWith(argument, "--")) continue;
    const std::string name = FlagName(argument);
    if (FindProgramFlag(options, name) != nullptr) continue;
    if (name == "help") return LoadedConfig::Action::kHelp;
    if (name == "version") return LoadedConfig::Action::kVersion;
  }
  return LoadedConfig::Action::kRun;
}

}  // namespace

std::string UnknownKeyText(absl::string_view what, absl::string_view name) {
  std::vector<std::string> candidates;
  for (const ConfigKey& key : ConfigKeys()) candidates.push_back(key.name);
  return absl::StrCat(what, " ", name.substr(0, 200), ": no such key; the nearest is ", Nearest(name, candidates));
}

absl::StatusOr<ParsedFlags> ParseFlags(const ConfigOptions& options, const std::vector<std::string>& arguments) {
  ParsedFlags result;
  result.action = AskedFor(options, arguments);
  if (result.action != LoadedConfig::Action::kRun) return result;
  const bool keep_rest = options.take_arguments || options.pass_unknown_flags;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      if (options.pass_unknown_flags) result.arguments.push_back(argument);
      result.arguments.insert(result.arguments.end(), arguments.begin() + static_cast<ptrdiff_t>(i) + 1,
                              arguments.end());
      if (!keep_rest && i + 1 < arguments.size())
        return absl::InvalidArgumentError(absl::StrCat("\"", arguments[i + 1].substr(0, 200), "\" is not a flag"));
      break;
    }
    if (!absl::StartsWith(argument, "--")) {
      if (!keep_rest)
        return absl::InvalidArgumentError(
            absl::StrCat("\"", argument.substr(0, 200), "\" is not a flag (--key=value)"));
      result.arguments.push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name = FlagName(argument);
    if (!IsOurs(options, name)) {
      result.arguments.push_back(argument);
      continue;
    }

    const ProgramFlag* program_flag = FindProgramFlag(options, name);
    const ConfigKey* key = nullptr;
    if (program_flag == nullptr) {
      if (name == "print_config") {
        result.action = LoadedConfig::Action::kPrintConfig;
        continue;
      }
      key = FindConfigKey(name);
      if (key == nullptr && !options.pass_unknown_flags) key = FindConfigKeyByLastPart(name);
      if (key == nullptr && name != "config") return absl::InvalidArgumentError(UnknownFlagText(options, name));
    }

    std::string value;
    const bool is_bool =
        program_flag != nullptr
            ? std::holds_alternative<bool*>(program_flag->value)
            : key != nullptr && key->field()->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_BOOL;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (is_bool) {
      value = "true";
    } else if (i + 1 < arguments.size() && !absl::StartsWith(arguments[i + 1], "--")) {
      value = arguments[++i];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("flag ", argument.substr(0, 200), " needs a value: ", argument.substr(0, 200), "=…"));
    }
    if (program_flag != nullptr) {
      SLUICE_RETURN_IF_ERROR(SetProgramFlag(*program_flag, value));
    } else if (key == nullptr) {
      result.config_file = value;
    } else {
      result.values.emplace_back(key, value);
    }
  }
  return result;
}

}  // namespace sluice
