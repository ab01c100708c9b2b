#include "scheduler/topology/formats/json_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice::topology {

absl::StatusOr<nlohmann::json> ParseJson(const Reading& reading, const std::vector<std::string>& dropped) {
  using Json = nlohmann::json;
  bool too_deep = false;
  const auto keep = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxJsonDepth) too_deep = true;
    if (event == Json::parse_event_t::key)
      return std::find(dropped.begin(), dropped.end(), parsed.get_ref<const std::string&>()) == dropped.end();
    return depth <= kMaxJsonDepth;
  };
  const absl::string_view text = reading.input.text;
  try {  // nlohmann's errors say where; none leaves this function
    Json json = Json::parse(text.begin(), text.end(), keep);
    if (too_deep)
      return reading.Refuse(0, absl::StrCat("more than ", kMaxJsonDepth, " objects or lists inside each other"));
    return json;
  } catch (const Json::parse_error& error) {
    return reading.Refuse(LineIndex(text).At(error.byte == 0 ? 0 : error.byte - 1),
                          absl::StrCat("no JSON: ", error.what()), "give the command's output as it is");
  } catch (const std::exception& error) {
    return reading.Refuse(0, absl::StrCat("no JSON: ", error.what()));
  }
}

const nlohmann::json& Member(const nlohmann::json& value, const std::string& key) {
  static const nlohmann::json* const none = new nlohmann::json();
  if (!value.is_object()) return *none;
  const auto it = value.find(key);
  return it == value.end() ? *none : *it;
}

std::string TextOf(const nlohmann::json& value) { return value.is_string() ? value.get<std::string>() : ""; }

}  // namespace sluice::topology
