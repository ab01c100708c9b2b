#include "worker/model/metrics.h"

#include <cmath>
#include <limits>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

using ::testing::HasSubstr;

struct Scored {
  std::vector<float> scores, labels;
};

// levels: how many different scores there are; 0 = almost all differ.
Scored Draw(size_t n, uint32_t levels, uint64_t seed) {
  PhiloxRandom random(seed);
  Scored out;
  for (size_t i = 0; i < n; ++i) {
    const bool positive = random.Chance(0.3);
    const float score = 4 * random.Uniform() - 2 + (positive ? 0.7f : 0);
    out.scores.push_back(levels == 0 ? score : std::round(score * static_cast<float>(levels) / 4));
    out.labels.push_back(positive ? 1 : 0);
  }
  return out;
}

double SlowAuc(const Scored& s) {
  double won = 0, pairs = 0;
  for (size_t p = 0; p < s.scores.size(); ++p) {
    for (size_t n = 0; n < s.scores.size(); ++n) {
      if (s.labels[p] != 1 || s.labels[n] == 1) continue;
      pairs += 1;
      won += s.scores[p] > s.scores[n] ? 1 : s.scores[p] == s.scores[n] ? 0.5 : 0;
    }
  }
  return won / pairs;
}

TEST(AucTest, ExactAucIsThatOfAllPairs) {
  for (const uint32_t levels : {0, 1, 3, 20}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Scored s = Draw(20 + 30 * seed, levels, seed);
      EXPECT_NEAR(*ExactAuc(s.scores, s.labels), SlowAuc(s), 1e-12) << levels << " " << seed;
    }
  }
}

TEST(AucTest, KnownAreas) {
  EXPECT_EQ(*ExactAuc(std::vector<float>{1, 2, 3, 4}, std::vector<float>{0, 0, 1, 1}), 1);
  EXPECT_EQ(*ExactAuc(std::vector<float>{4, 3, 2, 1}, std::vector<float>{0, 0, 1, 1}), 0);
  EXPECT_EQ(*ExactAuc(std::vector<float>{7, 7, 7, 7}, std::vector<float>{0, 1, 0, 1}), 0.5);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(*ExactAuc(std::vector<float>{-inf, inf, 0}, std::vector<float>{0, 1, 1}), 1);
}

TEST(AucTest, ImpossibleAreasAreErrors) {
  EXPECT_FALSE(ExactAuc({}, {}).ok());
  EXPECT_THAT(std::string(ExactAuc(std::vector<float>{1, 2}, std::vector<float>{1, 1}).status().message()),
              HasSubstr("2 positive and 0 negative"));
  EXPECT_FALSE(ExactAuc(std::vector<float>{1, 2}, std::vector<float>{1}).ok());
  EXPECT_THAT(std::string(ExactAuc(std::vector<float>{1, NAN}, std::vector<float>{1, 0}).status().message()),
              HasSubstr("example 1 is NaN"));
  EXPECT_FALSE(AucHistogram().Auc().ok());
}

TEST(AucHistogramTest, ExactAreaLiesWithinTheBound) {
  for (const size_t buckets : {1, 2, 7, 50, 4096}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const Scored s = Draw(500, seed % 2 == 0 ? 0 : 30, seed);
      AucHistogram histogram(-1.5, 2, buckets);  // some scores lie beyond
      histogram.Add(s.scores, s.labels);
      const AucHistogram::Area area = *histogram.Auc();
      EXPECT_NEAR(area.auc, *ExactAuc(s.scores, s.labels), area.error + 1e-12) << buckets;
      if (buckets == 1) {
        EXPECT_EQ(area.error, 0.5);
      }
    }
  }
  const Scored s = Draw(20000, 0, 3);
  AucHistogram histogram;
  histogram.Add(s.scores, s.labels);
  EXPECT_LT(histogram.Auc()->error, 0.001);
}

TEST(AucHistogramTest, TiesCountByHalfAndCoarseScoresAreExact) {
  const Scored s = Draw(400, 20, 1);
  AucHistogram histogram(-100.5, 100.5, 201);  // one bucket for each whole number
  histogram.Add(s.scores, s.labels);
  EXPECT_NEAR(histogram.Auc()->auc, *ExactAuc(s.scores, s.labels), 1e-12);
}

TEST(AucHistogramTest, PartsAddUpToTheWhole) {
  const Scored s = Draw(1000, 0, 2);
  AucHistogram whole, a, b, restored;
  whole.Add(s.scores, s.labels);
  for (size_t i = 0; i < s.scores.size(); ++i) (i % 3 == 0 ? a : b).Add(s.scores[i], s.labels[i] == 1);
  ASSERT_TRUE(a.Merge(b).ok());
  EXPECT_TRUE(std::ranges::equal(a.counts(), whole.counts()));
  EXPECT_EQ(a.positives() + a.negatives(), 1000);
  ASSERT_TRUE(restored.SetCounts(a.counts()).ok());
  EXPECT_EQ(restored.Auc()->auc, whole.Auc()->auc);
  EXPECT_FALSE(a.Merge(AucHistogram(0, 1, 4096)).ok());
  EXPECT_FALSE(a.SetCounts(std::vector<uint64_t>(7)).ok());
}

TEST(AucHistogramTest, ScoresBeyondAndNan) {
  AucHistogram histogram(0, 1, 4);
  const float inf = std::numeric_limits<float>::infinity();
  for (const float score : {-inf, -1.0f, 0.0f, 1.0f, 1e30f, inf}) histogram.Add(score, score > 0);
  histogram.Add(NAN, true);
  EXPECT_EQ(histogram.counts()[0], 3);
  EXPECT_EQ(histogram.counts()[7], 3);
  EXPECT_EQ(histogram.nan(), 1);
  EXPECT_EQ(histogram.Auc()->auc, 1);
}

TEST(LogLossTest, BothFormsAgreeAndAreClamped) {
  for (double logit = -30; logit <= 30; logit += 0.37) {
    for (const bool positive : {false, true}) {
      const double p = 1 / (1 + std::exp(-logit));
      EXPECT_NEAR(Sigmoid(logit), p, 1e-15);
      // Near 1 the probability itself has few digits left.
      const double tolerance = std::abs(logit) < 15 ? 1e-8 : 1e-2;
      EXPECT_NEAR(LogLossOfLogit(logit, positive), LogLoss(p, positive), tolerance);
    }
  }
  EXPECT_NEAR(LogLoss(0, true), -std::log(1e-15), 1e-9);
  EXPECT_NEAR(LogLoss(1, false), -std::log(1e-15), 0.2);  // 1 - 1e-15 has few digits
  EXPECT_NEAR(LogLoss(0.25, true, 0.3), -std::log(0.3), 1e-12);
  EXPECT_NEAR(LogLossOfLogit(-1000, true), 35, 1e-9);
  EXPECT_NEAR(LogLossOfLogit(1000, false, 10), 10, 1e-4);
  EXPECT_NEAR(LogLossOfLogit(20, true), std::exp(-20.0), 1e-15);
  EXPECT_EQ(Sigmoid(-1000), 0);
  EXPECT_EQ(Sigmoid(1000), 1);
}

TEST(LogLossTest, MeanIsOverTheExamples) {
  const Scored s = Draw(10000, 0, 4);
  double sum = 0;
  for (size_t i = 0; i < s.scores.size(); ++i) sum += LogLoss(Sigmoid(s.scores[i]), s.labels[i] == 1);
  EXPECT_NEAR(MeanLogLossOfLogits(s.scores, s.labels), sum / 10000, 1e-12);
  EXPECT_EQ(MeanLogLossOfLogits({}, {}), 0);
  EXPECT_TRUE(std::isnan(MeanLogLossOfLogits(std::vector<float>{NAN}, std::vector<float>{1})));
}

}  // namespace
}  // namespace sluice::worker
