#include "server/math/reduce.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "base/philox.h"

namespace sluice::server {
namespace {

using compression::Codec;

std::vector<float> RandomVector(uint64_t seed, size_t n) {
  PhiloxRandom random(seed);
  std::vector<float> values(n);
  for (float& v : values) v = std::ldexp(random.Uniform() - 0.5f, static_cast<int>(random.Below(20)) - 10);
  return values;
}

std::vector<std::byte> Encode(const Codec& codec, const std::vector<float>& values) {
  std::vector<std::byte> out(codec.MaxEncodedBytes(values.size()));
  const auto size = codec.Encode({.gradient = values, .residual = {}, .residual_out = {}}, out);
  EXPECT_TRUE(size.ok()) << size.status();
  out.resize(size.value_or(0));
  return out;
}

std::vector<float> Finish(const RoundSum& sum, proto::Reduction reduction, uint32_t contributors) {
  std::vector<float> out(sum.elements(), 99.0f);
  sum.Finish(reduction, contributors, out);
  return out;
}

constexpr proto::Order kOrders[] = {proto::ORDER_RANK, proto::ORDER_EXACT, proto::ORDER_FAST};

TEST(RoundSum, AddsInTheOrderOfCalls) {
  const size_t n = 1000;
  for (const proto::Order order : {proto::ORDER_RANK, proto::ORDER_FAST}) {
    RoundSum sum(order, n);
    std::vector<float> expected;
    for (uint64_t rank = 0; rank < 5; ++rank) {
      const std::vector<float> values = RandomVector(rank, n);
      if (rank == 0) expected = values;
      else
        for (size_t i = 0; i < n; ++i) expected[i] += values[i];
      const Codec& codec = *compression::DecoderFor(0);
      ASSERT_TRUE(sum.Add(codec, Encode(codec, values)).ok());
    }
    EXPECT_EQ(Finish(sum, proto::REDUCTION_SUM, 5), expected);
    for (float& v : expected) v /= 5.0f;
    EXPECT_EQ(Finish(sum, proto::REDUCTION_MEAN, 5), expected);
    EXPECT_EQ(sum.added(), 5u);
  }
}

TEST(RoundSum, ExactGivesTheSameBitsInAnyOrderFromAnyCodec) {
  const size_t n = 500;
  std::vector<uint32_t> order(6);
  std::iota(order.begin(), order.end(), 0u);
  std::vector<float> first;
  PhiloxRandom random(1);
  for (int round = 0; round < 10; ++round) {
    RoundSum left(proto::ORDER_EXACT, n), right(proto::ORDER_EXACT, n);
    for (size_t i = 0; i < order.size(); ++i) {
      const Codec& codec = *compression::DecoderFor(static_cast<uint16_t>(order[i] % 5));
      const std::vector<std::byte> payload = Encode(codec, RandomVector(order[i], n));
      ASSERT_TRUE((random.Chance(0.5) ? left : right).Add(codec, payload).ok());
    }
    left.Merge(right);
    EXPECT_EQ(left.added(), order.size());
    const std::vector<float> mean = Finish(left, proto::REDUCTION_MEAN, 6);
    if (round == 0) first = mean;
    EXPECT_EQ(mean, first);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(static_cast<uint32_t>(i))]);
  }
}

TEST(RoundSum, EmptyContributionsCountButAddNothing) {
  for (const proto::Order order : kOrders) {
    RoundSum sum(order, 2);
    EXPECT_EQ(Finish(sum, proto::REDUCTION_MEAN, 2), (std::vector<float>{0, 0}));
    sum.AddValues(std::vector<float>{2, -4});
    EXPECT_EQ(Finish(sum, proto::REDUCTION_MEAN, 2), (std::vector<float>{1, -2}));
  }
}

TEST(RoundSum, MeanIsADivision) {
  for (const proto::Order order : kOrders) {
    RoundSum sum(order, 1);
    sum.AddValues(std::vector<float>{1.0f});
    for (uint32_t n = 1; n < 200; ++n)
      EXPECT_EQ(Finish(sum, proto::REDUCTION_MEAN, n)[0], 1.0f / static_cast<float>(n));
  }
}

TEST(RoundSum, ResetAndReleaseStartAgain) {
  for (const proto::Order order : kOrders) {
    RoundSum sum(order, 100);
    EXPECT_EQ(sum.MemoryBytes(), 0u);
    sum.AddValues(RandomVector(1, 100));
    const size_t held = sum.MemoryBytes();
    EXPECT_EQ(held, order == proto::ORDER_EXACT ? 2800u : 400u);
    sum.Reset();
    EXPECT_EQ(sum.MemoryBytes(), held);
    const std::vector<float> values = RandomVector(2, 100);
    sum.AddValues(values);
    EXPECT_EQ(Finish(sum, proto::REDUCTION_SUM, 1), values);
    sum.Release();
    EXPECT_EQ(sum.MemoryBytes(), 0u);
    EXPECT_EQ(Finish(sum, proto::REDUCTION_SUM, 1), std::vector<float>(100, 0.0f));
  }
}

TEST(RoundSum, MergeIntoAnEmptySumAndOfAnEmptyOne) {
  for (const proto::Order order : kOrders) {
    RoundSum a(order, 3), b(order, 3), c(order, 3);
    b.AddValues(std::vector<float>{1, 2, 3});
    b.AddValues(std::vector<float>{1, 1, 1});
    a.Merge(b);
    a.Merge(c);
    EXPECT_EQ(a.added(), 2u);
    EXPECT_EQ(Finish(a, proto::REDUCTION_SUM, 2), (std::vector<float>{2, 3, 4}));
  }
}

// int8 over many workers: the sum needs more than 8 bits, and has them.
TEST(RoundSum, ManyInt8ContributionsDoNotOverflow) {
  const Codec& int8 = *compression::DecoderFor(3);
  const std::vector<std::byte> payload = Encode(int8, std::vector<float>(130, 127.0f));
  for (const proto::Order order : kOrders) {
    RoundSum sum(order, 130);
    for (int worker = 0; worker < 1000; ++worker) ASSERT_TRUE(sum.Add(int8, payload).ok());
    EXPECT_EQ(Finish(sum, proto::REDUCTION_SUM, 1000), std::vector<float>(130, 127000.0f));
  }
}

TEST(RoundSum, BadPayloadIsAnError) {
  for (const proto::Order order : kOrders) {
    RoundSum sum(order, 100);
    EXPECT_FALSE(sum.Add(*compression::DecoderFor(3), std::vector<std::byte>(5)).ok());
    EXPECT_EQ(sum.added(), 0u);
  }
}

TEST(ClipScale, LeavesSmallStepsAlone) {
  EXPECT_EQ(ClipScale(25.0, 0), 1.0);
  EXPECT_EQ(ClipScale(25.0, 5), 1.0);
  EXPECT_EQ(ClipScale(25.0, 10), 1.0);
  EXPECT_EQ(ClipScale(100.0, 5), 0.5);
  EXPECT_EQ(ClipScale(0, 5), 1.0);
}

}  // namespace
}  // namespace sluice::server
