#include "worker/row_residual.h"

#include <algorithm>
#include <optional>

#include "base/philox.h"
#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

std::vector<float> Take(RowResidual& residual, const std::vector<uint64_t>& ids) {
  std::vector<float> out(ids.size() * residual.dim(), -1.0f);
  RowResidual::Push(&residual).Take(ids, out);
  return out;
}

void Keep(RowResidual& residual, const std::vector<uint64_t>& ids, const std::vector<float>& values) {
  RowResidual::Push(&residual).Keep(ids, values);
}

TEST(RowResidual, TheRowThatWasPushedLongestAgoGivesItsPlace) {
  RowResidual residual(1, 3);
  Keep(residual, {1, 2, 3}, {10, 20, 30});
  Keep(residual, {1}, {11});      // renewed: 2 is the oldest
  Keep(residual, {4}, {40});
  EXPECT_EQ(Take(residual, {1, 2, 3, 4}), (std::vector<float>{11, 0, 30, 40}));
  EXPECT_EQ(residual.stats().rows, 3u);
  EXPECT_EQ(residual.stats().dropped, 1u);
}

TEST(RowResidual, RowsOfOnePushDoNotTakeEachOthersPlaces) {
  RowResidual residual(1, 2);
  Keep(residual, {9}, {90});
  Keep(residual, {1, 2, 3, 4}, {10, 20, 30, 40});
  EXPECT_EQ(Take(residual, {9, 1, 2, 3, 4}), (std::vector<float>{0, 10, 20, 0, 0}));
  EXPECT_EQ(residual.stats().dropped, 3u);   // 9, 3 and 4
}

TEST(RowResidual, NoRoomAtAllKeepsNothing) {
  RowResidual residual(2, 0);
  Keep(residual, {1}, {1, 2});
  EXPECT_EQ(Take(residual, {1}), (std::vector<float>{0, 0}));
  EXPECT_EQ(residual.stats().rows, 0u);
}

TEST(RowResidual, WhatComesBackIsAdded) {
  RowResidual residual(2, 2);
  Keep(residual, {1}, {1, 2});
  residual.Return(std::vector<uint64_t>{1, 5}, std::vector<float>{10, 20, 30, 40});
  EXPECT_EQ(Take(residual, {1, 5}), (std::vector<float>{11, 22, 30, 40}));
}

// Against a list of (id, value), the one pushed longest ago first; and a copy that is saved and restored now and then goes on
// as the original.
TEST(RowResidual, AgreesWithAListAndSurvivesBeingSaved) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    PhiloxRandom random(seed);
    const size_t most = 1 + random.Below(12);
    std::optional<RowResidual> residual;
    residual.emplace(1, most);
    std::vector<std::pair<uint64_t, float>> list;
    for (int push = 0; push < 60; ++push) {
      std::vector<uint64_t> ids;
      std::vector<float> values;
      for (uint64_t id = 0; id < 20; ++id) {
        if (!random.Chance(0.2)) continue;
        ids.push_back(id);
        values.push_back(random.Uniform());
      }
      Keep(*residual, ids, values);
      size_t renewed = 0;   // at the end of the list: rows of this push
      for (size_t i = 0; i < ids.size(); ++i) {
        const auto at = std::ranges::find(list, ids[i], &std::pair<uint64_t, float>::first);
        if (at != list.end()) {
          renewed += at >= list.end() - static_cast<std::ptrdiff_t>(renewed) ? 0 : 1;
          list.erase(at);
        } else if (list.size() < most) {
          ++renewed;
        } else if (renewed < list.size()) {
          list.erase(list.begin());
          ++renewed;
        } else {
          continue;
        }
        list.emplace_back(ids[i], values[i]);
      }
      ASSERT_EQ(residual->stats().rows, list.size());
      ASSERT_LE(list.size(), most);
      const RowResidual::Saved saved = residual->Save();
      for (size_t i = 0; i < list.size(); ++i) {
        ASSERT_EQ(saved.ids[i], list[i].first) << "seed " << seed << " push " << push;
        ASSERT_EQ(saved.values[i], list[i].second);
      }
      if (random.Chance(0.2)) {
        residual.emplace(1, most);
        residual->Restore(saved);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::worker
