#include "scheduler/topology/formats/json_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::topology {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxErrorBytes = 300;

// Builds the value from the parser's events. (The parser's own filter by callback looks through a list again for each
// of its objects: minutes for the nodes of a large cluster.)
class Builder final : public Json::json_sax_t {
 public:
  explicit Builder(const std::vector<std::string>& dropped) : dropped_(dropped) {}

  bool null() override { return Put(nullptr) != kNowhere; }
  bool boolean(bool value) override { return Put(value) != kNowhere; }
  bool number_integer(number_integer_t value) override { return Put(value) != kNowhere; }
  bool number_unsigned(number_unsigned_t value) override { return Put(value) != kNowhere; }
  bool number_float(number_float_t value, const string_t&) override { return Put(value) != kNowhere; }
  bool string(string_t& value) override { return Put(std::move(value)) != kNowhere; }
  bool binary(binary_t&) override { return false; }  // not in text
  bool start_object(size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    drop_next_ = skipped_ == 0 && std::find(dropped_.begin(), dropped_.end(), name) != dropped_.end();
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
    error_at = byte;
    what = std::string(error.what()).substr(0, kMaxErrorBytes);   // it quotes what it read last: gigabytes, perhaps
    return false;
  }

  Json result;
  bool too_deep = false;
  size_t error_at = 0;
  std::string what;

 private:
  static constexpr Json* kNowhere = nullptr;

  // Where a value of the innermost open object or list is kept; &dropped_value_: it is not.
  Json* Put(Json value) {
    if (skipped_ > 0 || std::exchange(drop_next_, false)) return &dropped_value_;
    if (open_.empty()) {
      result = std::move(value);
      return &result;
    }
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool Open(Json value) {
    if (open_.size() + skipped_ >= kMaxJsonDepth) {
      too_deep = true;
      return false;
    }
    Json* const place = Put(std::move(value));
    if (place == &dropped_value_)
      ++skipped_;
    else
      open_.push_back(place);
    return true;
  }
  bool Close() {
    if (skipped_ > 0)
      --skipped_;
    else
      open_.pop_back();
    return true;
  }

  const std::vector<std::string>& dropped_;
  std::vector<Json*> open_;  // from the outermost on; only the last one grows, so all stay where they are
  size_t skipped_ = 0;       // objects and lists that are open below a key whose value is dropped
  bool drop_next_ = false;
  std::string key_;
  Json dropped_value_;
};

}  // namespace

absl::StatusOr<Json> ParseJson(const Reading& reading, const std::vector<std::string>& dropped) {
  const absl::string_view text = reading.input.text;
  Builder builder(dropped);
  bool parsed = false;
  try {  // of memory, at most; errors of the text come by parse_error
    parsed = Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const std::exception& error) {
    return reading.Refuse(0, absl::StrCat("no JSON: ", error.what()));
  }
  if (builder.too_deep)
    return reading.Refuse(0, absl::StrCat("more than ", kMaxJsonDepth, " objects or lists inside each other"));
  if (!parsed)
    return reading.Refuse(LineIndex(text).At(builder.error_at == 0 ? 0 : builder.error_at - 1),
                          absl::StrCat("no JSON: ", builder.what), "give the command's output as it is");
  return std::move(builder.result);
}

const Json& Member(const Json& value, const std::string& key) {
  static const Json* const none = new Json();
  if (!value.is_object()) return *none;
  const auto it = value.find(key);
  return it == value.end() ? *none : *it;
}

std::string TextOf(const Json& value) { return value.is_string() ? value.get<std::string>() : ""; }

}  // namespace sluice::topology
