#include "server/step_messages.h"

#include "base/philox.h"
#include "gtest/gtest.h"

namespace sluice::server {
namespace {

std::vector<std::byte> Bytes(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}

TEST(StepMessagesTest, PartialByteForByte) {
  const auto pieces = EncodePartial({{7, 1, {1.0, 0}}}, kPhaseNorm, 1 << 20);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0], Bytes({1, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F}));
}

TEST(StepMessagesTest, VerdictByteForByte) {
  Verdict verdict;
  verdict.skip = true;
  verdict.rate_bits = 0x3F800000;
  verdict.trust = {{3, 1.0}};
  EXPECT_EQ(EncodeVerdict(verdict),
            Bytes({2, 0, 0, 0, 0, 0, 0x80, 0x3F, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F, 1, 0, 0, 0,
                   3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F}));
}

TEST(StepMessagesTest, RecordsSurviveBeingCutIntoPieces) {
  std::vector<StepRecord> records;
  for (uint32_t p = 0; p < 100; ++p) records.push_back({p * 3, p % 4, {p * 0.5, p * 0.25}});
  std::vector<StepRecord> got;
  const auto pieces = EncodePartial(records, kPhaseLayers, 200);
  EXPECT_GT(pieces.size(), 10u);
  for (const auto& piece : pieces) {
    EXPECT_LE(piece.size(), 200u);
    auto part = DecodePartial(piece, kPhaseLayers);
    ASSERT_TRUE(part.ok()) << part.status();
    got.insert(got.end(), part->begin(), part->end());
  }
  ASSERT_EQ(got.size(), records.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].partition, records[i].partition);
    EXPECT_EQ(got[i].flags, records[i].flags);
    EXPECT_EQ(got[i].values[1], records[i].values[1]);
  }
}

TEST(StepMessagesTest, EveryOtherLengthAndCountIsRefused) {
  const std::vector<std::byte> partial = EncodePartial({{1, 0, {2, 3}}, {2, 0, {2, 3}}}, kPhaseLayers, 1000)[0];
  Verdict verdict;
  verdict.trust = {{1, 0.5}, {2, 0.25}};
  const std::vector<std::byte> encoded = EncodeVerdict(verdict);
  for (size_t n = 0; n < partial.size(); ++n) EXPECT_FALSE(DecodePartial(ConstBytes(partial).first(n), 1).ok()) << n;
  for (size_t n = 0; n < encoded.size(); ++n) EXPECT_FALSE(DecodeVerdict(ConstBytes(encoded).first(n)).ok()) << n;
  EXPECT_FALSE(DecodePartial(partial, kPhaseNorm).ok());
  EXPECT_FALSE(DecodePartial(partial, 2).ok());
  PhiloxRandom random(1);
  for (int i = 0; i < 1000; ++i) {   // never reads beyond its input (sanitizers watch)
    std::vector<std::byte> garbage(random.Below(80));
    for (auto& b : garbage) b = static_cast<std::byte>(random.Below(3));
    (void)DecodePartial(garbage, random.Below(3)).ok();
    (void)DecodeVerdict(garbage).ok();
  }
}

}  // namespace
}  // namespace sluice::server
