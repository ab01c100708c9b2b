#include "base/config_schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

void CollectKeys(const Descriptor* message, const std::string& prefix, std::vector<const FieldDescriptor*> path,
                 std::vector<ConfigKey>* keys) {
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    const std::string name = absl::StrCat(prefix, field->name());
    path.push_back(field);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      CollectKeys(field->message_type(), name + ".", path, keys);
    } else {
      keys->push_back({name, path});
    }
    path.pop_back();
  }
}

std::vector<std::string> ShortEnumNames(const EnumDescriptor* type) {
  std::vector<std::string> names;
  for (int i = 0; i < type->value_count(); ++i) names.push_back(ShortEnumName(type->value(i)));
  return names;
}

const EnumValueDescriptor* FindEnumValue(const EnumDescriptor* type, absl::string_view text) {
  for (int i = 0; i < type->value_count(); ++i) {
    const EnumValueDescriptor* value = type->value(i);
    if (absl::EqualsIgnoreCase(ShortEnumName(value), text) || absl::EqualsIgnoreCase(value->name(), text)) return value;
  }
  return nullptr;
}

enum class Unit { kNone, kBytes, kMilliseconds, kMicroseconds };

Unit UnitOf(const FieldDescriptor* field) {
  if (absl::EndsWith(field->name(), "_bytes")) return Unit::kBytes;
  if (absl::EndsWith(field->name(), "_ms")) return Unit::kMilliseconds;
  if (absl::EndsWith(field->name(), "_us")) return Unit::kMicroseconds;
  return Unit::kNone;
}

// A suffix multiplies and then divides, so that "500us" is refused for a field in ms instead of becoming 0.
struct Suffix {
  const char* text;
  uint64_t multiply, divide;
};

std::vector<Suffix> SuffixesOf(Unit unit) {
  switch (unit) {
    case Unit::kBytes: return {{"KiB", 1 << 10, 1}, {"MiB", 1 << 20, 1}, {"GiB", 1 << 30, 1}, {"B", 1, 1}};
    case Unit::kMilliseconds: return {{"us", 1, 1000}, {"ms", 1, 1}, {"min", 60000, 1}, {"s", 1000, 1}};
    case Unit::kMicroseconds: return {{"us", 1, 1}, {"ms", 1000, 1}, {"min", 60000000, 1}, {"s", 1000000, 1}};
    case Unit::kNone: break;
  }
  return {};
}

absl::Status Refuse(const ConfigKey& key, absl::string_view text, absl::string_view why = "") {
  return absl::InvalidArgumentError(
      absl::StrCat(key.name, ": \"", text.substr(0, 200), "\" is not ", key.TypeName(), why.empty() ? "" : ": ", why));
}

absl::Status ParseInteger(const ConfigKey& key, absl::string_view text, int64_t low, uint64_t high, uint64_t* magnitude,
                          bool* negative) {
  absl::string_view digits = text;
  uint64_t multiply = 1, divide = 1;
  for (const Suffix& suffix : SuffixesOf(UnitOf(key.field()))) {
    if (!absl::EndsWith(digits, suffix.text)) continue;
    digits.remove_suffix(absl::string_view(suffix.text).size());
    while (!digits.empty() && digits.back() == ' ') digits.remove_suffix(1);
    multiply = suffix.multiply;
    divide = suffix.divide;
    break;
  }
  *negative = !digits.empty() && digits.front() == '-';
  if (*negative) digits.remove_prefix(1);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || end != digits.data() + digits.size()) return Refuse(key, text);
  const uint64_t limit = *negative ? uint64_t{0} - static_cast<uint64_t>(low) : high;
  if (error != std::errc() || value > std::numeric_limits<uint64_t>::max() / multiply ||
      value * multiply / divide > limit) {
    return Refuse(key, text, absl::StrCat("it must lie between ", low, " and ", high));
  }
  if (value * multiply % divide != 0) return Refuse(key, text, "it is finer than the key's unit");
  *magnitude = value * multiply / divide;
  return absl::OkStatus();
}

bool ParseBool(absl::string_view text, bool* value) {
  const std::string lower = absl::AsciiStrToLower(std::string(text));
  if (lower == "true" || lower == "1" || lower == "yes" || lower == "on") return *value = true;
  if (lower == "false" || lower == "0" || lower == "no" || lower == "off") return *value = false, true;
  return false;
}

std::string DoubleToText(double value) {
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
}

}  // namespace

// The values of one enum share their first word.
std::string ShortEnumName(const EnumValueDescriptor* value) {
  const std::string& name = value->name();
  return absl::AsciiStrToLower(name.substr(name.find('_') + 1));
}

std::string ConfigKey::EnvironmentName() const {
  std::string result = absl::StrCat("SLUICE_", absl::AsciiStrToUpper(name));
  std::replace(result.begin(), result.end(), '.', '_');
  return result;
}

std::string ConfigKey::TypeName() const {
  switch (field()->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING: return "text";
    case FieldDescriptor::CPPTYPE_BOOL: return "true or false";
    case FieldDescriptor::CPPTYPE_ENUM: return absl::StrJoin(ShortEnumNames(field()->enum_type()), "|");
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT: return "a real number";
    default: break;
  }
  switch (UnitOf(field())) {
    case Unit::kBytes: return "a size (bytes, or with KiB, MiB, GiB)";
    case Unit::kMilliseconds: return "a time (milliseconds, or with ms, s, min)";
    case Unit::kMicroseconds: return "a time (microseconds, or with us, ms, s)";
    case Unit::kNone: break;
  }
  return "a whole number";
}

const std::vector<ConfigKey>& ConfigKeys() {
  static const std::vector<ConfigKey>* const keys = [] {
    auto* result = new std::vector<ConfigKey>;
    CollectKeys(proto::Config::descriptor(), "", {}, result);
    return result;
  }();
  return *keys;
}

const ConfigKey* FindConfigKey(absl::string_view name) {
  for (const ConfigKey& key : ConfigKeys())
    if (key.name == name) return &key;
  return nullptr;
}

const ConfigKey* FindConfigKeyByLastPart(absl::string_view name) {
  const ConfigKey* found = nullptr;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.field()->name() != name) continue;
    if (found != nullptr) return nullptr;
    found = &key;
  }
  return found;
}

absl::Status SetConfigValue(const ConfigKey& key, absl::string_view text, proto::Config* config) {
  const FieldDescriptor* field = key.field();
  // Parse first, then touch the message.
  uint64_t magnitude = 0;
  bool negative = false, boolean = false;
  double real = 0;
  const EnumValueDescriptor* enum_value = nullptr;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      if (auto s = ParseInteger(key, text, 0, std::numeric_limits<uint32_t>::max(), &magnitude, &negative); !s.ok())
        return s;
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      if (auto s = ParseInteger(key, text, 0, std::numeric_limits<uint64_t>::max(), &magnitude, &negative); !s.ok())
        return s;
      break;
    case FieldDescriptor::CPPTYPE_INT32:
      if (auto s = ParseInteger(key, text, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                                &magnitude, &negative);
          !s.ok())
        return s;
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!ParseBool(text, &boolean)) return Refuse(key, text);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (!absl::SimpleAtod(text, &real) || !std::isfinite(real)) return Refuse(key, text);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      enum_value = FindEnumValue(field->enum_type(), text);
      if (enum_value == nullptr) return Refuse(key, text);
      break;
    case FieldDescriptor::CPPTYPE_STRING: break;
    default: return absl::UnimplementedError(absl::StrCat(key.name, ": keys of this type cannot be set from text"));
  }

  Message* message = config;
  for (size_t i = 0; i + 1 < key.path.size(); ++i)
    message = message->GetReflection()->MutableMessage(message, key.path[i]);
  const auto* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      reflection->SetUInt32(message, field, static_cast<uint32_t>(magnitude));
      break;
    case FieldDescriptor::CPPTYPE_UINT64: reflection->SetUInt64(message, field, magnitude); break;
    case FieldDescriptor::CPPTYPE_INT32: {
      const int64_t value = static_cast<int64_t>(magnitude);
      reflection->SetInt32(message, field, static_cast<int32_t>(negative ? -value : value));
      break;
    }
    case FieldDescriptor::CPPTYPE_BOOL: reflection->SetBool(message, field, boolean); break;
    case FieldDescriptor::CPPTYPE_DOUBLE: reflection->SetDouble(message, field, real); break;
    case FieldDescriptor::CPPTYPE_ENUM: reflection->SetEnum(message, field, enum_value); break;
    default: reflection->SetString(message, field, std::string(text)); break;
  }
  return absl::OkStatus();
}

std::string GetConfigValue(const ConfigKey& key, const proto::Config& config) {
  const Message* message = &config;
  for (size_t i = 0; i + 1 < key.path.size(); ++i)
    message = &message->GetReflection()->GetMessage(*message, key.path[i]);
  const auto* reflection = message->GetReflection();
  const FieldDescriptor* field = key.field();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32: return absl::StrCat(reflection->GetUInt32(*message, field));
    case FieldDescriptor::CPPTYPE_UINT64: return absl::StrCat(reflection->GetUInt64(*message, field));
    case FieldDescriptor::CPPTYPE_INT32: return absl::StrCat(reflection->GetInt32(*message, field));
    case FieldDescriptor::CPPTYPE_BOOL: return reflection->GetBool(*message, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_DOUBLE: return DoubleToText(reflection->GetDouble(*message, field));
    case FieldDescriptor::CPPTYPE_ENUM: return ShortEnumName(reflection->GetEnum(*message, field));
    case FieldDescriptor::CPPTYPE_STRING: return reflection->GetString(*message, field);
    default: return "";
  }
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  // Rows of the table of distances between prefixes: this one, that of one byte less of `a`, that of two less.
  std::vector<size_t> row(b.size() + 1), above(b.size() + 1), second(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    second.swap(above);
    above.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], second[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string Nearest(absl::string_view name, const std::vector<std::string>& candidates) {
  const absl::string_view bounded = name.substr(0, 256);
  std::string best;
  size_t best_distance = std::numeric_limits<size_t>::max();
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(bounded, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace sluice
