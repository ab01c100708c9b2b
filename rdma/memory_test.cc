#include "rdma/memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::rdma {
namespace {

class MemoryTest : public testing::Test {
 protected:
  ConstBytes At(size_t offset, size_t bytes) const { return ConstBytes(memory_.data() + offset, bytes); }
  std::vector<std::byte> memory_ = std::vector<std::byte>(1000);
  MemoryRegistry registry_;
};

TEST_F(MemoryTest, FindsWhatLiesInside) {
  auto region = registry_.Add(memory_.data() + 100, 100);
  EXPECT_TRUE(registry_.Find(At(100, 100)).has_value());
  EXPECT_TRUE(registry_.Find(At(150, 50)).has_value());
  EXPECT_TRUE(registry_.Find(At(199, 1)).has_value());
  EXPECT_FALSE(registry_.Find(At(99, 1)).has_value());
  EXPECT_FALSE(registry_.Find(At(199, 2)).has_value());
  EXPECT_FALSE(registry_.Find(At(100, 101)).has_value());
  EXPECT_FALSE(registry_.Find(At(500, 1)).has_value());
  const auto found = registry_.Find(At(150, 1));
  EXPECT_EQ(found->address, memory_.data() + 100);
  EXPECT_EQ(found->bytes, 100u);
}

TEST_F(MemoryTest, RegionsMayOverlap) {
  auto outer = registry_.Add(memory_.data(), 1000);
  std::vector<MemoryRegistry::Handle> inner;
  for (size_t i = 0; i < 10; ++i) inner.push_back(registry_.Add(memory_.data() + i * 100, 10));
  EXPECT_EQ(registry_.Find(At(305, 5))->bytes, 10u);
  EXPECT_EQ(registry_.Find(At(305, 6))->bytes, 1000u);
  EXPECT_EQ(registry_.Find(At(950, 50))->bytes, 1000u);
  outer.Reset();
  EXPECT_FALSE(registry_.Find(At(950, 50)).has_value());
  EXPECT_TRUE(registry_.Find(At(900, 10)).has_value());
}

TEST_F(MemoryTest, AccessIsAskedFor) {
  auto send_only = registry_.Add(memory_.data(), 100, Access::kSend);
  EXPECT_TRUE(registry_.Find(At(0, 10), Access::kSend).has_value());
  EXPECT_FALSE(registry_.Find(At(0, 10), Access::kSendAndReceive).has_value());
  auto both = registry_.Add(memory_.data(), 100, Access::kSendAndReceive);
  EXPECT_EQ(registry_.Find(At(0, 10), Access::kSendAndReceive)->access, Access::kSendAndReceive);
}

TEST_F(MemoryTest, ListenersHearOfRemovalWhenFindFindsNothingAnyMore) {
  std::vector<uint64_t> heard;
  const uint64_t listener = registry_.AddListener([&](uint64_t id) {
    EXPECT_FALSE(registry_.Find(At(0, 1)).has_value());
    heard.push_back(id);
  });
  auto region = registry_.Add(memory_.data(), 100);
  const uint64_t id = registry_.Find(At(0, 1))->id;
  region.Reset();
  EXPECT_EQ(heard, std::vector<uint64_t>{id});
  region.Reset();
  EXPECT_EQ(heard.size(), 1u);
  registry_.RemoveListener(listener);
  registry_.Add(memory_.data(), 100).Reset();
  EXPECT_EQ(heard.size(), 1u);
}

TEST_F(MemoryTest, HandlesMoveAndOutliveTheRegistry) {
  MemoryRegistry::Handle kept;
  {
    MemoryRegistry registry;
    auto first = registry.Add(memory_.data(), 10);
    auto second = registry.Add(memory_.data() + 10, 10);
    kept = std::move(first);
    EXPECT_TRUE(registry.Find(At(0, 10)).has_value());
    kept = std::move(second);
    EXPECT_FALSE(registry.Find(At(0, 10)).has_value());
    EXPECT_TRUE(registry.Find(At(10, 10)).has_value());
  }
}

}  // namespace
}  // namespace sluice::rdma
