#include "server/table/row_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/philox.h"

namespace sluice::server {
namespace {

uint64_t Draw64(PhiloxRandom& random) { return uint64_t{random()} << 32 | random(); }

// Rows carry marks of what was written into them; all are compared with the map's now and then.
class Harness {
 public:
  explicit Harness(const RowLayout& layout) : store(layout) {}

  void Insert(uint64_t id, uint32_t mark) {
    const uint32_t slot = store.Insert(id);
    EXPECT_EQ(store.header(slot)->id(), id);
    EXPECT_TRUE(store.live(slot));
    Write(slot, mark);
    expected[id] = mark;
    ids.push_back(id);
  }
  void EraseAt(size_t i) {
    const uint64_t id = ids[i];
    ids[i] = ids.back();
    ids.pop_back();
    expected.erase(id);
    store.Erase(store.Find(id));
  }
  void Check(PhiloxRandom& random) const {
    ASSERT_EQ(store.rows(), expected.size());
    std::vector<uint64_t> asked = ids;  // those there, in their order, and some that are not
    for (size_t i = 0; i < 20 + ids.size() / 4; ++i) asked.push_back(Draw64(random));
    std::vector<uint64_t> seen;
    store.VisitRows(asked, [&](size_t i, uint32_t slot) {
      ASSERT_EQ(seen.size(), i);
      seen.push_back(asked[i]);
      const auto found = expected.find(asked[i]);
      ASSERT_EQ(slot, store.Find(asked[i]));
      ASSERT_EQ(slot == RowStore::kNone, found == expected.end()) << asked[i];
      if (slot != RowStore::kNone) ExpectMark(slot, found->second);
    });
    ASSERT_EQ(seen, asked);
  }

  RowStore store;
  std::unordered_map<uint64_t, uint32_t> expected;
  std::vector<uint64_t> ids;

 private:
  void Write(uint32_t slot, uint32_t mark) {
    const RowLayout& layout = store.layout();
    std::memset(store.raw_values(slot), static_cast<int>(mark & 0xFF), layout.dim * (layout.bf16 ? 2 : 4));
    for (float& s : store.state(slot)) s = static_cast<float>(mark);
  }
  void ExpectMark(uint32_t slot, uint32_t mark) const {
    const RowLayout& layout = store.layout();
    for (uint32_t i = 0; i < layout.dim * (layout.bf16 ? 2 : 4); ++i)
      ASSERT_EQ(store.raw_values(slot)[i], static_cast<std::byte>(mark));
    for (const float s : store.state(slot)) ASSERT_EQ(s, static_cast<float>(mark));
  }
};

TEST(RowStore, BehavesLikeAMapOverRandomHistories) {
  const RowLayout layouts[] = {{1, false, 0}, {3, true, 1}, {16, false, 33}, {5, true, 10}};
  for (uint64_t seed = 0; seed < 12; ++seed) {
    PhiloxRandom random(seed);
    Harness harness(layouts[seed % 4]);
    const uint64_t step = random.Chance(0.5) ? 1 : 0;  // dense ids or random ones
    uint64_t next = 0;
    for (int phase = 0; phase < 12; ++phase) {
      const double inserts = phase % 3 == 2 ? 0.2 : 0.8;
      for (uint32_t i = random.Below(2500); i > 0; --i) {
        if (harness.ids.empty() || random.Chance(inserts)) {
          harness.Insert(step == 1 ? next++ : Draw64(random), random());
        } else {
          harness.EraseAt(random.Below(static_cast<uint32_t>(harness.ids.size())));
        }
      }
      ASSERT_NO_FATAL_FAILURE(harness.Check(random)) << seed << " " << phase;
    }
    while (!harness.ids.empty()) harness.EraseAt(harness.ids.size() - 1);
    ASSERT_NO_FATAL_FAILURE(harness.Check(random));
  }
}

TEST(RowStore, PagesSplitAndRowsStayWhereTheyAre) {
  PhiloxRandom random(5);
  Harness harness({1, false, 0});
  for (uint64_t id = 0; id < 60000; ++id) {  // 17 splits
    harness.Insert(id * 0x10001, static_cast<uint32_t>(id));
    if (id % 20000 != 19999) continue;
    ASSERT_NO_FATAL_FAILURE(harness.Check(random));
  }
  std::vector<const RowHeader*> places;
  for (uint64_t id = 0; id < 60000; id += 100) places.push_back(harness.store.header(harness.store.Find(id * 0x10001)));
  for (uint64_t id = 60000; id < 70000; ++id) harness.Insert(id * 0x10001, 1);
  for (uint64_t id = 0; id < 60000; id += 100)
    ASSERT_EQ(places[id / 100], harness.store.header(harness.store.Find(id * 0x10001)));
}

// All ids of one page and one home: probes pass full groups, and erasing in any order leaves nothing behind.
TEST(RowStore, CollidingIdsAreFoundAndLeaveNoTrace) {
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; ids.size() < 120; ++id) {  // of ten groups' worth of rows, those at home in one place of 16
    const uint64_t high = compression::MixId(id) * 0x9E3779B97F4A7C15;
    if (high >> 60 == 7) ids.push_back(id);
  }
  for (uint64_t seed = 0; seed < 10; ++seed) {
    PhiloxRandom random(seed);
    Harness harness({2, false, 0});
    for (int turn = 0; turn < 30; ++turn) {
      std::shuffle(ids.begin(), ids.end(), random);
      for (const uint64_t id : ids)
        if (!harness.expected.contains(id)) harness.Insert(id, random());
      ASSERT_NO_FATAL_FAILURE(harness.Check(random));
      for (size_t keep = random.Below(60); harness.ids.size() > keep;)
        harness.EraseAt(random.Below(static_cast<uint32_t>(harness.ids.size())));
      ASSERT_NO_FATAL_FAILURE(harness.Check(random));
    }
  }
}

uint64_t Unmix(uint64_t hash) {  // MixId(Unmix(h)) == h
  hash = (hash ^ (hash >> 31) ^ (hash >> 62)) * 0x319642B2D24D8EC3;
  hash = (hash ^ (hash >> 27) ^ (hash >> 54)) * 0x96DE1B173F119089;
  return hash ^ (hash >> 30) ^ (hash >> 60);
}

// Whoever knows the hash can send ids that all belong to one page; it must stay a page, and right.
TEST(RowStore, IdsThatWereChosenToCollideFindRoom) {
  PhiloxRandom random(8);
  Harness harness({1, false, 0});
  for (uint64_t i = 0; i < 20000; ++i) {
    const uint64_t id = Unmix(i << 40 | 0x1234567);
    ASSERT_EQ(compression::MixId(id), i << 40 | 0x1234567);
    harness.Insert(id, static_cast<uint32_t>(i));
  }
  ASSERT_NO_FATAL_FAILURE(harness.Check(random));
  while (harness.ids.size() > 100) harness.EraseAt(random.Below(static_cast<uint32_t>(harness.ids.size())));
  ASSERT_NO_FATAL_FAILURE(harness.Check(random));
  for (uint64_t i = 20000; i < 30000; ++i) harness.Insert(Unmix(i << 40 | 0x1234567), static_cast<uint32_t>(i));
  ASSERT_NO_FATAL_FAILURE(harness.Check(random));
}

TEST(RowStore, ErasedSlotsAreUsedAgain) {
  PhiloxRandom random(6);
  Harness harness({4, false, 0});
  for (int i = 0; i < 20000; ++i) harness.Insert(Draw64(random), 1);
  const uint32_t slots = harness.store.slots();
  const size_t bytes = harness.store.bytes();
  for (int i = 0; i < 200000; ++i) {  // ten times all rows change
    harness.EraseAt(random.Below(20000));
    harness.Insert(Draw64(random), 2);
  }
  EXPECT_EQ(harness.store.slots(), slots);
  EXPECT_LE(harness.store.bytes(), bytes * 103 / 100);  // pages that happened to be fuller in between
  ASSERT_NO_FATAL_FAILURE(harness.Check(random));
}

TEST(RowStore, VisitMayEraseItsRow) {
  PhiloxRandom random(7);
  Harness harness({4, false, 0});
  for (int i = 0; i < 5000; ++i) harness.Insert(Draw64(random), 1);
  std::vector<uint64_t> all = harness.ids, twice = all;
  twice.insert(twice.end(), all.begin(), all.end());
  size_t visited = 0;
  harness.store.VisitRows(twice, [&](size_t, uint32_t slot) {
    if (slot == RowStore::kNone) return;
    ++visited;
    harness.store.Erase(slot);
  });
  EXPECT_EQ(visited, all.size());
  EXPECT_EQ(harness.store.rows(), 0u);
}

// Pages that wait to be split have the same number of rows; they all asked for more blocks at about the same time, and
// a call of 4,096 new rows moved 77,000 entries.
TEST(RowStore, CallsThatInsertMoveFewEntriesWhateverTheNumberOfRows) {
  RowStore store({1, false, 0});
  uint64_t before = 0, most = 0;
  for (uint64_t rows = 0; rows < 1'500'000;) {
    for (int i = 0; i < 4096; ++i) store.Insert(rows++ * 0x10001);
    most = std::max(most, store.moved() - before);
    before = store.moved();
  }
  EXPECT_LE(most, 45'000u);
  EXPECT_LE(store.moved(), 4 * store.rows());
  EXPECT_GE(store.moved(), store.rows());
  RecordProperty("most", std::to_string(most));
}

// The row is its values, its optimizer's state and its id; at every size from 1,000 rows on.
TEST(RowStore, TakesAtMostThirtyPercentMoreThanItsRows) {
  struct Case {
    RowLayout layout;
    size_t most;
  };
  const Case cases[] = {
      {{16, false, 0}, 400000}, {{32, true, 1}, 50000}, {{16, false, 33}, 50000}, {{64, false, 64}, 30000}};
  for (const Case& c : cases) {
    RowStore store(c.layout);
    const double row = 8 + c.layout.dim * (c.layout.bf16 ? 2 : 4) + 4 * c.layout.state_floats;
    double worst = 0;
    for (size_t rows = 1; rows <= c.most; ++rows) {
      store.Insert(rows * 977);
      ASSERT_LE(store.bytes(), RowStore::MostBytes(c.layout, rows)) << rows;
      if (rows >= 1000) worst = std::max(worst, static_cast<double>(store.bytes()) / (row * static_cast<double>(rows)));
    }
    EXPECT_LE(worst, 1.3) << c.layout.dim << " " << c.layout.state_floats;
    EXPECT_GE(worst, 1.0);
    RecordProperty("worst", std::to_string(worst));
  }
}

}  // namespace
}  // namespace sluice::server
