#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "worker/model/metrics.h"
#include "worker/train/job_gather.h"
#include "worker/train/sparse_evaluation.h"
#include "worker/train/sparse_task.h"

namespace sluice::worker {
namespace {

TEST(PackNumbers, EveryNumberComesBackExactly) {
  std::vector<uint64_t> numbers = {0,
                                   1,
                                   (1u << 22) - 1,
                                   1u << 22,
                                   (1u << 24) + 1,
                                   UINT64_MAX,
                                   std::bit_cast<uint64_t>(0.1),
                                   std::bit_cast<uint64_t>(-1e300)};
  PhiloxRandom random(1, 2);
  for (int i = 0; i < 1000; ++i) numbers.push_back(uint64_t{random()} << (random() % 33) | random());
  std::vector<float> packed(3 * numbers.size());
  PackNumbers(numbers, packed);
  for (const float piece : packed) {
    EXPECT_LT(piece, 1 << 22);
    EXPECT_EQ(piece, std::floor(piece));
  }
  std::vector<uint64_t> back(numbers.size());
  UnpackNumbers(packed, back);
  EXPECT_EQ(back, numbers);
}

TEST(PackNumbers, StrangeValuesAreTakenForZero) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  std::vector<uint64_t> back(1);
  UnpackNumbers(std::vector<float>{nan, infinity, -1}, back);
  EXPECT_EQ(back[0], 0u);
}

TEST(SparseEvaluation, SharesTogetherAreTheWhole) {
  std::vector<float> outputs, labels;
  PhiloxRandom random(3, 4);
  for (int i = 0; i < 5000; ++i) {
    outputs.push_back(static_cast<float>(random() % 8000) / 1000 - 4);
    labels.push_back(random() * 0x1p-32 < Sigmoid(outputs.back()) ? 1 : 0);
  }
  SparseScores scores[3] = {SparseScores(true), SparseScores(true), SparseScores(true)};
  for (size_t i = 0; i < outputs.size(); ++i) {
    scores[i % 3].Add(std::span(outputs).subspan(i, 1), std::span(labels).subspan(i, 1));
  }
  scores[1].hash = 7;
  std::vector<std::vector<uint64_t>> numbers;
  for (const SparseScores& one : scores) numbers.push_back(one.ToNumbers());
  const auto all = Together(true, {numbers[0], {}, numbers[1], numbers[2]});
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->examples, 5000u);
  EXPECT_NEAR(*all->auc, *ExactAuc(outputs, labels), all->auc_error + 1e-12);
  EXPECT_LT(all->auc_error, 1e-3);
  EXPECT_NEAR(all->loss, MeanLogLossOfLogits(outputs, labels), 1e-9);
  EXPECT_NE(all->hash, 0u);
  EXPECT_NE(all->hash, Together(true, {numbers[1], numbers[0], numbers[2]})->hash);  // ranks count
  EXPECT_FALSE(Together(true, {std::span<const uint64_t>(numbers[0]).first(5)}).ok());
}

TEST(SparseEvaluation, WithoutBothLabelsOrWithRealOnesThereIsNoAuc) {
  SparseScores one_kind(true);
  one_kind.Add(std::vector<float>{1, 2, std::nanf("")}, std::vector<float>{1, 1, 1});
  const auto ones = Together(true, {one_kind.ToNumbers()});
  EXPECT_FALSE(ones->auc.has_value());
  EXPECT_EQ(ones->not_numbers, 1u);

  SparseScores real(false);
  real.Add(std::vector<float>{1, 2}, std::vector<float>{3, 2.5});
  const auto squared = Together(false, {real.ToNumbers()});
  EXPECT_FALSE(squared->auc.has_value());
  EXPECT_DOUBLE_EQ(squared->loss, (4 + 0.25) / 2 / 2);
  EXPECT_EQ(squared->hash, 0u);
  EXPECT_EQ(Together(true, {})->examples, 0u);
}

TEST(TakeTail, TheLastRowsGoAndOneStays) {
  SparseDataset data;
  for (uint32_t row = 0; row < 5; ++row) {
    for (uint32_t i = 0; i < row; ++i) {
      data.ids.push_back(row * 10 + i);
      data.values.push_back(static_cast<float>(i));
    }
    data.labels.push_back(static_cast<float>(row));
    data.row_begin.push_back(data.ids.size());
  }
  const SparseDataset all = data;
  const SparseDataset tail = TakeTail(&data, 2);
  EXPECT_EQ(data.rows(), 3u);
  ASSERT_EQ(tail.rows(), 2u);
  for (size_t row = 0; row < 5; ++row) {
    const SparseDataset& part = row < 3 ? data : tail;
    const auto ids = part.row_ids(row < 3 ? row : row - 3), whole = all.row_ids(row);
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), whole.begin(), whole.end())) << row;
    EXPECT_EQ(part.labels[row < 3 ? row : row - 3], static_cast<float>(row));
  }
  EXPECT_EQ(TakeTail(&data, 100).rows(), 2u);
  EXPECT_EQ(data.rows(), 1u);
}

}  // namespace
}  // namespace sluice::worker
