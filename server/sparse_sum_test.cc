#include "server/sparse_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "server/sent_sum.h"

namespace sluice::server {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float v : values) bits.push_back(std::bit_cast<uint32_t>(v));
  return bits;
}

// What must survive by its bits.
float AnyValue(PhiloxRandom& random) {
  switch (random.Below(6)) {
    case 0: return -0.0f;
    case 1: return std::bit_cast<float>(0x7F800001u + random.Below(0x7FFFFF));   // NaNs, signalling ones too
    case 2: return std::bit_cast<float>(1 + random.Below(0x7FFFFF));             // denormal
    case 3: return std::bit_cast<float>(0xFFC00000u | random.Below(0x400000));   // quiet, with a sign
    case 4: return random.Chance(0.5) ? INFINITY : std::numeric_limits<float>::lowest();
    default: return random.Uniform() - 0.5f;
  }
}

std::vector<float> Sum(PhiloxRandom& random, size_t n, double density) {
  std::vector<float> sum(n);
  for (float& v : sum) {
    if (random.Chance(density)) v = AnyValue(random);
  }
  return sum;
}

size_t CountOf(const std::vector<float>& sum) {
  size_t count = 0;
  for (const float v : sum) count += std::bit_cast<uint32_t>(v) != 0;
  return count;
}

// As a copy gets it: whole, and in pieces. Both are read in any case, as they come from a peer.
std::optional<std::vector<float>> Read(uint32_t form, uint64_t count, const Bytes& bytes, size_t n, size_t shift = 0) {
  Bytes exact(shift);   // its size, so that the address sanitizer sees what is read beyond the end
  exact.insert(exact.end(), bytes.begin(), bytes.end());
  exact.shrink_to_fit();
  const auto sum = SentSum::Parse(form, count, ConstBytes(exact).subspan(shift), n);
  if (!sum.ok()) return std::nullopt;
  std::vector<float> whole(n, 7.0f), pieces(n, 7.0f);
  sum->CopyTo(whole);
  size_t next = 0;
  sum->ForPieces([&](size_t first, std::span<const float> values) {
    EXPECT_EQ(first, next);
    next = first + values.size();
    ASSERT_LE(next, n);
    std::ranges::copy(values, pieces.begin() + static_cast<ptrdiff_t>(first));
  });
  EXPECT_EQ(next, n);
  EXPECT_EQ(BitsOf(whole), BitsOf(pieces));
  return whole;
}

// Through the bytes and back; true if the form was sparse.
bool RoundTrip(const std::vector<float>& sum, uint32_t* form = nullptr) {
  const auto sparse = SparseSum::Of(sum);
  if (!sparse.has_value()) return false;
  EXPECT_EQ(sparse->count(), CountOf(sum));
  EXPECT_LE(sparse->bytes(), sum.size() * sizeof(float) / 2);
  Bytes bytes(sparse->bytes() + 1, std::byte{0x5A});   // one more, which stays
  sparse->Write(std::span(bytes).first(sparse->bytes()));
  EXPECT_EQ(bytes.back(), std::byte{0x5A});
  bytes.pop_back();
  const auto back = Read(sparse->form(), sparse->count(), bytes, sum.size());
  EXPECT_TRUE(back.has_value());
  if (back.has_value()) {
    EXPECT_EQ(BitsOf(*back), BitsOf(sum));
  }
  if (form != nullptr) *form = sparse->form();
  return true;
}

TEST(SparseSumTest, AnySumComesBackBitForBit) {
  size_t sparse = 0, dense = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    PhiloxRandom random(seed);
    const size_t n = random.Below(seed % 8 == 0 ? 20000 : 400);
    const double density = std::pow(random.Uniform(), 3);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << n << " elements, density " << density);
    (RoundTrip(Sum(random, n, density)) ? sparse : dense)++;
  }
  EXPECT_GT(sparse, 100u);
  EXPECT_GT(dense, 20u);
}

TEST(SparseSumTest, AllZerosAreNoValuesAndNothingIsNothing) {
  EXPECT_TRUE(RoundTrip({}));
  EXPECT_EQ(SparseSum::Of({})->bytes(), 0u);
  for (const size_t n : {1, 63, 64, 65, 5000}) {
    const std::vector<float> zeros(n);
    EXPECT_TRUE(RoundTrip(zeros));
    EXPECT_EQ(SparseSum::Of(zeros)->bytes(), 0u);
  }
}

TEST(SparseSumTest, NegativeZerosAreValues) {
  EXPECT_FALSE(SparseSum::Of(std::vector<float>(1000, -0.0f)).has_value());
  std::vector<float> one(1000);
  one[999] = -0.0f;
  EXPECT_TRUE(RoundTrip(one));
  EXPECT_EQ(SparseSum::Of(one)->count(), 1u);
}

TEST(SparseSumTest, TheFormIsTheSmallest) {
  PhiloxRandom random(7);
  uint32_t form = 0;
  ASSERT_TRUE(RoundTrip(Sum(random, 30000, 0.01), &form));
  EXPECT_EQ(form, kSumGaps);
  ASSERT_TRUE(RoundTrip(Sum(random, 30000, 0.3), &form));
  EXPECT_EQ(form, kSumBitmap);
  EXPECT_FALSE(RoundTrip(Sum(random, 30000, 0.6)));
  // Two ranks' top 1 %: a fiftieth of the values, and little more than a byte for each index.
  const auto sparse = SparseSum::Of(Sum(random, 1 << 16, 0.02));
  EXPECT_LT(sparse->bytes(), (1 << 16) * sizeof(float) / 30);
}

TEST(SparseSumTest, DenseInAPlaceIsJudgedByTheWhole) {
  std::vector<float> sum(100000);
  std::fill(sum.begin() + 30000, sum.begin() + 60000, 1.0f);
  EXPECT_TRUE(RoundTrip(sum));
  std::fill(sum.begin() + 10000, sum.begin() + 80000, 1.0f);
  EXPECT_FALSE(RoundTrip(sum));
}

struct Message {
  uint32_t form;
  uint64_t count;
  Bytes bytes;
};

Message MessageOf(const std::vector<float>& sum) {
  const auto sparse = SparseSum::Of(sum);
  Message m{sparse->form(), sparse->count(), Bytes(sparse->bytes())};
  sparse->Write(m.bytes);
  return m;
}

bool Accepted(const Message& m, size_t n) { return Read(m.form, m.count, m.bytes, n).has_value(); }

TEST(SentSumTest, DenseSumsOfAnySizeComeBackBitForBit) {
  for (const size_t n : {0, 1, 4095, 4096, 4097, 10000}) {
    PhiloxRandom random(n);
    const std::vector<float> sum = Sum(random, n, 1.0);
    const ConstBytes raw = std::as_bytes(std::span(sum));
    for (const size_t shift : {0, 1, 4}) {
      const auto back = Read(kSumDense, 0, {raw.begin(), raw.end()}, n, shift);
      ASSERT_TRUE(back.has_value());
      EXPECT_EQ(BitsOf(*back), BitsOf(sum)) << "at " << shift;
    }
    EXPECT_FALSE(Accepted({kSumDense, 0, Bytes(n * sizeof(float) + 1)}, n));
    EXPECT_FALSE(Accepted({kSumDense, 0, Bytes(n * sizeof(float))}, n + 1));
  }
}

TEST(SparseSumTest, MessagesThatLieAreRefused) {
  PhiloxRandom random(11);
  for (const double density : {0.02, 0.3}) {
    const size_t n = 1000;
    const Message good = MessageOf(Sum(random, n, density));
    SCOPED_TRACE(good.form);
    ASSERT_TRUE(Accepted(good, n));
    for (size_t size = 0; size < good.bytes.size(); ++size) {
      EXPECT_FALSE(Accepted({good.form, good.count, Bytes(good.bytes.begin(), good.bytes.begin() + size)}, n));
    }
    Message longer = good;
    longer.bytes.push_back(std::byte{0});
    EXPECT_FALSE(Accepted(longer, n));
    for (const uint64_t count : {uint64_t{0}, good.count - 1, good.count + 1, n + 1, uint64_t{1} << 62, UINT64_MAX}) {
      EXPECT_FALSE(Accepted({good.form, count, good.bytes}, n)) << count;
    }
    for (const uint32_t form : {kSumDense, 3u, UINT32_MAX}) {
      EXPECT_FALSE(Accepted({form, good.count, good.bytes}, n)) << form;
    }
    EXPECT_FALSE(Accepted(good, n / 2)) << "indices beyond the end";
  }
}

TEST(SparseSumTest, AnyBytesAreReadWithoutHarm) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    PhiloxRandom random(seed, 1);
    const size_t n = 1 + random.Below(300);
    Message m{1 + random.Below(2), random.Below(static_cast<uint32_t>(n) + 2), Bytes(random.Below(200))};
    for (std::byte& b : m.bytes) b = static_cast<std::byte>(random.Below(random.Chance(0.5) ? 4 : 256));
    if (const auto out = Read(m.form, m.count, m.bytes, n); out.has_value()) {
      EXPECT_LE(CountOf(*out), m.count);
    }
  }
}

}  // namespace
}  // namespace sluice::server
