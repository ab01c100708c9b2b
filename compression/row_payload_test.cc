#include "compression/row_payload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/philox.h"

namespace sluice::compression {
namespace {

using Bytes = std::vector<std::byte>;
constexpr uint64_t kMaxId = ~uint64_t{0};

uint64_t Draw64(PhiloxRandom& random) { return uint64_t{random()} << 32 | random(); }

Bytes Packed(const std::vector<uint64_t>& ids) {
  Bytes out;
  const absl::Status status = PackIds(ids, &out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

void PutU32(Bytes* out, uint64_t value) {
  for (int i = 0; i < 4; ++i) out->push_back(static_cast<std::byte>(value >> (8 * i)));
}

// Bit by bit, from the description alone.
Bytes SlowPack(const std::vector<uint64_t>& ids) {
  Bytes packed;
  for (int i = 0; i < 8 && !ids.empty(); ++i) packed.push_back(static_cast<std::byte>(ids[0] >> (8 * i)));
  for (size_t first = 1; first < ids.size(); first += 128) {
    std::vector<uint64_t> differences;
    for (size_t j = first; j < std::min(first + 128, ids.size()); ++j) differences.push_back(ids[j] - ids[j - 1] - 1);
    int width = 0;
    for (const uint64_t d : differences)
      while (width < 64 && d >> width != 0) ++width;
    packed.push_back(static_cast<std::byte>(width));
    std::vector<int> bits;
    for (const uint64_t d : differences)
      for (int b = 0; b < width; ++b) bits.push_back(d >> b & 1);
    while (bits.size() % 8 != 0) bits.push_back(0);
    for (size_t b = 0; b < bits.size(); b += 8) {
      int byte = 0;
      for (size_t i = 0; i < 8; ++i) byte |= bits[b + i] << i;
      packed.push_back(static_cast<std::byte>(byte));
    }
  }
  Bytes out;
  PutU32(&out, ids.size());
  PutU32(&out, packed.size());
  out.insert(out.end(), packed.begin(), packed.end());
  while (out.size() % 8 != 0) out.push_back(std::byte{0});
  return out;
}

// ids whose differences minus one have at most `width` bits, one of them all of them.
std::vector<uint64_t> IdsOfWidth(PhiloxRandom& random, unsigned width, size_t rows) {
  std::vector<uint64_t> ids = {width < 56 ? Draw64(random) >> 2 : 0};
  uint64_t left = kMaxId - ids[0];
  const uint64_t widest = width == 0 ? 0 : uint64_t{1} << (width - 1);
  for (size_t i = 1; i < rows; ++i) {
    uint64_t difference = width == 0 ? 0 : Draw64(random) >> (64 - width) >> (width < 48 ? 0 : 12);
    if (i == 1 + rows / 3) difference = widest;
    if (left <= difference) break;
    left -= difference + 1;
    ids.push_back(ids.back() + difference + 1);
  }
  return ids;
}

void ExpectRoundTrip(const std::vector<uint64_t>& ids) {
  const Bytes packed = Packed(ids);
  ASSERT_EQ(packed, SlowPack(ids));
  ASSERT_LE(packed.size(), MaxPackedIdBytes(ids.size()));
  const auto parsed = ParseRows(packed, ids.size());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->ids, ids);
  ASSERT_TRUE(parsed->values.empty());
}

std::string Error(const Bytes& payload, size_t most = 1000) {
  const auto parsed = ParseRows(payload, most);
  if (parsed.ok()) return "";
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss);
  return std::string(parsed.status().message());
}

TEST(RowPayload, RoundTripsInEveryWidth) {
  PhiloxRandom random(1);
  for (unsigned width = 0; width <= 64; ++width)
    for (const size_t rows : {2, 3, 9, 128, 129, 130, 257, 400}) {
      const std::vector<uint64_t> ids = IdsOfWidth(random, width, rows);
      ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(ids)) << width << " " << rows;
    }
}

TEST(RowPayload, TheEndsOfTheRangeRoundTrip) {
  ExpectRoundTrip({});
  ExpectRoundTrip({0});
  ExpectRoundTrip({kMaxId});
  ExpectRoundTrip({0, kMaxId});  // the widest difference: 64 bits
  ExpectRoundTrip({0, 1, kMaxId - 1, kMaxId});
  ExpectRoundTrip({kMaxId - 2, kMaxId - 1, kMaxId});
}

TEST(RowPayload, RandomSetsMatchTheDescription) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    PhiloxRandom random(seed);
    const unsigned shift = random.Below(62);
    std::set<uint64_t> set;
    for (uint32_t i = random.Below(700); i > 0; --i) set.insert(Draw64(random) >> shift);
    ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip({set.begin(), set.end()})) << seed;
  }
}

TEST(RowPayload, ValuesFollowAtAMultipleOfEight) {
  Bytes out(3, std::byte{7});  // what is there already stays
  ASSERT_TRUE(PackIds(std::vector<uint64_t>{5, 6, 900}, &out).ok());
  Bytes payload(out.begin() + 3, out.end());
  const size_t values_at = payload.size();
  EXPECT_EQ(values_at % 8, 0u);
  payload.insert(payload.end(), 13, std::byte{0xFF});
  const auto parsed = ParseRows(payload, 3);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->ids, (std::vector<uint64_t>{5, 6, 900}));
  EXPECT_EQ(parsed->values.data(), payload.data() + values_at);
  EXPECT_EQ(parsed->values.size(), 13u);
}

TEST(RowPayload, IdsThatDoNotAscendAreRefusedByName) {
  Bytes out(2);
  const absl::Status equal = PackIds(std::vector<uint64_t>{1, 4, 4}, &out);
  EXPECT_EQ(equal.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(equal.message().find("ids[2] is 4 after 4"), std::string::npos) << equal;
  EXPECT_FALSE(PackIds(std::vector<uint64_t>{kMaxId, 0}, &out).ok());
  EXPECT_EQ(out.size(), 2u);
}

TEST(RowPayload, TruncationAtEveryByteIsRefused) {
  PhiloxRandom random(3);
  for (const unsigned width : {0u, 1u, 7u, 8u, 31u, 64u})
    for (const size_t rows : {1, 2, 130, 300}) {
      const Bytes packed = Packed(IdsOfWidth(random, width, rows));
      for (size_t size = 0; size < packed.size(); ++size) {
        const Bytes cut(packed.begin(), packed.begin() + static_cast<ptrdiff_t>(size));
        ASSERT_NE(Error(cut), "") << width << " " << rows << " " << size;
        // The same with an honest length of what is left.
        if (size < 16 || size % 8 != 0) continue;
        Bytes shorter = cut;
        StoreLe(shorter.data() + 4, static_cast<uint32_t>(size - 8));
        ASSERT_NE(Error(shorter), "") << width << " " << rows << " " << size;
      }
    }
}

TEST(RowPayload, EveryFlippedByteIsRefusedOrAscends) {
  PhiloxRandom random(4);
  const Bytes packed = Packed(IdsOfWidth(random, 11, 300));
  for (size_t at = 0; at < packed.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      Bytes bad = packed;
      bad[at] ^= static_cast<std::byte>(1 << bit);
      const auto parsed = ParseRows(bad, 1000);
      if (!parsed.ok()) continue;
      ASSERT_TRUE(std::is_sorted(parsed->ids.begin(), parsed->ids.end(), std::less_equal<>())) << at << " " << bit;
    }
}

TEST(RowPayload, AbsurdCountsAreRefusedBeforeAnythingIsAllocated) {
  Bytes payload;
  PutU32(&payload, UINT32_MAX);
  PutU32(&payload, 16);
  payload.resize(24);
  EXPECT_NE(Error(payload).find("4294967295 announced, at most 1000"), std::string::npos) << Error(payload);
  EXPECT_NE(Error(payload, SIZE_MAX).find("cannot have 16 bytes"), std::string::npos) << Error(payload, SIZE_MAX);
  StoreLe(payload.data(), uint32_t{1});
  StoreLe(payload.data() + 4, UINT32_MAX);
  EXPECT_NE(Error(payload).find("4294967295 bytes of ids"), std::string::npos) << Error(payload);
  StoreLe(payload.data(), uint32_t{0});  // no rows, yet ids
  StoreLe(payload.data() + 4, uint32_t{8});
  EXPECT_NE(Error(payload), "");
}

TEST(RowPayload, WidthsBeyond64PaddingAndTrailingBytesAreRefused) {
  Bytes packed = Packed({0, 2});  // head, first id, width 1, one byte of bits
  ASSERT_EQ(packed.size(), 24u);
  packed[16] = std::byte{65};
  EXPECT_NE(Error(packed).find("width of 65"), std::string::npos) << Error(packed);
  packed[16] = std::byte{1};
  EXPECT_EQ(Error(packed), "");
  packed[17] = std::byte{3};
  EXPECT_NE(Error(packed).find("padding bits"), std::string::npos) << Error(packed);
  packed[17] = std::byte{1};
  packed[20] = std::byte{1};
  EXPECT_NE(Error(packed).find("byte 12 behind the ids"), std::string::npos) << Error(packed);
  packed[20] = std::byte{0};
  packed[4] = std::byte{11};
  EXPECT_NE(Error(packed).find("1 bytes behind the ids"), std::string::npos) << Error(packed);
}

TEST(RowPayload, AnIdBeyondTheLargestIsRefused) {
  Bytes packed = Packed({0, kMaxId});
  packed[8] = std::byte{1};  // the first id becomes 1
  EXPECT_NE(Error(packed).find("row 1 of 2 lies beyond"), std::string::npos) << Error(packed);
}

TEST(RowPayload, SegmentsShareIdsEvenly) {
  for (const uint32_t segments : {1u, 3u, 8u, 100u}) {
    std::vector<int> count(segments);
    for (uint64_t id = 0; id < 1000 * segments; ++id) ++count.at(SegmentOf(id, segments));
    for (const int c : count) EXPECT_NEAR(c, 1000, 160);  // five deviations
  }
  // The published sequence of splitmix64 from seed 0 is the finalizer of multiples of the golden ratio.
  EXPECT_EQ(MixId(0x9E3779B97F4A7C15), 0xE220A8397B1DCDAF);
}

}  // namespace
}  // namespace sluice::compression
