// Texts of --help and --print-config. What a key means is its comment in proto/config.proto, embedded by the build as a
// serialized descriptor with source information.
#include <algorithm>
#include <map>
#include <type_traits>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/config.h"
#include "base/config_schema.h"
#include "google/protobuf/descriptor.pb.h"

namespace sluice {
namespace {

using google::protobuf::FileDescriptorProto;
using google::protobuf::FileDescriptorSet;

const unsigned char kDescriptor[] = {
#include "base/config_descriptor.inc"
};

std::string OneLine(const google::protobuf::SourceCodeInfo::Location& location) {
  const std::string comment = absl::StrCat(location.leading_comments(), location.trailing_comments());
  return absl::StrJoin(absl::StrSplit(comment, absl::ByAnyChar(" \n"), absl::SkipEmpty()), " ");
}

// "NodeConfig.lease_ms" and "Mode.MODE_BSP" -> comment.
std::map<std::string, std::string> Comments() {
  std::map<std::string, std::string> comments;
  FileDescriptorSet files;
  if (!files.ParseFromArray(kDescriptor, sizeof(kDescriptor)) || files.file_size() == 0) return comments;
  const FileDescriptorProto& file = files.file(0);
  for (const auto& location : file.source_code_info().location()) {
    // Paths of what stands at the top level: message_type (4) or enum_type (5), its index, field or value (2), its
    // index.
    if (location.path_size() != 4 || location.path(2) != 2) continue;
    if (location.path(0) == FileDescriptorProto::kMessageTypeFieldNumber) {
      const auto& message = file.message_type(location.path(1));
      comments[absl::StrCat(message.name(), ".", message.field(location.path(3)).name())] = OneLine(location);
    } else if (location.path(0) == FileDescriptorProto::kEnumTypeFieldNumber) {
      const auto& type = file.enum_type(location.path(1));
      comments[absl::StrCat(type.name(), ".", type.value(location.path(3)).name())] = OneLine(location);
    }
  }
  return comments;
}

const char* SectionText(absl::string_view section) {
  if (section == "node") return "what this process is and where it listens";
  if (section == "job") return "what a training job means; equal on all its workers (the scheduler checks that)";
  if (section == "data") return "how the data plane moves bytes; each process has its own";
  if (section == "rdma") return "how it uses RDMA devices, where there are any; each process has its own";
  if (section == "topology") return "what the scheduler knows of the network, and what it makes of it";
  return "";
}

std::string FlagType(const ProgramFlag& flag) {
  constexpr const char* kTypes[] = {"=TEXT", "=N", "=N", "=X", "", "=TEXT (may be repeated)"};
  return kTypes[flag.value.index()];
}

// "   [32]": what the flag is if it is not given; a list has nothing.
std::string FlagDefault(const ProgramFlag& flag) {
  const std::string text = std::visit(
      [](const auto* value) -> std::string {
        using T = std::decay_t<decltype(*value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return value->empty() ? "empty" : *value;
        } else if constexpr (std::is_same_v<T, bool>) {
          return *value ? "true" : "false";
        } else if constexpr (std::is_arithmetic_v<T>) {
          return absl::StrCat(*value);
        } else {
          return "";
        }
      },
      flag.value);
  return text.empty() ? "" : absl::StrCat("   [", text, "]");
}

// Breaks at spaces so that no line is longer than 110 columns.
std::string Wrapped(const std::string& text, const std::string& indent) {
  std::string result, line;
  for (const auto word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > 110) {
      absl::StrAppend(&result, indent, line, "\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  if (!line.empty()) absl::StrAppend(&result, indent, line, "\n");
  return result;
}

}  // namespace

std::string HelpText(const ConfigOptions& options) {
  std::string text =
      absl::StrCat(Wrapped(options.summary, ""), "\nusage: ", options.program,
                   " [--config FILE] [--section.key=value …]", options.take_arguments ? " [ARGUMENT …]" : "", "\n\n",
                   "  --config=FILE    read settings from FILE (text format)\n"
                   "  --print-config   print each setting with its value and source, and exit\n"
                   "  --version        print the version, and exit\n"
                   "  --help           print this, and exit\n");
  if (!options.flags.empty()) absl::StrAppend(&text, "\nFlags of this program\n");
  for (const ProgramFlag& flag : options.flags)
    absl::StrAppend(&text, "  --", flag.name, FlagType(flag), FlagDefault(flag), "\n", Wrapped(flag.help, "      "));

  absl::StrAppend(
      &text,
      "\nSettings: --KEY=VALUE, or in the environment as SLUICE_… (job.codec is SLUICE_JOB_CODEC), or in the file.\n"
      "A flag wins over the environment, that over the file, that over the default.\n");
  proto::Config defaults = DefaultConfig();
  {
    ConfigOptions only_defaults;
    only_defaults.defaults = options.defaults;
    only_defaults.use_environment = false;
    if (auto loaded = LoadConfig(only_defaults, {}, Environment()); loaded.ok()) defaults = loaded->config;
  }
  const std::map<std::string, std::string> comments = Comments();
  std::string section;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string key_section = key.path.front()->name();
    if (key_section != section) {
      section = key_section;
      absl::StrAppend(&text, "\n", section, ": ", SectionText(section), "\n");
    }
    const std::string value = GetConfigValue(key, defaults);
    absl::StrAppend(&text, "  --", key.name, "   [", value.empty() ? "empty" : value, "; ", key.TypeName(), "]\n");
    const auto comment = comments.find(absl::StrCat(key.field()->containing_type()->name(), ".", key.field()->name()));
    if (comment != comments.end()) absl::StrAppend(&text, Wrapped(comment->second, "      "));
    const auto* type = key.field()->enum_type();
    for (int i = 0; type != nullptr && i < type->value_count(); ++i) {
      const auto about = comments.find(absl::StrCat(type->name(), ".", type->value(i)->name()));
      if (about != comments.end() && !about->second.empty())
        absl::StrAppend(&text, Wrapped(absl::StrCat(ShortEnumName(type->value(i)), ": ", about->second), "      "));
    }
  }
  return text;
}

std::string PrintConfigText(const LoadedConfig& loaded) {
  const std::vector<EffectiveValue> values = EffectiveValues(loaded);
  size_t key_width = 0, value_width = 0;
  for (const EffectiveValue& value : values) {
    key_width = std::max(key_width, value.key.size());
    value_width = std::max(value_width, std::min<size_t>(value.value.size(), 40));
  }
  std::string text;
  for (const EffectiveValue& value : values) {
    const auto pad = [](size_t width, size_t used) { return std::string(width > used ? width - used : 0, ' '); };
    absl::StrAppend(&text, value.key, pad(key_width, value.key.size()), " = ", value.value,
                    pad(value_width, value.value.size()), "  (", value.source, ")\n");
  }
  return text;
}

}  // namespace sluice
