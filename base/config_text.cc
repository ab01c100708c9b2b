#include "base/config_text.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace sluice {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::Tokenizer;

constexpr size_t kMaxFileBytes = 1 << 20;

std::string Place(absl::string_view name, int line, int column) {
  return absl::StrCat(name, ":", line + 1, ":", column + 1, ": ");
}

class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(absl::string_view name) : name_(name) {}
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat(Place(name_, line, column), message);
  }
  const std::string& text() const { return text_; }

 private:
  absl::string_view name_;
  std::string text_;
};

class Parser {
 public:
  Parser(absl::string_view text, absl::string_view name)
      : name_(name), errors_(name), input_(text.data(), static_cast<int>(text.size())), tokens_(&input_, &errors_) {
    tokens_.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
    tokens_.set_require_space_after_number(false);  // "4MiB" is a number and a word without a gap
    tokens_.Next();
  }

  absl::StatusOr<std::vector<ConfigAssignment>> Run() {
    absl::Status status = Section(proto::Config::descriptor(), "");
    if (!errors_.text().empty()) return absl::InvalidArgumentError(errors_.text());
    if (!status.ok()) return status;
    return std::move(assignments_);
  }

 private:
  const std::string& text() const { return tokens_.current().text; }
  bool At(char c) const { return tokens_.current().type == Tokenizer::TYPE_SYMBOL && text()[0] == c; }
  bool AtEnd() const { return tokens_.current().type == Tokenizer::TYPE_END; }
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(Place(name_, tokens_.current().line, tokens_.current().column), what));
  }
  std::string Here() const { return AtEnd() ? "the end of the file" : absl::StrCat("\"", text().substr(0, 80), "\""); }

  // Fields until '}' (or the end, for the outermost). Recursion is as deep as the schema, not as the file.
  absl::Status Section(const Descriptor* type, const std::string& prefix) {
    while (!AtEnd() && !At('}')) {
      if (tokens_.current().type != Tokenizer::TYPE_IDENTIFIER)
        return Error(absl::StrCat("expected a key, found ", Here()));
      const FieldDescriptor* field = type->FindFieldByName(text());
      if (field == nullptr) {
        std::vector<std::string> candidates;
        for (int i = 0; i < type->field_count(); ++i) candidates.push_back(type->field(i)->name());
        return Error(absl::StrCat("no key \"", prefix, text().substr(0, 80), "\"; the nearest is \"", prefix,
                                  Nearest(text(), candidates), "\""));
      }
      const auto name = tokens_.current();
      tokens_.Next();
      const std::string key = absl::StrCat(prefix, field->name());
      absl::Status status =
          field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ? Braces(field->message_type(), key) : Value(key, name);
      if (!status.ok()) return status;
      if (At(',') || At(';')) tokens_.Next();
    }
    if (prefix.empty() && !AtEnd()) return Error("unexpected \"}\"");
    return absl::OkStatus();
  }

  absl::Status Braces(const Descriptor* type, const std::string& key) {
    if (At(':')) tokens_.Next();
    if (!At('{')) return Error(absl::StrCat("expected \"{\" after section \"", key, "\", found ", Here()));
    tokens_.Next();
    if (absl::Status status = Section(type, key + "."); !status.ok()) return status;
    if (!At('}')) return Error(absl::StrCat("section \"", key, "\" is not closed by \"}\""));
    tokens_.Next();
    return absl::OkStatus();
  }

  absl::Status Value(const std::string& key, const Tokenizer::Token& name) {
    if (const auto [it, fresh] = lines_.emplace(key, name.line); !fresh) {
      return absl::InvalidArgumentError(absl::StrCat(Place(name_, name.line, name.column), "\"", key,
                                                     "\" is given a second time (first in line ", it->second + 1, ")"));
    }
    if (!At(':')) return Error(absl::StrCat("expected \":\" after \"", key, "\", found ", Here()));
    tokens_.Next();
    std::string value;
    if (At('-')) {
      value = "-";
      tokens_.Next();
    }
    const auto first = tokens_.current();
    switch (first.type) {
      case Tokenizer::TYPE_STRING:
        if (!value.empty()) return Error("a text cannot be negative");
        // Neighbouring strings are one, as in protobuf's text format.
        for (; tokens_.current().type == Tokenizer::TYPE_STRING; tokens_.Next())
          Tokenizer::ParseStringAppend(text(), &value);
        break;
      case Tokenizer::TYPE_INTEGER:
      case Tokenizer::TYPE_FLOAT:
        value += first.text;
        tokens_.Next();
        if (tokens_.current().type == Tokenizer::TYPE_IDENTIFIER && tokens_.current().line == first.line &&
            tokens_.current().column == first.end_column) {
          value += text();
          tokens_.Next();
        }
        break;
      case Tokenizer::TYPE_IDENTIFIER:
        value += first.text;
        tokens_.Next();
        break;
      default: return Error(absl::StrCat("expected a value for \"", key, "\", found ", Here()));
    }
    // Refuse a bad value here, where its place is known.
    const ConfigKey* config_key = FindConfigKey(key);
    if (config_key->field()->cpp_type() == FieldDescriptor::CPPTYPE_STRING && first.type != Tokenizer::TYPE_STRING) {
      return absl::InvalidArgumentError(
          absl::StrCat(Place(name_, first.line, first.column), "\"", key, "\" is a text: write it in quotes"));
    }
    proto::Config scratch;
    if (absl::Status status = SetConfigValue(*config_key, value, &scratch); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(Place(name_, first.line, first.column), status.message()));
    }
    assignments_.push_back({config_key, std::move(value), name.line + 1, name.column + 1});
    return absl::OkStatus();
  }

  const absl::string_view name_;
  FirstError errors_;
  google::protobuf::io::ArrayInputStream input_;
  mutable Tokenizer tokens_;  // its accessors are not const
  std::map<std::string, int> lines_;
  std::vector<ConfigAssignment> assignments_;
};

}  // namespace

absl::StatusOr<std::vector<ConfigAssignment>> ParseConfigText(absl::string_view text, absl::string_view name) {
  if (text.size() > kMaxFileBytes)
    return absl::InvalidArgumentError(absl::StrCat(name, ": larger than 1 MiB; is it a configuration?"));
  return Parser(text, name).Run();
}

absl::StatusOr<std::vector<ConfigAssignment>> ParseConfigFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("configuration file ", path, ": ", std::strerror(errno)));
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return absl::DataLossError(absl::StrCat("configuration file ", path, ": cannot be read"));
  text.resize(static_cast<size_t>(file.gcount()));
  return ParseConfigText(text, path);
}

}  // namespace sluice
