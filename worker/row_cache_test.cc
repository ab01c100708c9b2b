#include "worker/row_cache.h"

#include <map>

#include "base/philox.h"
#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

using Ids = std::vector<uint64_t>;
using Floats = std::vector<float>;

TEST(RowCache, ServesForAsManyRoundsAsItMay) {
  RowCache cache(2, 10, 1);
  cache.Put(Ids{7, 0}, 3, Floats{1, 2, 3, 4});
  Floats out(6, -1);
  EXPECT_EQ(cache.Read(Ids{7, 8, 0}, 3, out), (std::vector<uint32_t>{1}));
  EXPECT_EQ(out, (Floats{1, 2, -1, -1, 3, 4}));
  EXPECT_TRUE(cache.Read(Ids{7}, 4, out).empty());
  EXPECT_EQ(cache.Read(Ids{7}, 5, out).size(), 1u) << "two rounds old";
  cache.Put(Ids{7}, 5, Floats{5, 6});
  cache.Put(Ids{7}, 4, Floats{9, 9});   // an answer that was overtaken
  EXPECT_TRUE(cache.Read(Ids{7}, 5, out).empty());
  EXPECT_EQ(out[0], 5);
  EXPECT_EQ(cache.stats().reads, 6u);
  EXPECT_EQ(cache.stats().hits, 4u);
}

TEST(RowCache, WithoutStalenessItServesTheRoundAlone) {
  RowCache cache(1, 10, 0);
  cache.Put(Ids{7}, 3, Floats{1});
  Floats out(1);
  EXPECT_TRUE(cache.Read(Ids{7}, 3, out).empty());
  EXPECT_FALSE(cache.Read(Ids{7}, 4, out).empty());
}

TEST(RowCache, KeepsWhatIsReadAndNeverMoreThanItMay) {
  RowCache cache(1, 100, 1000000);
  PhiloxRandom random(3);
  std::map<uint64_t, float> written;
  size_t hot_missing = 0;
  for (int step = 0; step < 5000; ++step) {
    Floats out(1);
    const uint64_t hot = random.Below(20), cold = 1000 + random.Below(100000);
    for (const uint64_t id : {hot, cold}) {
      if (cache.Read(Ids{id}, 1, out).empty()) {
        EXPECT_EQ(out[0], written.at(id));
        continue;
      }
      hot_missing += id < 20;
      written[id] = static_cast<float>(step);
      cache.Put(Ids{id}, 1, Floats{static_cast<float>(step)});
    }
    ASSERT_LE(cache.stats().rows, 100u);
  }
  EXPECT_LT(hot_missing, 500u) << "rows that are read again and again should stay";
}

}  // namespace
}  // namespace sluice::worker
