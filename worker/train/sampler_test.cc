#include "worker/train/sampler.h"

#include <set>

#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

TEST(SamplerTest, EachExampleComesOnceAnEpoch) {
  constexpr uint32_t kWorkers = 3, kBatch = 4;
  std::vector<Sampler> samplers;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) samplers.push_back(*Sampler::Create(100, kBatch, kWorkers, rank, 9));
  EXPECT_EQ(samplers[0].steps_per_epoch(), 8u);
  std::set<std::vector<uint32_t>> orders;
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<uint32_t> order;
    for (uint64_t step = epoch * 8; step < (epoch + 1) * 8; ++step) {
      for (Sampler& sampler : samplers) {
        const auto batch = sampler.Batch(step);
        order.insert(order.end(), batch.begin(), batch.end());
        EXPECT_EQ(sampler.EpochOf(step), epoch);
      }
    }
    EXPECT_EQ(order.size(), 96u);
    EXPECT_EQ(std::set<uint32_t>(order.begin(), order.end()).size(), 96u);
    EXPECT_LT(*std::max_element(order.begin(), order.end()), 100u);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 3u);  // another order each time
}

TEST(SamplerTest, AStepDoesNotDependOnWhatCameBefore) {
  Sampler all = *Sampler::Create(50, 5, 2, 1, 4), late = *Sampler::Create(50, 5, 2, 1, 4);
  std::vector<uint32_t> expected;
  for (uint64_t step = 0; step <= 12; ++step) {
    const auto batch = all.Batch(step);
    expected.assign(batch.begin(), batch.end());
  }
  const auto batch = late.Batch(12);
  EXPECT_EQ(std::vector<uint32_t>(batch.begin(), batch.end()), expected);
}

TEST(SamplerTest, TooLittleDataIsRefused) {
  EXPECT_TRUE(Sampler::Create(8, 4, 2, 0, 1).ok());
  const auto refused = Sampler::Create(7, 4, 2, 0, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(std::string(refused.status().message()).find("7 examples"), std::string::npos);
  EXPECT_FALSE(Sampler::Create(8, 0, 2, 0, 1).ok());
  EXPECT_FALSE(Sampler::Create(8, 1, 2, 2, 1).ok());
}

}  // namespace
}  // namespace sluice::worker
