#include "server/table/row_sum.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <set>
#include <vector>

#include "base/philox.h"

namespace sluice::server {
namespace {

struct SlowSum {
  struct Row {
    std::vector<float> sum;
    uint32_t sightings = 0;
  };
  std::map<uint64_t, Row> rows;
  std::vector<uint64_t> order;

  void Add(const std::vector<uint64_t>& ids, const std::vector<float>& values, uint32_t dim) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!rows.contains(ids[i])) order.push_back(ids[i]);
      Row& row = rows[ids[i]];
      for (uint32_t d = 0; d < dim; ++d) {
        const float value = values[i * dim + d];
        if (row.sightings == 0) {
          row.sum.push_back(value);
        } else {
          row.sum[d] = row.sum[d] + value;
        }
      }
      ++row.sightings;
    }
  }
};

void ExpectEqual(const RowSum& sum, const SlowSum& slow, uint32_t dim) {
  ASSERT_EQ(std::vector<uint64_t>(sum.ids().begin(), sum.ids().end()), slow.order);
  ASSERT_EQ(sum.sums().size(), slow.order.size() * dim);
  ASSERT_EQ(sum.sightings().size(), slow.order.size());
  for (size_t i = 0; i < slow.order.size(); ++i) {
    const SlowSum::Row& row = slow.rows.at(slow.order[i]);
    ASSERT_EQ(sum.sightings()[i], row.sightings);
    for (uint32_t d = 0; d < dim; ++d)
      ASSERT_EQ(std::bit_cast<uint32_t>(sum.sums()[i * dim + d]), std::bit_cast<uint32_t>(row.sum[d])) << i << " " << d;
  }
}

std::vector<uint64_t> UniqueIds(PhiloxRandom& random, uint32_t most, uint32_t range) {
  std::set<uint64_t> seen;
  std::vector<uint64_t> ids;  // in the order of drawing
  for (uint32_t i = random.Below(most); i > 0; --i) {
    const uint64_t id = uint64_t{random.Below(range)} * 0x100000001;
    if (seen.insert(id).second) ids.push_back(id);
  }
  return ids;
}

TEST(RowSum, MatchesAMapBitForBitOverManyRounds) {
  for (const uint32_t dim : {1u, 3u, 16u}) {
    PhiloxRandom random(dim);
    RowSum sum(dim);
    for (int round = 0; round < 40; ++round) {
      SlowSum slow;
      const uint32_t range = 1 + random.Below(round % 7 == 3 ? 5000 : 300);
      for (uint32_t pushes = random.Below(6); pushes > 0; --pushes) {
        const std::vector<uint64_t> ids = UniqueIds(random, round % 7 == 3 ? 3000 : 200, range);
        std::vector<float> values(ids.size() * dim);
        for (float& v : values) v = random.Uniform() - 0.5f;
        sum.Add(ids, values);
        slow.Add(ids, values, dim);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectEqual(sum, slow, dim));
      if (round % 2 == 0) {
        sum.Divide(3.0f);
        for (auto& [id, row] : slow.rows)
          for (float& v : row.sum) v = v / 3.0f;
        ASSERT_NO_FATAL_FAILURE(ExpectEqual(sum, slow, dim));
      }
      sum.Reset();
      ASSERT_TRUE(sum.ids().empty() && sum.sums().empty() && sum.sightings().empty());
    }
  }
}

TEST(RowSum, TheFirstContributionAssigns) {  // -0 stays -0, which 0 + -0 is not
  RowSum sum(1);
  sum.Add(std::vector<uint64_t>{9}, std::vector<float>{-0.0f});
  EXPECT_EQ(std::bit_cast<uint32_t>(sum.sums()[0]), 0x80000000u);
}

TEST(RowSum, MemoryIsKeptFromRoundToRound) {
  RowSum sum(4);
  std::vector<uint64_t> ids(1000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i * i;
  const std::vector<float> values(ids.size() * 4, 1.0f);
  sum.Add(ids, values);
  const size_t bytes = sum.bytes();
  EXPECT_GE(bytes, 1000 * (8 + 16 + 4 + 4 + 8));
  for (int round = 0; round < 3; ++round) {
    sum.Reset();
    sum.Add(ids, values);
    EXPECT_EQ(sum.bytes(), bytes);
  }
}

}  // namespace
}  // namespace sluice::server
