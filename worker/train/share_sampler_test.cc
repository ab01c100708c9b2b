#include "worker/train/share_sampler.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

std::vector<uint32_t> Epoch(ShareSampler& sampler, uint64_t epoch) {
  std::vector<uint32_t> all;
  for (uint64_t i = 0; i < sampler.steps_per_epoch(); ++i) {
    const auto batch = sampler.Batch(epoch * sampler.steps_per_epoch() + i);
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

TEST(ShareSampler, AnEpochHasEachExampleOnceAtMostInAnOrderOfItsOwn) {
  ShareSampler sampler = *ShareSampler::Create(103, 103, 10, 0, 7);
  EXPECT_EQ(sampler.steps_per_epoch(), 10u);
  const auto first = Epoch(sampler, 0);
  std::vector<uint32_t> sorted = first;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
  EXPECT_EQ(sorted.size(), 100u);
  EXPECT_LT(sorted.back(), 103u);
  EXPECT_NE(first, Epoch(sampler, 1));
  EXPECT_EQ(first, Epoch(sampler, 0));  // whatever came between
  ShareSampler other = *ShareSampler::Create(103, 103, 10, 1, 7);
  EXPECT_NE(first, Epoch(other, 0));
}

TEST(ShareSampler, SmallerSharesMakeAsManyStepsWithShortOrEmptyBatches) {
  ShareSampler sampler = *ShareSampler::Create(23, 40, 10, 0, 1);
  EXPECT_EQ(sampler.steps_per_epoch(), 4u);
  std::vector<size_t> sizes;
  for (uint64_t step = 4; step < 8; ++step) sizes.push_back(sampler.Batch(step).size());
  EXPECT_EQ(sizes, (std::vector<size_t>{10, 10, 3, 0}));
  EXPECT_EQ(Epoch(sampler, 3).size(), 23u);
}

TEST(ShareSampler, ABatchIsNoLargerThanTheDataOfAWorker) {
  ShareSampler sampler = *ShareSampler::Create(6, 5, 1024, 2, 1);
  EXPECT_EQ(sampler.batch(), 5u);
  EXPECT_EQ(sampler.steps_per_epoch(), 1u);
  EXPECT_EQ(sampler.Batch(0).size(), 5u);
  EXPECT_FALSE(ShareSampler::Create(1, 0, 8, 0, 1).ok());
  EXPECT_FALSE(ShareSampler::Create(8, 8, 0, 0, 1).ok());
}

}  // namespace
}  // namespace sluice::worker
