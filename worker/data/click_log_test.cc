#include "worker/data/click_log.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/metrics.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ClickLogSpec Small(uint64_t seed = 1) {
  return {.lines = 2000, .test_lines = 500, .seed = seed, .columns = 5, .smallest_vocabulary = 3,
          .largest_vocabulary = 300};
}

void ExpectSame(const SparseDataset& a, const SparseDataset& b) {
  EXPECT_EQ(a.row_begin, b.row_begin);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.values, b.values);
  EXPECT_EQ(a.labels, b.labels);
  EXPECT_EQ(a.examples_in_file, b.examples_in_file);
  EXPECT_EQ(a.columns, b.columns);
  EXPECT_EQ(a.label_values, b.label_values);
}

TEST(ClickLogTest, FileAndMemoryHoldTheSameExamples) {
  for (const uint32_t columns : {1, 4, 5}) {
    ClickLogSpec spec = Small();
    spec.columns = columns;
    const auto log = ClickLog::Create(spec);
    ASSERT_TRUE(log.ok()) << log.status();
    const std::string path = ::testing::TempDir() + "/clicks-" + std::to_string(::getpid()) + ".tsv";
    ASSERT_TRUE(log->Write(0, 2000, path).ok());
    for (const uint32_t workers : {1, 3}) {
      for (uint32_t rank = 0; rank < workers; ++rank) {
        const auto read = ReadSparse(path, {.rank = rank, .workers = workers});
        ASSERT_TRUE(read.ok()) << read.status();
        ExpectSame(*read, log->Read(0, 2000, rank, workers));
      }
    }
    std::remove(path.c_str());
  }
}

TEST(ClickLogTest, LinesDependOnSeedAndNumberAlone) {
  const auto a = ClickLog::Create(Small()), b = ClickLog::Create(Small()), c = ClickLog::Create(Small(2));
  ClickLogSpec longer = Small();
  longer.lines = 1'000'000;
  const auto d = ClickLog::Create(longer);
  ClickLog::Line one, other;
  a->Draw(7, &other);
  size_t different = 0;
  for (uint64_t n = 0; n < 100; ++n) {
    a->Draw(n, &one);
    for (const auto* log : {&b, &d}) {
      (*log)->Draw(n, &other);
      EXPECT_EQ(one.categories, other.categories);
      EXPECT_EQ(one.logit, other.logit);
      EXPECT_EQ(one.label, other.label);
    }
    c->Draw(n, &other);
    different += one.categories != other.categories;
  }
  EXPECT_GT(different, 90);
}

// The first lines of the default log: documents and benchmarks name its optimum, so it must not change unnoticed.
TEST(ClickLogTest, DefaultLogStaysWhatItIs) {
  const auto log = ClickLog::Create({});
  ASSERT_TRUE(log.ok());
  EXPECT_THAT(log->vocabularies(), ElementsAre(10, 37, 139, 518, 1931, 7197, 26827, 100000));
  ClickLog::Line line;
  std::string text;
  for (uint64_t n = 0; n < 3; ++n) {
    log->Draw(n, &line);
    text += line.label == 1 ? "1:" : "0:";
    for (const uint32_t category : line.categories) text += " " + std::to_string(category);
    text += "\n";
  }
  EXPECT_EQ(text,
            "0: 0 1 1 7 746 58 4 0\n"
            "0: 0 27 44 4 135 1349 5 0\n"
            "0: 1 7 6 1 40 9 246 90\n");
}

TEST(ClickLogTest, CategoriesFollowZipfAndLabelsTheLogit) {
  ClickLogSpec spec = Small();
  spec.columns = 2;
  spec.factors = 3;
  const auto log = ClickLog::Create(spec);
  constexpr uint64_t kLines = 40000;
  std::vector<double> counts[2] = {std::vector<double>(3), std::vector<double>(300)};
  double logits = 0, squares = 0, expected_clicks = 0, clicks = 0, low_clicks = 0, low_expected = 0;
  ClickLog::Line line;
  for (uint64_t n = 0; n < kLines; ++n) {
    log->Draw(n, &line);
    for (int c = 0; c < 2; ++c) counts[c][line.categories[c]] += 1;
    logits += line.logit;
    squares += line.logit * line.logit;
    expected_clicks += Sigmoid(line.logit);
    clicks += line.label;
    if (line.logit < spec.bias) low_clicks += line.label, low_expected += Sigmoid(line.logit);
  }
  for (const auto& column : counts) {
    double sum = 0;
    for (size_t r = 0; r < column.size(); ++r) sum += std::pow(r + 1.0, -spec.zipf);
    for (size_t r = 0; r < column.size(); ++r) {
      const double expected = kLines * std::pow(r + 1.0, -spec.zipf) / sum;
      EXPECT_NEAR(column[r], expected, 5 * std::sqrt(expected) + 1) << r;
    }
  }
  const double mean = logits / kLines, variance = squares / kLines - mean * mean;
  EXPECT_NEAR(mean, spec.bias, 0.03);
  // Two columns' weights, and one pair of columns with three factors.
  EXPECT_NEAR(variance, 2 * 0.45 * 0.45 + 3 * std::pow(0.3, 4), 0.03);
  EXPECT_NEAR(clicks, expected_clicks, 5 * std::sqrt(kLines * 0.25));
  EXPECT_NEAR(low_clicks, low_expected, 5 * std::sqrt(kLines * 0.25));
}

TEST(ClickLogTest, OptimumIsThatOfTheTestLines) {
  const auto log = ClickLog::Create(Small());
  std::vector<float> logits, labels;
  ClickLog::Line line;
  double loss = 0;
  for (uint64_t n = 2000; n < 2500; ++n) {
    log->Draw(n, &line);
    logits.push_back(static_cast<float>(line.logit));
    labels.push_back(line.label);
    loss += LogLoss(Sigmoid(line.logit), line.label == 1) / 500;
  }
  const auto best = log->Optimum();
  ASSERT_TRUE(best.ok());
  EXPECT_EQ(best->auc, *ExactAuc(logits, labels));
  EXPECT_NEAR(best->log_loss, loss, 1e-6);
  EXPECT_EQ(labels, log->Read(2000, 2500).labels);
}

// All seeds are equally hard, and neither trivial nor hopeless.
TEST(ClickLogTest, OptimaOfSeedsAreAlike) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    ClickLogSpec spec;
    spec.seed = seed;
    spec.test_lines = 30000;
    spec.largest_vocabulary = 10000;
    const auto best = ClickLog::Create(spec)->Optimum();
    EXPECT_NEAR(best->auc, 0.79, 0.02) << seed;
    EXPECT_NEAR(best->click_rate, 0.24, 0.02) << seed;
  }
}

TEST(ClickLogTest, ImpossibleLogsAreErrors) {
  const auto message = [](const ClickLogSpec& spec) { return std::string(ClickLog::Create(spec).status().message()); };
  EXPECT_THAT(message({.columns = 0}), HasSubstr("columns = 0"));
  EXPECT_THAT(message({.smallest_vocabulary = 0}), HasSubstr("vocabularies from 0"));
  EXPECT_THAT(message({.smallest_vocabulary = 5, .largest_vocabulary = 4}), HasSubstr("vocabularies from 5 to 4"));
  EXPECT_THAT(message({.largest_vocabulary = UINT32_MAX}), HasSubstr("more than"));
  EXPECT_THAT(message({.factors = UINT32_MAX}), HasSubstr("more than"));
  EXPECT_THAT(message({.zipf = NAN}), HasSubstr("zipf"));
  EXPECT_THAT(message({.common = 0}), HasSubstr("common = 0"));
  EXPECT_THAT(message({.bias = -31}), HasSubstr("bias"));
  EXPECT_THAT(message({.lines = UINT64_MAX}), HasSubstr("2^48"));
  const auto empty = ClickLog::Create({.test_lines = 0, .largest_vocabulary = 10});
  ASSERT_TRUE(empty.ok());
  EXPECT_FALSE(empty->Optimum().ok());
  EXPECT_EQ(empty->Write(0, 1, "/no/such/folder/log.tsv").code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sluice::worker
