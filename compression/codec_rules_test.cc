#include "compression/codec_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice::compression {
namespace {

using ::testing::HasSubstr;

// The definition, slow and obvious.
bool Matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') return Matches(pattern.substr(1), name) || (!name.empty() && Matches(pattern, name.substr(1)));
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) && Matches(pattern.substr(1), name.substr(1));
}

TEST(MatchesPattern, DoesAsItsDefinitionForAllShortTexts) {
  const std::string letters = "ab", symbols = "ab?*";
  std::vector<std::string> names = {""}, patterns = {""};
  for (size_t i = 0; i < names.size() && names[i].size() < 5; ++i)
    for (const char c : letters) names.push_back(names[i] + c);
  for (size_t i = 0; i < patterns.size() && patterns[i].size() < 5; ++i)
    for (const char c : symbols) patterns.push_back(patterns[i] + c);
  size_t matched = 0;
  for (const std::string& pattern : patterns) {
    for (const std::string& name : names) {
      ASSERT_EQ(MatchesPattern(pattern, name), Matches(pattern, name)) << pattern << " and " << name;
      matched += Matches(pattern, name);
    }
  }
  EXPECT_GT(matched, 1000u);
}

TEST(MatchesPattern, EndsSoonWhateverThePattern) {
  std::string pattern;
  for (int i = 0; i < 100; ++i) pattern += "*a";
  EXPECT_FALSE(MatchesPattern(pattern + "b", std::string(200, 'a')));   // exponential if done naively
}

proto::TensorSpec Tensor(const std::string& name, proto::TensorKind kind = proto::TENSOR_WEIGHT) {
  proto::TensorSpec tensor;
  tensor.set_name(name);
  tensor.set_kind(kind);
  return tensor;
}

TEST(CodecRules, TheFirstThatMatchesInEverythingDecides) {
  const auto rules = ParseCodecRules(
      " *.bias = none ;embed*,min=1000=lowrank:4+fp16; embed*=int8;*,kind=norm=fp16; conv?,min=10,max=20=topk:0.01+int8; ");
  ASSERT_TRUE(rules.ok()) << rules.status();
  ASSERT_EQ(rules->size(), 5u);
  const auto codec = [&](const std::string& name, uint64_t elements, proto::TensorKind kind = proto::TENSOR_WEIGHT) {
    const CodecRule* rule = FirstMatch(*rules, Tensor(name, kind), elements);
    return rule == nullptr ? "" : rule->codec;
  };
  EXPECT_EQ(codec("a.bias", 5), "none");
  EXPECT_EQ(codec("embed.bias", 5000), "none");
  EXPECT_EQ(codec("embed", 1000), "lowrank:4+fp16");
  EXPECT_EQ(codec("embed", 999), "int8");
  EXPECT_EQ(codec("x", 999, proto::TENSOR_NORM), "fp16");
  EXPECT_EQ(codec("conv1", 10), "topk:0.01+int8");
  EXPECT_EQ(codec("conv1", 20), "topk:0.01+int8");
  EXPECT_EQ(codec("conv1", 21), "");
  EXPECT_EQ(codec("conv12", 15), "");
}

TEST(CodecRules, RefusesWhatItCannotReadAndSaysWhichRule) {
  const auto error = [](std::string_view text) {
    const auto rules = ParseCodecRules(text);
    return rules.ok() ? std::string() : std::string(rules.status().message());
  };
  EXPECT_EQ(error(""), "");
  EXPECT_EQ(error(" ; "), "");
  EXPECT_THAT(error("a=none;b"), HasSubstr("rule 2 (b): it has no \"=CODEC\""));
  EXPECT_THAT(error("a="), HasSubstr("names no codec"));
  EXPECT_THAT(error("=int8"), HasSubstr("has no pattern"));
  EXPECT_THAT(error("a,min=x=int8"), HasSubstr("\"x\" is no number of elements"));
  EXPECT_THAT(error("a,min=-1=int8"), HasSubstr("is no number"));
  EXPECT_THAT(error("a,kind=wieght=int8"), HasSubstr("weight, bias and norm"));
  EXPECT_THAT(error("a,b=int8"), HasSubstr("\"b\" is no condition"));
  EXPECT_THAT(error("a min=10=int8"), HasSubstr("has a blank or '='"));
  EXPECT_THAT(error("a=int8\nb=int4"), HasSubstr("has a blank or '='"));
  EXPECT_THAT(error("a,min=10,max=5=int8"), HasSubstr("at least 10 and at most 5"));
  std::string many;
  for (size_t i = 0; i <= kMaxCodecRules; ++i) many += "a=none;";
  EXPECT_THAT(error(many), HasSubstr("more than 256"));
  EXPECT_THAT(error(std::string(kMaxCodecRulesBytes + 1, 'a')), HasSubstr("bytes of rules"));
}

}  // namespace
}  // namespace sluice::compression
