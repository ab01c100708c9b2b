#include "worker/rows.h"

#include <limits>
#include <map>
#include <set>

#include "base/philox.h"
#include "compression/row_payload.h"
#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

const TableShape kTable{.name = "users", .dim = 3, .segments = 5};

std::vector<uint64_t> RandomIds(PhiloxRandom& random, size_t n) {
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t small = random.Below(50);
    ids.push_back(random.Chance(0.7) ? small : (uint64_t{random()} << 32 | random()));
  }
  return ids;
}

TEST(PrepareRowPush, EveryIdIsInItsSegmentWithTheSumOfItsGradientsInOrderOfOccurrence) {
  const compression::Codec& none = *compression::DecoderFor(0);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    PhiloxRandom random(seed);
    const std::vector<uint64_t> ids = RandomIds(random, random.Below(200));
    std::vector<float> gradients(ids.size() * 3);
    for (float& g : gradients) g = random.Uniform() * 1e6f - 3.0f;
    std::map<uint64_t, std::vector<float>> expected;
    for (size_t i = 0; i < ids.size(); ++i) {
      std::vector<float>& sum = expected.try_emplace(ids[i], std::vector<float>()).first->second;
      if (sum.empty()) {
        sum.assign(gradients.begin() + static_cast<std::ptrdiff_t>(3 * i), gradients.begin() + static_cast<std::ptrdiff_t>(3 * i + 3));
      } else {
        for (size_t k = 0; k < 3; ++k) sum[k] += gradients[3 * i + k];
      }
    }
    const auto push = PrepareRowPush(kTable, ids, gradients);
    ASSERT_TRUE(push.ok()) << push.status();
    ASSERT_EQ(push->parts.size(), 5u);
    size_t rows = 0;
    for (uint32_t s = 0; s < 5; ++s) {
      const RowPush::Part& part = push->parts[s];
      rows += part.rows;
      if (part.rows == 0) {
        EXPECT_TRUE(part.payload.empty());
        continue;
      }
      const auto parsed = compression::ParseRows(part.payload, part.rows);
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      ASSERT_EQ(parsed->ids.size(), part.rows);
      std::vector<float> values(part.rows * 3);
      ASSERT_TRUE(none.Decode(parsed->values, values).ok());
      for (size_t r = 0; r < part.rows; ++r) {
        EXPECT_EQ(compression::SegmentOf(parsed->ids[r], 5), s);
        EXPECT_EQ(std::vector<float>(values.begin() + static_cast<std::ptrdiff_t>(3 * r), values.begin() + static_cast<std::ptrdiff_t>(3 * r + 3)),
                  expected.at(parsed->ids[r]));
      }
    }
    EXPECT_EQ(rows, expected.size());
    EXPECT_EQ(push->raw_bytes, rows * 12);
  }
}

std::vector<uint64_t> IdsOf(const RowPull& pull, const RowPull::Part& part) {
  if (pull.packed) {
    const auto parsed = compression::ParseRows(pull.Payload(part), part.rows);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed->ids;
  }
  const ConstBytes payload = pull.Payload(part);
  std::vector<uint64_t> ids(payload.size() / 8);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = LoadLe<uint64_t>(payload.data() + 8 * i);
  return ids;
}

TEST(PrepareRowPull, PlacesEachRowWhereverItsIdStands) {
  RowPullScratch scratch;   // what earlier calls left in it must not matter
  for (uint64_t seed = 0; seed < 100; ++seed) {
    PhiloxRandom random(seed);
    constexpr uint32_t kDims[] = {3, 20000, 16, 5};   // packed; plain with 3 rows a part, with whole lines, and neither
    const uint32_t dim = kDims[seed % 4];
    const TableShape table{.name = "t", .dim = dim, .segments = 1 + random.Below(4)};
    const std::vector<uint64_t> ids = RandomIds(random, random.Below(60));
    const auto pull = PrepareRowPull(table, ids, seed % 3 == 0 ? nullptr : &scratch);
    ASSERT_TRUE(pull.ok()) << pull.status();
    EXPECT_EQ(pull->packed, dim == 3);
    std::vector<float> out(ids.size() * table.dim, -1.0f);
    std::set<uint64_t> seen;
    size_t asked = 0;
    for (const RowPull::Part& part : pull->parts) {
      asked += part.rows;
      EXPECT_LE(part.rows * dim * 4, std::max<size_t>(kPullPartBytes, dim * 4));
      const std::vector<uint64_t> rows = IdsOf(*pull, part);
      ASSERT_EQ(rows.size(), part.rows);
      std::vector<float> values(size_t{part.rows} * table.dim);
      for (uint32_t r = 0; r < part.rows; ++r) {
        EXPECT_TRUE(seen.insert(rows[r]).second || !pull->packed) << "asked for twice";
        EXPECT_EQ(compression::SegmentOf(rows[r], table.segments), part.segment);
        std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(size_t{r} * table.dim), table.dim,
                    static_cast<float>(rows[r] % 1000));
      }
      PlaceRows(*pull, part, std::as_bytes(std::span<const float>(values)), out);
    }
    EXPECT_EQ(seen, std::set<uint64_t>(ids.begin(), ids.end()));
    EXPECT_LE(asked, seen.size() + (ids.size() - seen.size()) / 2) << "most duplicates are asked for once";
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(out[i * table.dim], static_cast<float>(ids[i] % 1000));
      EXPECT_EQ(out[(i + 1) * table.dim - 1], static_cast<float>(ids[i] % 1000));
    }
  }
}

TEST(PrepareRowPush, WhatIsNotFiniteIsRefusedByTableAndId) {
  std::vector<float> gradients(6, 1.0f);
  gradients[4] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<uint64_t> ids = {7, 4711};
  const absl::Status nan = PrepareRowPush(kTable, ids, gradients).status();
  EXPECT_EQ(nan.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(nan.message().find("table users: value 1 of row id 4711"), std::string_view::npos) << nan;
  gradients.assign(6, 3e38f);
  const absl::Status sum = PrepareRowPush(kTable, std::vector<uint64_t>{9, 9}, gradients).status();
  EXPECT_NE(sum.message().find("row id 9"), std::string_view::npos) << sum;
  EXPECT_FALSE(PrepareRowPush(kTable, ids, std::vector<float>(5)).ok());
}

TEST(PrepareRows, IdsBeyondTheVocabularyAreRefusedOrReadAsZeros) {
  TableShape table = kTable;
  table.vocabulary = 10;
  const std::vector<uint64_t> ids = {3, 10, 4};
  EXPECT_NE(PrepareRowPull(table, ids).status().message().find("id 10 at position 1"), std::string_view::npos);
  table.unknown_as_zero = true;
  const auto pull = PrepareRowPull(table, ids);
  ASSERT_TRUE(pull.ok());
  EXPECT_EQ(pull->unknown, std::vector<uint32_t>{1});
  EXPECT_EQ(pull->places.size(), 2u);
  const auto push = PrepareRowPush(table, ids, std::vector<float>(9, 1.0f));
  ASSERT_TRUE(push.ok());
  uint32_t rows = 0;
  for (const auto& part : push->parts) rows += part.rows;
  EXPECT_EQ(rows, 2u);
}

}  // namespace
}  // namespace sluice::worker
