#include "compression/draws.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/philox.h"
#include "compression/bit_planes.h"

namespace sluice::compression {
namespace {

TEST(Draws, AreThePhiloxWordsOfTheirElements) {
  const std::array<uint32_t, 2> key = {0x12345678, 0x9ABCDEF0};
  for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{4}, uint64_t{1} << 34, (uint64_t{1} << 34) - 3}) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{31}, size_t{32}, size_t{33}, size_t{1000}}) {
      std::vector<uint32_t> draws(n, 7);
      FillDraws(key, first, draws);
      for (size_t i = 0; i < n; ++i) {
        const uint64_t block = (first + i) / 4;
        const PhiloxBlock expected =
            Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}, key);
        ASSERT_EQ(draws[i], expected[(first + i) % 4]) << first << " " << i;
      }
    }
  }
}

TEST(Draws, EveryPartOfTheKeyMatters) {
  std::set<std::array<uint32_t, 2>> keys;
  for (const uint64_t seed : {RandomSeed("a", 0), RandomSeed("a", 1), RandomSeed("b", 0), RandomSeed("", 0)})
    for (const uint64_t round : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32})
      for (const uint32_t tensor : {0u, 1u})
        for (const DrawPurpose purpose : {DrawPurpose::kRounding, DrawPurpose::kSelection})
          keys.insert(DrawKey({.seed = seed, .round = round, .tensor = tensor}, purpose));
  EXPECT_EQ(keys.size(), 48u);
  EXPECT_EQ(RandomSeed("", 0), 0xCBF29CE484222325 ^ 0x9E3779B97F4A7C15);
}

TEST(BitPlanes, AreTheBitsOfTheCodes) {
  PhiloxRandom random(1);
  for (const size_t n : {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{127}, size_t{128}}) {
    std::vector<std::byte> codes(n), back(8 * PlaneBytes(n));
    for (std::byte& c : codes) c = static_cast<std::byte>(random());
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> plane(PlaneBytes(n), std::byte{0xFF});
      PackPlane(codes.data(), n, bit, plane.data());
      for (size_t i = 0; i < 8 * plane.size(); ++i) {
        const bool expected = i < n && (static_cast<unsigned>(codes[i]) >> bit & 1) != 0;
        ASSERT_EQ(static_cast<unsigned>(plane[i / 8]) >> (i % 8) & 1, expected ? 1u : 0u) << n << " " << i;
      }
      EXPECT_TRUE(PlanePaddingIsZero(plane.data(), n));
      UnpackPlane(plane.data(), n, bit, back.data());
    }
    back.resize(n);
    EXPECT_EQ(back, codes);
  }
}

}  // namespace
}  // namespace sluice::compression
