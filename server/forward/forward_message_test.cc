#include "server/forward/forward_message.h"

#include <gtest/gtest.h>

#include "base/philox.h"

namespace sluice::server {
namespace {

std::vector<std::byte> Written(uint32_t form, const std::vector<uint32_t>& ranks, uint32_t workers, size_t body) {
  std::vector<std::byte> payload(ForwardHeadBytes(workers) + body, std::byte{7});
  WriteForwardHead(form, 42, ranks, workers, payload);
  return payload;
}

TEST(ForwardMessage, TheHeadIsAsTheDocumentSays) {
  const std::vector<std::byte> payload = Written(2, {0, 9}, 10, 4);
  const std::vector<uint8_t> expected = {24, 0, 0, 0, 2, 0, 0, 0, 42, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7};
  ASSERT_EQ(payload.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(payload[i], std::byte{expected[i]}) << i;
}

TEST(ForwardMessage, WhatIsWrittenIsRead) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    PhiloxRandom random(seed);
    const uint32_t workers = 1 + random.Below(300);
    std::vector<uint32_t> ranks;
    for (uint32_t rank = 0; rank < workers; ++rank)
      if (random.Chance(0.3)) ranks.push_back(rank);
    if (ranks.empty()) ranks.push_back(random.Below(workers));
    const uint32_t form = random.Below(4);
    const std::vector<std::byte> payload = Written(form, ranks, workers, 12);
    const auto parts = ParseForward(payload, workers);
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ(parts->ranks, ranks);
    EXPECT_EQ(parts->form, form);
    EXPECT_EQ(parts->count, 42u);
    EXPECT_EQ(parts->body.size(), 12u);
  }
}

TEST(ForwardMessage, WhatIsMalformedIsRefused) {
  const std::vector<std::byte> good = Written(0, {1, 2}, 3, 8);
  for (size_t size = 0; size < ForwardHeadBytes(3); ++size) EXPECT_FALSE(ParseForward(ConstBytes(good).first(size), 3).ok());
  EXPECT_FALSE(ParseForward(good, 2).ok());     // rank 2 of 2
  EXPECT_FALSE(ParseForward(good, 100).ok());   // another head
  EXPECT_FALSE(ParseForward(Written(0, {}, 3, 8), 3).ok());
  EXPECT_FALSE(ParseForward(Written(5, {1}, 3, 8), 3).ok());
  EXPECT_FALSE(ParseForward(Written(kForwardNothing, {1}, 3, 8), 3).ok());
  EXPECT_TRUE(ParseForward(Written(kForwardNothing, {1}, 3, 0), 3).ok());
  PhiloxRandom random(1);
  for (int i = 0; i < 5000; ++i) {
    std::vector<std::byte> any = good;
    for (int k = 0; k < 2; ++k) any[random.Below(static_cast<uint32_t>(any.size()))] = static_cast<std::byte>(random.Below(256));
    if (const auto parts = ParseForward(any, 3); parts.ok()) {
      EXPECT_LT(parts->ranks.back(), 3u);
    }
  }
}

}  // namespace
}  // namespace sluice::server
