#include "base/groups.h"

#include <map>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

std::vector<uint32_t> Members(const RankGroup& group) {
  std::vector<uint32_t> members;
  for (uint32_t i = 0; i < group.size; ++i) members.push_back(group.rank(i));
  return members;
}

TEST(Groups, RanksCountTheInnermostAxisFastest) {
  const auto groups = Groups::Parse("tensor:2, pipeline:3 ,data:4", 24);
  ASSERT_TRUE(groups.ok()) << groups.status();
  for (uint32_t d = 0, rank = 0; d < 4; ++d)
    for (uint32_t p = 0; p < 3; ++p)
      for (uint32_t t = 0; t < 2; ++t, ++rank) {
        EXPECT_EQ(rank, (d * 3 + p) * 2 + t);
        EXPECT_EQ(groups->Of(rank, "tensor")->index, t);
        EXPECT_EQ(groups->Of(rank, "pipeline")->index, p);
        EXPECT_EQ(groups->Of(rank, "data")->index, d);
        EXPECT_EQ(groups->Of(rank, "world")->index, rank);
      }
  EXPECT_EQ(Members(*groups->Of(9, "data")), (std::vector<uint32_t>{3, 9, 15, 21}));
}

TEST(Groups, EachAxisCutsTheRanksIntoEqualParts) {
  const auto groups = Groups::Parse("a:2,b:1,c:3,d:2", 12);
  ASSERT_TRUE(groups.ok()) << groups.status();
  for (uint32_t number = 0; number <= 4; ++number) {
    std::map<std::vector<uint32_t>, std::set<uint32_t>> seen;
    for (uint32_t rank = 0; rank < 12; ++rank) {
      const auto group = groups->Of(rank, number);
      ASSERT_TRUE(group.ok());
      EXPECT_EQ(group->rank(group->index), rank);
      EXPECT_TRUE(group->Contains(rank));
      EXPECT_EQ(group->IndexOf(rank), group->index);
      for (uint32_t other = 0; other < 12; ++other)
        if (!group->Contains(other)) EXPECT_NE(Members(*groups->Of(other, number)), Members(*group));
      seen[Members(*group)].insert(rank);
    }
    for (const auto& [members, ranks] : seen) EXPECT_EQ(std::set<uint32_t>(members.begin(), members.end()), ranks);
  }
}

TEST(Groups, WithoutConfigurationThereIsTheWorld) {
  const auto groups = Groups::Parse("", 5);
  ASSERT_TRUE(groups.ok());
  EXPECT_EQ(groups->Of(3, "")->size, 5u);
  EXPECT_EQ(groups->Of(3, "")->name, "world");
  EXPECT_THAT(groups->Of(3, "data").status().ToString(), HasSubstr("job.groups is empty"));
  EXPECT_FALSE(groups->Of(5, "world").ok());
}

TEST(Groups, WhatCannotBeIsRefusedInWords) {
  const auto why = [](absl::string_view text, uint32_t workers) {
    return Groups::Parse(text, workers).status().ToString();
  };
  EXPECT_THAT(why("tensor:2,data:3", 8), HasSubstr("product of the sizes is 6, but job.workers is 8"));
  EXPECT_THAT(why("tensor:4000000000,data:4000000000", 8), HasSubstr("or more, but job.workers is 8"));
  EXPECT_THAT(why("tensor", 2), HasSubstr("names no size"));
  EXPECT_THAT(why("tensor:0", 1), HasSubstr("names no size"));
  EXPECT_THAT(why("tensor:-2", 2), HasSubstr("names no size"));
  EXPECT_THAT(why("tensor:99999999999999999999", 2), HasSubstr("names no size"));
  EXPECT_THAT(why("a:2,a:1", 2), HasSubstr("comes twice"));
  EXPECT_THAT(why("world:2", 2), HasSubstr("all ranks"));
  EXPECT_THAT(why("a:2,,b:1", 2), HasSubstr("is no name"));
  EXPECT_THAT(why("7:2", 2), HasSubstr("is no name"));
  EXPECT_THAT(why("a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1", 1), HasSubstr("more than 8 axes"));
}

}  // namespace
}  // namespace sluice
