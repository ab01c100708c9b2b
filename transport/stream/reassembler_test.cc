#include "transport/stream/reassembler.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"

namespace sluice::transport {
namespace {

TEST(ReassemblerTest, CountsStripesInAnyOrderAndRepeatsOnce) {
  Reassembler message(10);
  EXPECT_FALSE(message.complete());
  EXPECT_TRUE(message.Add(6, 4).ok());
  EXPECT_TRUE(message.Add(0, 3).ok());
  EXPECT_TRUE(message.Add(6, 4).ok());
  EXPECT_EQ(message.received(), 7u);
  EXPECT_TRUE(message.Add(3, 3).ok());
  EXPECT_TRUE(message.complete());
  EXPECT_TRUE(message.Add(3, 3).ok());
  EXPECT_EQ(message.received(), message.total());
}

TEST(ReassemblerTest, RefusesWhatLiesOutsideOrOverlapsInPart) {
  Reassembler message(100);
  EXPECT_FALSE(message.Add(101, 0).ok());
  EXPECT_FALSE(message.Add(90, 11).ok());
  EXPECT_FALSE(message.Add(UINT64_MAX, 2).ok());
  EXPECT_FALSE(message.Add(1, UINT64_MAX).ok());
  ASSERT_TRUE(message.Add(40, 20).ok());
  EXPECT_FALSE(message.Add(40, 19).ok());
  EXPECT_FALSE(message.Add(40, 21).ok());
  EXPECT_FALSE(message.Add(30, 11).ok());
  EXPECT_FALSE(message.Add(59, 1).ok());
  EXPECT_FALSE(message.Add(0, 100).ok());
  EXPECT_TRUE(message.Add(60, 1).ok());
  EXPECT_TRUE(message.Add(39, 1).ok());
  EXPECT_EQ(message.received(), 22u);
}

TEST(ReassemblerTest, AMessageOfNoBytesIsCompleteAtOnce) {
  Reassembler message(0);
  EXPECT_TRUE(message.complete());
  EXPECT_TRUE(message.Add(0, 0).ok());
}

TEST(ReassemblerTest, BoundsThePiecesThatAPeerCanMakeItKeep) {
  Reassembler message(uint64_t{1} << 40);
  for (uint64_t i = 0; i < Reassembler::kMaxPieces; ++i) ASSERT_TRUE(message.Add(2 * i, 1).ok());
  EXPECT_EQ(message.Add(uint64_t{1} << 39, 1).code(), absl::StatusCode::kResourceExhausted);
}

// Against a list of pieces that is searched from end to end.
TEST(ReassemblerTest, AgreesWithTheSlowReference) {
  PhiloxRandom random(1);
  for (int run = 0; run < 300; ++run) {
    const uint64_t total = 1 + random.Below(40);
    Reassembler message(total);
    std::vector<std::pair<uint64_t, uint64_t>> pieces;
    for (int i = 0; i < 40; ++i) {
      const uint64_t offset = random.Below(44), bytes = random.Below(8);
      bool repeat = bytes == 0, overlap = false;
      for (const auto& [o, b] : pieces) {
        if (o == offset && b == bytes) {
          repeat = true;
        } else if (bytes > 0 && o < offset + bytes && offset < o + b) {
          overlap = true;
        }
      }
      const bool good = offset + bytes <= total && (repeat || !overlap);
      ASSERT_EQ(message.Add(offset, bytes).ok(), good) << offset << "+" << bytes << "/" << total;
      if (good && !repeat) pieces.push_back({offset, bytes});
      uint64_t received = 0;
      for (const auto& piece : pieces) received += piece.second;
      ASSERT_EQ(message.received(), received);
      ASSERT_EQ(message.complete(), received == total);
    }
  }
}

}  // namespace
}  // namespace sluice::transport
