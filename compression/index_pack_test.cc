#include "compression/index_pack.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/philox.h"

namespace sluice::compression {
namespace {

std::vector<uint32_t> RandomIndices(PhiloxRandom& random, uint32_t n, uint32_t count) {
  std::set<uint32_t> set;
  while (set.size() < count) set.insert(random.Below(n));
  return {set.begin(), set.end()};
}

template <typename VisitFunction>
std::vector<uint32_t> Collect(VisitFunction visit) {
  std::vector<uint32_t> all;
  const absl::Status status = visit([&](size_t first, std::span<const uint32_t> indices) {
    EXPECT_EQ(first, all.size());
    all.insert(all.end(), indices.begin(), indices.end());
  });
  EXPECT_TRUE(status.ok()) << status;
  return all;
}

absl::Status Gaps(const std::vector<std::byte>& in, size_t count, size_t n) {
  return VisitGaps(in, count, n, [](size_t, std::span<const uint32_t>) {});
}
absl::Status Bitmap(const std::vector<std::byte>& in, size_t count, size_t n) {
  return VisitBitmap(in, count, n, [](size_t, std::span<const uint32_t>) {});
}
std::vector<std::byte> Bytes(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}

// Bit by bit, from the description alone.
std::vector<std::byte> SlowGaps(const std::vector<uint32_t>& indices) {
  std::vector<std::byte> out;
  int64_t previous = -1;
  for (size_t first = 0; first < indices.size(); first += 64) {
    std::vector<uint64_t> gaps;
    for (size_t j = first; j < std::min(first + 64, indices.size()); ++j) {
      gaps.push_back(static_cast<uint64_t>(indices[j] - previous - 1));
      previous = indices[j];
    }
    unsigned width = 0;
    for (uint64_t gap : gaps)
      while (gap >> width != 0) ++width;
    out.push_back(static_cast<std::byte>(width));
    std::vector<bool> bits;
    for (uint64_t gap : gaps)
      for (unsigned b = 0; b < width; ++b) bits.push_back(gap >> b & 1);
    while (bits.size() % 8 != 0) bits.push_back(false);
    for (size_t b = 0; b < bits.size(); b += 8) {
      int byte = 0;
      for (size_t i = 0; i < 8; ++i) byte |= bits[b + i] << i;
      out.push_back(static_cast<std::byte>(byte));
    }
  }
  return out;
}

TEST(IndexPack, RoundTripsAndMatchesTheDescription) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    PhiloxRandom random(seed);
    const uint32_t n = 1 + random.Below(seed % 3 == 0 ? UINT32_MAX - 1 : 3000);
    const uint32_t count = std::min(n, random.Below(300));
    const std::vector<uint32_t> indices = RandomIndices(random, n, std::min(count, n / 2 + 1));
    std::vector<std::byte> packed(PackedGapBytes(indices));
    PackGaps(indices, packed.data());
    ASSERT_EQ(packed, SlowGaps(indices));
    ASSERT_LE(packed.size(), MaxPackedGapBytes(indices.size(), n));
    ASSERT_EQ(Collect([&](auto visit) { return VisitGaps(packed, indices.size(), n, visit); }), indices);
    if (n > 3000) continue;
    std::vector<std::byte> bitmap(BitmapBytes(n));
    PackBitmap(indices, n, bitmap.data());
    ASSERT_EQ(Collect([&](auto visit) { return VisitBitmap(bitmap, indices.size(), n, visit); }), indices);
  }
}

// One long gap in each group is the worst that can happen.
TEST(IndexPack, TheBoundHoldsForTheWorstSpread) {
  for (const uint32_t n : {1u, 2u, 63u, 64u, 65u, 1000u, 4096u, 1u << 20, (1u << 20) + 1}) {
    for (uint32_t count = 1; count <= std::min(n, 4000u); count += 1 + count / 7) {
      const uint32_t groups = (count + 63) / 64, spare = n - count;
      std::vector<uint32_t> indices;
      uint32_t next = 0;
      for (uint32_t j = 0; j < count; ++j) {
        if (j % 64 == 0) next += spare / groups;
        indices.push_back(next++);
      }
      ASSERT_LE(PackedGapBytes(indices), MaxPackedGapBytes(count, n)) << n << " " << count;
    }
  }
  EXPECT_EQ(MaxPackedGapBytes(0, 100), 0u);
  EXPECT_LT(MaxPackedGapBytes(1ull << 47, 1ull << 48), 1ull << 50);
}

TEST(IndexPack, BadGapsAreRefused) {
  EXPECT_TRUE(Gaps({}, 0, 0).ok());
  EXPECT_TRUE(Gaps(Bytes({0}), 64, 64).ok());               // all gaps 0
  EXPECT_FALSE(Gaps(Bytes({0}), 64, 63).ok());              // the last one lies outside
  EXPECT_FALSE(Gaps(Bytes({0}), 65, 100).ok());             // the second group is missing
  EXPECT_FALSE(Gaps(Bytes({8}), 1, 100).ok());              // its gap is missing
  EXPECT_FALSE(Gaps(Bytes({33, 0, 0, 0, 0, 0}), 1, 100).ok());
  EXPECT_TRUE(Gaps(Bytes({32, 99, 0, 0, 0}), 1, 100).ok());
  EXPECT_FALSE(Gaps(Bytes({32, 100, 0, 0, 0}), 1, 100).ok());
  EXPECT_TRUE(Gaps(Bytes({3, 0b00010001}), 2, 100).ok());
  EXPECT_FALSE(Gaps(Bytes({3, 0b01010001}), 2, 100).ok());  // padding
  EXPECT_FALSE(Gaps(Bytes({0, 0}), 1, 100).ok());           // a byte too many
}

TEST(IndexPack, BadBitmapsAreRefused) {
  EXPECT_TRUE(Bitmap({}, 0, 0).ok());
  EXPECT_TRUE(Bitmap(Bytes({0xFF, 0x01}), 9, 9).ok());
  EXPECT_FALSE(Bitmap(Bytes({0xFF, 0x03}), 10, 9).ok());    // a bit outside
  EXPECT_FALSE(Bitmap(Bytes({0xFF, 0x01}), 8, 9).ok());
  EXPECT_FALSE(Bitmap(Bytes({0x7F, 0x01}), 9, 9).ok());
  EXPECT_FALSE(Bitmap(Bytes({0xFF}), 8, 9).ok());
  EXPECT_FALSE(Bitmap(Bytes({0xFF, 0, 0}), 8, 9).ok());
}

}  // namespace
}  // namespace sluice::compression
