#include "compression/codec_rules.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace sluice::compression {
namespace {

absl::Status TakeCondition(absl::string_view text, CodecRule* rule) {
  const auto number = [&](absl::string_view digits, uint64_t* value) {
    if (absl::SimpleAtoi(digits, value)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("\"", digits, "\" is no number of elements"));
  };
  if (absl::ConsumePrefix(&text, "min=")) return number(text, &rule->min_elements);
  if (absl::ConsumePrefix(&text, "max=")) return number(text, &rule->max_elements);
  if (absl::ConsumePrefix(&text, "kind=")) {
    if (text == "weight") rule->kind = proto::TENSOR_WEIGHT;
    else if (text == "bias") rule->kind = proto::TENSOR_BIAS;
    else if (text == "norm") rule->kind = proto::TENSOR_NORM;
    else return absl::InvalidArgumentError(absl::StrCat("kind ", text, ": weight, bias and norm are possible"));
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no condition: kind=…, min=… and max=… are"));
}

absl::StatusOr<CodecRule> ParseRule(absl::string_view text) {
  CodecRule rule;
  rule.text = std::string(text);
  const size_t last = text.rfind('=');
  if (last == absl::string_view::npos) return absl::InvalidArgumentError("it has no \"=CODEC\"");
  const absl::string_view codec = absl::StripAsciiWhitespace(text.substr(last + 1));
  if (codec.empty()) return absl::InvalidArgumentError("it names no codec behind \"=\"");
  rule.codec = std::string(codec);
  const std::vector<absl::string_view> parts = absl::StrSplit(text.substr(0, last), ',');
  rule.pattern = std::string(absl::StripAsciiWhitespace(parts[0]));
  if (rule.pattern.empty()) return absl::InvalidArgumentError("it has no pattern; \"*\" is any tensor");
  if (rule.pattern.find_first_of("= \t\r\n") != std::string::npos)
    return absl::InvalidArgumentError(absl::StrCat("its pattern \"", rule.pattern, "\" has a blank or '=': conditions stand behind a "
                                                   "comma, rules are joined by ';'"));
  for (size_t i = 1; i < parts.size(); ++i) SLUICE_RETURN_IF_ERROR(TakeCondition(absl::StripAsciiWhitespace(parts[i]), &rule));
  if (rule.min_elements > rule.max_elements)
    return absl::InvalidArgumentError(absl::StrCat("no tensor has at least ", rule.min_elements, " and at most ", rule.max_elements,
                                                   " elements"));
  return rule;
}

}  // namespace

absl::StatusOr<std::vector<CodecRule>> ParseCodecRules(std::string_view text) {
  if (text.size() > kMaxCodecRulesBytes)
    return absl::InvalidArgumentError(absl::StrCat(text.size(), " bytes of rules; ", kMaxCodecRulesBytes, " are allowed"));
  std::vector<CodecRule> rules;
  size_t number = 0;
  for (absl::string_view part : absl::StrSplit(absl::string_view(text.data(), text.size()), ';')) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty()) continue;   // behind the last ';'
    ++number;
    absl::StatusOr<CodecRule> rule = ParseRule(part);
    if (!rule.ok())
      return absl::InvalidArgumentError(absl::StrCat("rule ", number, " (", part.substr(0, 80), "): ", rule.status().message(),
                                                     "; a rule is PATTERN[,kind=K][,min=N][,max=N]=CODEC"));
    if (rules.size() == kMaxCodecRules)
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxCodecRules, " rules"));
    rules.push_back(*std::move(rule));
  }
  return rules;
}

const CodecRule* FirstMatch(const std::vector<CodecRule>& rules, const proto::TensorSpec& tensor, uint64_t elements) {
  for (const CodecRule& rule : rules) {
    if (rule.kind.has_value() && *rule.kind != tensor.kind()) continue;
    if (elements < rule.min_elements || elements > rule.max_elements) continue;
    if (MatchesPattern(rule.pattern, tensor.name())) return &rule;
  }
  return nullptr;
}

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0;
  size_t star = std::string_view::npos, resume = 0;   // the last '*' seen, and what it has swallowed up to
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace sluice::compression
