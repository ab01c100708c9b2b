#include "server/table/segment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/philox.h"
#include "server/table/testing/slow_segment.h"

namespace sluice::server {
namespace {

struct Pair {  // a segment and its reference, which get the same calls
  Pair(const proto::TableSpec& spec, const SegmentLimits& limits) : dim(spec.dim()), max_bytes(limits.max_bytes) {
    auto made = TableSegment::Create(spec, limits);
    EXPECT_TRUE(made.ok()) << made.status();
    fast = *std::move(made);
    slow = MakeSlowSegment(spec, limits);
  }

  void Apply(const std::vector<uint64_t>& ids, const std::vector<float>& gradients,
             const std::vector<uint32_t>& sightings, float rate, uint64_t round) {
    fast->Apply(ids, gradients, sightings, rate, round);
    slow->Apply(ids, gradients, sightings, rate, round);
  }
  void Push(const std::vector<uint64_t>& ids, uint64_t round, float value = 1.0f) {
    Apply(ids, std::vector<float>(ids.size() * dim, value), {}, 0.5f, round);
  }
  void EndRound(uint64_t round) {
    fast->EndRound(round);
    slow->EndRound(round);
  }
  void ExpectReads(const std::vector<uint64_t>& ids) {
    std::vector<float> a(ids.size() * dim, 5.0f), b(ids.size() * dim, 6.0f);
    fast->Read(ids, a);
    slow->Read(ids, b);
    for (size_t i = 0; i < a.size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
          << ids[i / dim] << " position " << i % dim;
  }
  void ExpectEqual() {
    const SegmentStats a = fast->stats(), b = slow->stats();
    ASSERT_EQ(a.rows, b.rows);
    ASSERT_EQ(a.reads, b.reads);
    ASSERT_EQ(a.hits, b.hits);
    ASSERT_EQ(a.updates, b.updates);
    ASSERT_EQ(a.created, b.created);
    ASSERT_EQ(a.evicted_age, b.evicted_age);
    ASSERT_EQ(a.evicted_bound, b.evicted_bound);
    ASSERT_EQ(a.dropped_zero, b.dropped_zero);
    ASSERT_EQ(a.not_admitted, b.not_admitted);
    ASSERT_EQ(a.no_room, b.no_room);
    ASSERT_EQ(a.nonfinite, b.nonfinite);
    ASSERT_LE(a.bytes, max_bytes == 0 ? UINT64_MAX : max_bytes);
    ASSERT_EQ(fast->HotIds(20), slow->HotIds(20));
    ASSERT_EQ(Rows(*fast), Rows(*slow));
  }

  // Everything that ForEach says, as integers.
  static std::vector<std::vector<uint64_t>> Rows(const TableSegment& segment) {
    std::vector<std::vector<uint64_t>> rows;
    segment.ForEach([&](const TableSegment::Row& row) {
      rows.push_back({row.id, row.last_round});
      for (const float v : row.values) rows.back().push_back(std::bit_cast<uint32_t>(v));
      for (const float v : row.state) rows.back().push_back(std::bit_cast<uint32_t>(v));
    });
    return rows;
  }
  std::vector<uint64_t> Ids() const {
    std::vector<uint64_t> ids;
    fast->ForEach([&](const TableSegment::Row& row) { ids.push_back(row.id); });
    return ids;
  }

  const uint32_t dim;
  const uint64_t max_bytes;
  std::unique_ptr<TableSegment> fast, slow;
};

proto::TableSpec Spec(uint32_t dim = 2) {
  proto::TableSpec spec;
  spec.set_dim(dim);
  return spec;
}

uint64_t HotId(PhiloxRandom& random, uint32_t range) {  // few ids come often
  const uint32_t most = 1 + random.Below(range);
  return uint64_t{random.Below(most)} * 0x123456789;
}

struct History {
  proto::TableSpec spec;
  SegmentLimits limits;
};

History RandomHistory(PhiloxRandom& random) {
  History h;
  h.spec.set_dim(1 + random.Below(9));
  h.spec.set_seed(random());
  if (random.Chance(0.4)) h.spec.set_dtype("bf16");
  const char* const initializers[] = {"zero", "uniform", "normal"};
  h.spec.set_initializer(initializers[random.Below(3)]);
  const char* const kinds[] = {"sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"};
  h.spec.mutable_optimizer()->set_kind(kinds[random.Below(5)]);
  if (random.Chance(0.5)) h.spec.mutable_optimizer()->set_l2(0.05);
  if (h.spec.optimizer().kind() == "ftrl") h.spec.mutable_optimizer()->set_l1(random.Uniform());
  if (random.Chance(0.4)) h.spec.set_admit_after(random.Below(6));
  if (random.Chance(0.5)) h.spec.set_max_age_rounds(1 + random.Below(40));
  if (random.Chance(0.3)) h.spec.set_vocabulary(0x123456789ull * 150);
  h.spec.set_drop_zero_rows(random.Chance(0.4));
  if (random.Chance(0.5)) h.limits.max_rows = 1 + random.Below(300);
  if (random.Chance(0.3))
    h.limits.max_bytes = (random.Chance(0.5) ? 30000 : 60000) + (h.spec.admit_after() > 1 ? 1 << 20 : 0);
  return h;
}

TEST(Segment, RandomHistoriesMatchTheReferenceBitForBit) {
  SegmentStats all;  // everything that can happen to a row happens often
  for (uint64_t seed = 0; seed < 120; ++seed) {
    PhiloxRandom random(seed, 9);
    const History history = RandomHistory(random);
    Pair pair(history.spec, history.limits);
    const uint32_t range = 50 + random.Below(600);
    uint64_t round = random.Below(3);
    for (int turn = 0; turn < 60; ++turn) {
      if (random.Chance(0.8)) round += random.Chance(0.1) ? random.Below(50) : 1;
      for (uint32_t pushes = random.Below(3); pushes > 0; --pushes) {
        std::set<uint64_t> seen;
        std::vector<uint64_t> ids;
        for (uint32_t i = random.Below(150); i > 0; --i)
          if (const uint64_t id = HotId(random, range); seen.insert(id).second) ids.push_back(id);
        std::vector<float> gradients(ids.size() * pair.dim);
        for (float& g : gradients) g = random.Chance(0.1) ? 0 : random.Uniform() * 2 - 1;
        if (random.Chance(0.2) && !gradients.empty())
          gradients[random.Below(static_cast<uint32_t>(gradients.size()))] =
              random.Chance(0.5) ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
        std::vector<uint32_t> sightings(random.Chance(0.5) ? ids.size() : 0);
        for (uint32_t& s : sightings) s = 1 + random.Below(3);
        pair.Apply(ids, gradients, sightings, random.Chance(0.1) ? 0.0f : 0.1f, round);
      }
      pair.EndRound(round);
      std::vector<uint64_t> asked;
      for (uint32_t i = random.Below(100); i > 0; --i) asked.push_back(HotId(random, range));
      ASSERT_NO_FATAL_FAILURE(pair.ExpectReads(asked)) << seed << " " << turn << " " << history.spec.ShortDebugString();
      ASSERT_NO_FATAL_FAILURE(pair.ExpectEqual()) << seed << " " << turn << " " << history.spec.ShortDebugString();
    }
    const SegmentStats stats = pair.fast->stats();
    for (const auto count :
         {&SegmentStats::hits, &SegmentStats::created, &SegmentStats::evicted_age, &SegmentStats::evicted_bound,
          &SegmentStats::dropped_zero, &SegmentStats::not_admitted, &SegmentStats::no_room, &SegmentStats::nonfinite})
      all.*count += stats.*count;
  }
  for (const auto count :
       {&SegmentStats::hits, &SegmentStats::created, &SegmentStats::evicted_age, &SegmentStats::evicted_bound,
        &SegmentStats::dropped_zero, &SegmentStats::not_admitted, &SegmentStats::no_room, &SegmentStats::nonfinite})
    EXPECT_GT(all.*count, 100u);
}

TEST(Segment, ReadsCreateNothingAndUnseenRowsAreTheirInitialValues) {
  proto::TableSpec spec = Spec(5);
  spec.set_initializer("normal");
  spec.set_dtype("bf16");
  Pair pair(spec, {});
  pair.ExpectReads({1, 2, 1, ~uint64_t{0}});
  EXPECT_EQ(pair.fast->stats().rows, 0u);
  std::vector<float> before(5), after(5);
  pair.fast->Read(std::vector<uint64_t>{9}, before);
  pair.fast->Apply(std::vector<uint64_t>{9}, std::vector<float>(5), {}, 0.1f, 1);  // created, by a gradient of zeros
  pair.fast->Read(std::vector<uint64_t>{9}, after);
  EXPECT_EQ(before, after);
  EXPECT_EQ(pair.fast->stats().created, 1u);
}

TEST(Segment, RowsAreCreatedByTheirNthSighting) {
  proto::TableSpec spec = Spec();
  spec.set_admit_after(3);
  Pair pair(spec, {});
  for (uint64_t round = 1; round <= 2; ++round) {
    pair.Push({7}, round);
    EXPECT_EQ(pair.fast->stats().rows, 0u);
  }
  pair.Push({7}, 3);
  EXPECT_EQ(pair.Ids(), std::vector<uint64_t>{7});
  EXPECT_EQ(pair.fast->stats().not_admitted, 2u);
  pair.Apply({8, 9}, {1, 1, 1, 1}, {2, 3}, 0.5f, 4);  // sums of two and of three pushes
  EXPECT_EQ(pair.Ids(), (std::vector<uint64_t>{7, 9}));
  pair.ExpectEqual();
}

TEST(Segment, SightingsAreForgottenByHalves) {
  proto::TableSpec spec = Spec(1);
  spec.set_admit_after(4);
  Pair pair(spec, {});
  pair.Apply({1}, {1}, {3}, 0.5f, 1);
  pair.Apply({2}, {1}, {1 << 17}, 0.5f, 1);  // so many sightings of another id: the next halves
  pair.Apply({1}, {1}, {2}, 0.5f, 2);        // 3 / 2 + 2
  EXPECT_EQ(pair.Ids(), std::vector<uint64_t>{2});
  pair.Apply({1}, {1}, {1}, 0.5f, 3);
  EXPECT_EQ(pair.Ids(), (std::vector<uint64_t>{1, 2}));
  pair.ExpectEqual();
}

TEST(Segment, FewIdsAreAdmittedEarly) {
  proto::TableSpec spec = Spec(1);
  spec.set_admit_after(2);
  auto segment = *TableSegment::Create(spec, {});
  PhiloxRandom random(1);
  for (uint64_t i = 0; i < 400; ++i) {  // 400,000 ids, each once
    std::vector<uint64_t> ids(1000);
    for (uint64_t& id : ids) id = uint64_t{random()} << 32 | random();
    segment->Apply(ids, std::vector<float>(1000), {}, 0.1f, i);
  }
  EXPECT_LT(segment->stats().created, 400000u * 16 / 100);  // the bound of admission.h
}

TEST(Segment, RowsLeaveByAge) {
  proto::TableSpec spec = Spec();
  spec.set_max_age_rounds(3);
  Pair pair(spec, {});
  pair.Push({1, 2}, 1);
  pair.Push({2}, 2);
  pair.EndRound(3);
  EXPECT_EQ(pair.Ids(), (std::vector<uint64_t>{1, 2}));
  pair.EndRound(4);
  EXPECT_EQ(pair.Ids(), std::vector<uint64_t>{2});
  pair.EndRound(5);
  EXPECT_TRUE(pair.Ids().empty());
  EXPECT_EQ(pair.fast->stats().evicted_age, 2u);
  pair.Push({1}, 6);  // and come again as if never seen
  pair.ExpectEqual();
}

TEST(Segment, TheBoundEvictsTheOldestThenTheSmallestIdAndNeverARowOfTheRound) {
  Pair pair(Spec(), {.max_rows = 4});
  pair.Push({40, 30, 20}, 1);
  pair.Push({10}, 2);
  pair.Push({50}, 3);
  EXPECT_EQ(pair.Ids(), (std::vector<uint64_t>{10, 30, 40, 50}));  // 20 went
  pair.Push({30, 60, 70, 80, 90}, 4);  // 30 is of this round; 40, 10, 50 go, and nothing is left for 90
  EXPECT_EQ(pair.Ids(), (std::vector<uint64_t>{30, 60, 70, 80}));
  EXPECT_EQ(pair.fast->stats().no_room, 1u);
  EXPECT_EQ(pair.fast->stats().evicted_bound, 4u);
  pair.ExpectEqual();
}

TEST(Segment, ManyRoundsWithFewRowsKeepTheirOrder) {  // lists of several rounds
  Pair pair(Spec(1), {.max_rows = 1000});
  PhiloxRandom random(2);
  for (uint64_t round = 1; round <= 3000; ++round) {
    std::set<uint64_t> ids = {round * 3, random.Below(9000), random.Below(9000)};
    pair.Push({ids.begin(), ids.end()}, round);
    if (round % 500 != 0) continue;
    ASSERT_NO_FATAL_FAILURE(pair.ExpectEqual());
  }
  EXPECT_GT(pair.fast->stats().evicted_bound, 1000u);
}

TEST(Segment, RoundsBeyond32BitsCountAsTheLast) {
  proto::TableSpec spec = Spec();
  spec.set_max_age_rounds(10);
  Pair pair(spec, {.max_rows = 2});
  pair.Push({1, 2}, 5);
  for (const uint64_t round : {(uint64_t{1} << 32) - 10, uint64_t{1} << 32, uint64_t{1} << 40, ~uint64_t{0}}) {
    pair.Push({round % 1000, 3}, round);
    pair.EndRound(round);
    ASSERT_NO_FATAL_FAILURE(pair.ExpectEqual()) << round;
  }
}

TEST(Segment, ABoundOnBytesHolds) {
  proto::TableSpec spec = Spec(16);
  const SegmentLimits limits{.max_bytes = 2 << 20};
  auto segment = *TableSegment::Create(spec, limits);
  const uint64_t rows = *TableSegment::MostRows(spec, limits);
  PhiloxRandom random(3);
  for (uint64_t round = 1; round <= 300; ++round) {
    std::vector<uint64_t> ids(500);
    for (uint64_t& id : ids) id = uint64_t{random()} << 32 | random();
    segment->Apply(ids, std::vector<float>(500 * 16, 1.0f), {}, 0.1f, round);
    ASSERT_LE(segment->stats().bytes, limits.max_bytes);
  }
  EXPECT_EQ(segment->stats().rows, rows);
  EXPECT_GE(rows * 64 * 100 / limits.max_bytes, 60u);  // most of it is values
}

TEST(Segment, FtrlRowsThatBecomeZeroAreDropped) {
  proto::TableSpec spec = Spec();
  spec.mutable_optimizer()->set_kind("ftrl");
  spec.mutable_optimizer()->set_l1(1);
  spec.set_drop_zero_rows(true);
  Pair pair(spec, {});
  pair.Push({1}, 1, 0.5f);
  pair.Push({2}, 1, 1.5f);
  EXPECT_EQ(pair.Ids(), std::vector<uint64_t>{2});
  EXPECT_EQ(pair.fast->stats().dropped_zero, 1u);
  pair.Push({2}, 2, -1.0f);
  EXPECT_TRUE(pair.Ids().empty());
  pair.ExpectEqual();
}

TEST(Segment, NonFiniteGradientsAreCountedAndNothingElse) {
  proto::TableSpec spec = Spec();
  spec.set_admit_after(2);
  Pair pair(spec, {});
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  pair.Apply({1, 2}, {0, nan, inf, 1}, {}, 0.1f, 1);
  pair.Push({1, 2}, 1);  // the first sighting
  EXPECT_EQ(pair.fast->stats().nonfinite, 2u);
  EXPECT_EQ(pair.fast->stats().rows, 0u);
  pair.Push({1, 2}, 2);
  const auto rows = Pair::Rows(*pair.fast);
  pair.Apply({1}, {nan, nan}, {}, 0.1f, 9);
  EXPECT_EQ(Pair::Rows(*pair.fast), rows);  // the last round too
  pair.ExpectEqual();
}

TEST(Segment, IdsBeyondTheVocabularyReadAsZerosAndAreNotStored) {
  proto::TableSpec spec = Spec();
  spec.set_vocabulary(100);
  spec.set_unknown_ids("zero");
  spec.set_initializer("uniform");
  Pair pair(spec, {});
  pair.Push({99, 100, ~uint64_t{0}}, 1);
  EXPECT_EQ(pair.Ids(), std::vector<uint64_t>{99});
  pair.ExpectReads({98, 99, 100});
  std::vector<float> zeros(2, 1.0f);
  pair.fast->Read(std::vector<uint64_t>{100}, zeros);
  EXPECT_EQ(zeros, std::vector<float>(2));
}

TEST(Segment, RepeatedIdsInOneApplyDoNoHarm) {  // the contract forbids them; a peer may still send them
  Pair pair(Spec(), {.max_rows = 2});
  pair.Push({1, 1, 2, 2, 3, 1}, 1);
  EXPECT_EQ(pair.Ids(), (std::vector<uint64_t>{1, 2}));
  pair.ExpectEqual();
}

TEST(Segment, TakesAtMostThirtyPercentMoreThanItsRows) {
  auto segment = *TableSegment::Create(Spec(16), {.max_rows = 1 << 20});  // with its lists by age
  double worst = 0;
  for (uint64_t round = 0; round < 600; ++round) {
    std::vector<uint64_t> ids(500);
    for (uint64_t i = 0; i < 500; ++i) ids[i] = round * 500 + i;
    segment->Apply(ids, std::vector<float>(500 * 16), {}, 0.1f, round);
    const SegmentStats stats = segment->stats();
    if (stats.rows >= 2000)
      worst = std::max(worst, static_cast<double>(stats.bytes) / static_cast<double>(stats.rows * (8 + 64)));
  }
  EXPECT_LE(worst, 1.3);
}

TEST(Segment, ErrorsNameTheField) {
  const auto error = [](const proto::TableSpec& spec, const SegmentLimits& limits = {}) {
    const auto made = TableSegment::Create(spec, limits);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(made.status().message());
  };
  EXPECT_NE(error(Spec(0)).find("table.dim is 0"), std::string::npos);
  EXPECT_NE(error(Spec(65537)).find("table.dim is 65537"), std::string::npos);
  proto::TableSpec spec = Spec();
  spec.set_dtype("fp16");
  EXPECT_NE(error(spec).find("table.dtype is \"fp16\""), std::string::npos);
  spec = Spec();
  spec.set_admit_after(256);
  EXPECT_NE(error(spec).find("table.admit_after is 256"), std::string::npos);
  spec = Spec();
  spec.set_unknown_ids("drop");
  EXPECT_NE(error(spec).find("table.unknown_ids is \"drop\""), std::string::npos);
  spec = Spec();
  spec.set_initializer("ones");
  EXPECT_NE(error(spec).find("table.initializer"), std::string::npos);
  spec = Spec();
  spec.mutable_optimizer()->set_kind("lamb");
  EXPECT_NE(error(spec).find("table.optimizer.kind"), std::string::npos);
  EXPECT_NE(error(Spec(), {.max_bytes = 1000}).find("table.max_bytes_per_server leaves 1000"), std::string::npos);
}

}  // namespace
}  // namespace sluice::server
