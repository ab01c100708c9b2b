#include "scheduler/topology/formats/hostlist.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Refusal(absl::string_view text, size_t max_names = kMaxHostlistNames) {
  return std::string(ExpandHostlist(text, max_names).status().message());
}

TEST(Hostlist, Expands) {
  EXPECT_THAT(*ExpandHostlist("login"), ElementsAre("login"));
  EXPECT_THAT(*ExpandHostlist("n[01-03,12]"), ElementsAre("n01", "n02", "n03", "n12"));
  EXPECT_THAT(*ExpandHostlist("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(*ExpandHostlist("n[098-101]"), ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_THAT(*ExpandHostlist("a[1-2],gpu-x,b[7]-ib"), ElementsAre("a1", "a2", "gpu-x", "b7-ib"));
  EXPECT_THAT(*ExpandHostlist("r[0-1]n[08-09]"), ElementsAre("r0n08", "r0n09", "r1n08", "r1n09"));
  EXPECT_THAT(*ExpandHostlist("h/gpu[0-1]"), ElementsAre("h/gpu0", "h/gpu1"));
  EXPECT_THAT(*ExpandHostlist("[0-1]"), ElementsAre("0", "1"));
}

TEST(Hostlist, RefusesWithAReason) {
  EXPECT_THAT(Refusal(""), HasSubstr("empty name"));
  EXPECT_THAT(Refusal("a,,b"), HasSubstr("empty name"));
  EXPECT_THAT(Refusal("a,"), HasSubstr("empty name"));
  EXPECT_THAT(Refusal("n[1-2"), HasSubstr("'[' without its ']'"));
  EXPECT_THAT(Refusal("n1-2]"), HasSubstr("']' without its '['"));
  EXPECT_THAT(Refusal("n[]"), HasSubstr("no number"));
  EXPECT_THAT(Refusal("n[1-]"), HasSubstr("no number"));
  EXPECT_THAT(Refusal("n[1,x]"), HasSubstr("\"x\" in brackets"));
  EXPECT_THAT(Refusal("n[[1]]"), HasSubstr("in brackets"));
  EXPECT_THAT(Refusal("n[5-3]"), HasSubstr("goes down"));
  EXPECT_THAT(Refusal("n[0-9999999999999999999]"), HasSubstr("in brackets"));
  EXPECT_THAT(Refusal("a b"), HasSubstr("is in no name"));
  EXPECT_THAT(Refusal(std::string(300, 'x')), HasSubstr("more than 255 bytes"));
  EXPECT_THAT(Refusal(std::string(250, 'x') + "[100000-100001]"), HasSubstr("more than 255 bytes"));
  EXPECT_THAT(Refusal("a[1][1][1][1][1][1][1][1][1]"), HasSubstr("brackets"));
}

TEST(Hostlist, RefusesWhatIsTooManyBeforeItIsMade) {
  EXPECT_EQ(ExpandHostlist("n[0-999999999]").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Refusal("n[0-999999999999999999]"), HasSubstr("more than 1048576 names"));
  EXPECT_THAT(Refusal("n[0-99999]m[0-99999]"), HasSubstr("more than"));
  EXPECT_THAT(Refusal("a[0-9],b[0-9]", 19), HasSubstr("more than 19 names"));
  EXPECT_THAT(*ExpandHostlist("a[0-9],b[0-9]", 20), SizeIs(20));
}

TEST(Hostlist, Compresses) {
  const auto compress = [](std::vector<std::string> names) { return CompressHostlist(names); };
  EXPECT_EQ(compress({}), "");
  EXPECT_EQ(compress({"login"}), "login");
  EXPECT_EQ(compress({"n7"}), "n7");
  EXPECT_EQ(compress({"n01", "n02", "n03", "n12"}), "n[01-03,12]");
  EXPECT_EQ(compress({"n8", "n9", "n10"}), "n[8-10]");
  EXPECT_EQ(compress({"n08", "n09", "n10", "n100"}), "n[08-10,100]");
  EXPECT_EQ(compress({"a1-ib", "a2-ib", "b1"}), "a[1-2]-ib,b1");
  EXPECT_EQ(compress({"n2", "n1"}), "n[2,1]");
}

// The slow, obvious reference: numbers are counted up as text.
std::vector<std::string> SlowRange(const std::string& before, const std::string& first, uint64_t count) {
  std::vector<std::string> names;
  std::string digits = first;
  for (uint64_t i = 0; i < count; ++i) {
    names.push_back(before + digits);
    size_t at = digits.size();
    while (at > 0 && digits[at - 1] == '9') digits[--at] = '0';
    if (at > 0)
      ++digits[at - 1];
    else
      digits = "1" + digits;
  }
  return names;
}

TEST(HostlistProperty, RangesAreWhatCountingUpGives) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::string first = std::string(random() % 3, '0') + std::to_string(random() % 1200);
    const uint64_t count = 1 + random() % 40;
    const std::vector<std::string> expected = SlowRange("n", first, count);
    const std::string last = expected.back().substr(1);
    const auto got = ExpandHostlist(absl::StrCat("n[", first, "-", last, "]"));
    ASSERT_TRUE(got.ok()) << first << " " << last << " " << got.status();
    EXPECT_EQ(*got, expected);
  }
}

TEST(HostlistProperty, WhatIsCompressedExpandsToTheSameNamesInTheirOrder) {
  std::mt19937_64 random(2);
  const std::vector<std::string> words = {"n", "r1n", "rack-", "", "x0"};
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::string> names;
    while (names.size() < 1 + random() % 12) {
      std::string name = words[random() % words.size()];
      if (random() % 8 != 0 || name.empty()) name += std::string(random() % 2, '0') + std::to_string(random() % 13);
      if (random() % 6 == 0) name += "-ib";
      const uint64_t run = random() % 3 == 0 ? random() % 5 : 1;
      for (uint64_t k = 0; k < run; ++k) names.push_back(name);
      for (const std::string& next : SlowRange("q", "0" + std::to_string(random() % 100), random() % 4))
        names.push_back(next);
    }
    const std::string text = CompressHostlist(names);
    const auto back = ExpandHostlist(text);
    ASSERT_TRUE(back.ok()) << text << ": " << back.status();
    EXPECT_EQ(*back, names) << text;
  }
}

}  // namespace
}  // namespace sluice::topology
