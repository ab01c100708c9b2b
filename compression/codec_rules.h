// Rules that name the codecs of tensors: job.codec_rules.
//
//   text  = rule { ";" rule }        spaces around the parts do not count; an empty text has no rules
//   rule  = pattern { "," condition } "=" codec
//   condition = "kind=" ("weight" | "bias" | "norm") | "min=" elements | "max=" elements
//
// A pattern is compared with the whole name of the tensor: '*' stands for any characters, '?' for one. The first rule that
// a tensor matches in everything decides. Example: "*.bias=none; embed*,min=100000=lowrank:4; conv*,kind=weight=topk:0.01+int8".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan.pb.h"

namespace sluice::compression {

struct CodecRule {
  std::string pattern;
  std::optional<proto::TensorKind> kind;
  uint64_t min_elements = 0, max_elements = UINT64_MAX;   // both included
  std::string codec;                                      // not checked here
  std::string text;                                       // as it was written
};

inline constexpr size_t kMaxCodecRules = 256;
inline constexpr size_t kMaxCodecRulesBytes = 64 << 10;

// INVALID_ARGUMENT names the rule, by number and text, and what is wrong with it.
absl::StatusOr<std::vector<CodecRule>> ParseCodecRules(std::string_view text);

// elements: of the tensor. Null if none matches.
const CodecRule* FirstMatch(const std::vector<CodecRule>& rules, const proto::TensorSpec& tensor, uint64_t elements);

// In time O(pattern x name), whatever the pattern.
bool MatchesPattern(std::string_view pattern, std::string_view name);

}  // namespace sluice::compression
