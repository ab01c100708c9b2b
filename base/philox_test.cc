#include "base/philox.h"

#include "gtest/gtest.h"

namespace sluice {
namespace {

// Known answers of the authors' Random123 (tests/kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, MatchesTheKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxRandom, WalksTheBlocksOfItsStreamInOrder) {
  PhiloxRandom random(0x1122334455667788, 9);
  for (uint32_t position = 0; position < 3; ++position)
    for (uint32_t word : Philox4x32({position, 0, 9, 0}, {0x55667788, 0x11223344})) EXPECT_EQ(random(), word);
}

TEST(PhiloxRandom, StaysInItsRanges) {
  PhiloxRandom random(3);
  bool seen[5] = {};
  for (int i = 0; i < 1000; ++i) {
    const uint32_t v = random.Below(5);
    ASSERT_LT(v, 5u);
    seen[v] = true;
    const float u = random.Uniform();
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
  }
  for (bool s : seen) EXPECT_TRUE(s);
  EXPECT_FALSE(random.Chance(0.0));
  EXPECT_TRUE(random.Chance(1.0));
}

}  // namespace
}  // namespace sluice
