#include "server/math/exact_wire.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/philox.h"

namespace sluice::server {
namespace {

std::vector<std::byte> Wire(const ExactSum& sum) {
  std::vector<std::byte> wire(ExactWireBytes(sum));
  WriteExact(sum, wire);
  return wire;
}

std::vector<uint32_t> Rounded(const ExactSum& sum) {
  std::vector<float> out(sum.size());
  sum.Round(out);
  std::vector<uint32_t> bits;
  for (const float v : out) bits.push_back(std::isnan(v) ? 0x7FC00000u : std::bit_cast<uint32_t>(v));
  return bits;
}

// Any values, cut into groups whose bins travel, have the bits of the sum that was never cut.
TEST(ExactWire, SumsThatTravelHaveTheBitsOfThoseThatDoNot) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    PhiloxRandom random(seed);
    const size_t n = 1 + random.Below(20);
    const uint32_t contributions = 1 + random.Below(12);
    ExactSum flat(n), merged(n), group(n);
    uint32_t in_group = 0;
    for (uint32_t c = 0; c < contributions; ++c) {
      std::vector<float> values(n);
      for (float& v : values) {
        v = std::bit_cast<float>(random());
        if (!std::isfinite(v) && !random.Chance(0.02)) v = random.Uniform();
      }
      flat.Add(values);
      group.Add(values);
      ++in_group;
      if (c + 1 < contributions && random.Chance(0.6)) continue;
      const std::vector<std::byte> wire = Wire(group);
      ASSERT_LE(wire.size(), MaxExactWireBytes(n));
      ASSERT_TRUE(MergeExact(wire, in_group, &merged).ok()) << "seed " << seed;
      group.Clear();
      in_group = 0;
    }
    EXPECT_EQ(Rounded(merged), Rounded(flat)) << "seed " << seed;
  }
}

TEST(ExactWire, ManyEqualValuesNeedWiderBins) {
  ExactSum sum(1), merged(1);
  const float largest = std::numeric_limits<float>::max(), small = -1.9999999f;
  for (int i = 0; i < 1000; ++i) sum.Add({i % 2 ? &largest : &small, 1});
  EXPECT_EQ(Wire(sum).size(), 8u + 1 + 3 * 6);
  ASSERT_TRUE(MergeExact(Wire(sum), 1000, &merged).ok());
  EXPECT_EQ(Rounded(merged), Rounded(sum));
}

TEST(ExactWire, WhatIsMalformedIsRefusedAndChangesNothing) {
  ExactSum sum(3), target(3);
  sum.Add(std::vector<float>{1, 2, 3});
  target.Add(std::vector<float>{5, 6, 7});
  const std::vector<uint32_t> before = Rounded(target);
  const std::vector<std::byte> good = Wire(sum);
  const auto refused = [&](std::vector<std::byte> wire, uint64_t contributions = 1) {
    EXPECT_EQ(MergeExact(wire, contributions, &target).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Rounded(target), before);
  };
  for (size_t size = 0; size < good.size(); ++size) refused({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)});
  std::vector<std::byte> wire = good;
  wire[0] = std::byte{7};
  refused(wire);
  wire = good;
  wire[8] = std::byte{9};   // a top bin that there is not
  refused(wire);
  wire = good;
  wire[8 + 3 + 3] = std::byte{0x7F};
  refused(wire, 0);         // a bin that no value can have filled
  // Whatever bytes come: never beyond them, never a crash.
  PhiloxRandom random(1);
  for (int i = 0; i < 5000; ++i) {
    wire = good;
    for (int k = 0; k < 3; ++k) wire[random.Below(static_cast<uint32_t>(wire.size()))] = static_cast<std::byte>(random.Below(256));
    ExactSum any(3);
    (void)MergeExact(wire, 2, &any);
  }
}

}  // namespace
}  // namespace sluice::server
