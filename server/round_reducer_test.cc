#include "server/round_reducer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"

namespace sluice::server {
namespace {

struct Contribution {
  std::string codec;                // empty: presence only
  std::vector<float> values;
  std::vector<std::byte> payload;
  bool by_reference = false;
};

std::vector<float> Random(PhiloxRandom& random, size_t n) {
  std::vector<float> values(n);
  for (float& v : values) v = random.Uniform() * 2 - 1;
  return values;
}

Contribution Make(PhiloxRandom& random, const std::string& codec, size_t n) {
  Contribution c;
  c.codec = codec;
  c.by_reference = random.Chance(0.6);
  if (codec.empty()) return c;
  c.values = Random(random, n);
  auto encoder = compression::MakeCodec(codec);
  c.payload.resize((*encoder)->MaxEncodedBytes(n));
  compression::EncodeInput input;
  input.gradient = c.values;
  c.payload.resize(*(*encoder)->Encode(input, c.payload));
  return c;
}

// One rounding an operation, in order of rank: what the bits must be.
std::vector<float> Slow(const std::vector<Contribution>& all, size_t n, bool mean) {
  std::optional<std::vector<float>> sum;
  for (const Contribution& c : all) {
    if (c.codec.empty()) continue;
    std::vector<float> decoded(n);
    const compression::Codec* codec = compression::DecoderFor(static_cast<uint16_t>((*compression::MakeCodec(c.codec))->id()));
    EXPECT_TRUE(codec->Decode(c.payload, decoded).ok());
    if (!sum.has_value()) {
      sum = decoded;
    } else {
      for (size_t i = 0; i < n; ++i) (*sum)[i] += decoded[i];
    }
  }
  if (!sum.has_value()) sum = std::vector<float>(n, 0.0f);
  if (mean && all.size() > 1)
    for (float& v : *sum) v /= static_cast<float>(all.size());
  return *sum;
}

class RoundReducerTest : public ::testing::Test {
 protected:
  // Adds in this order of arrival, as BspPartition does.
  Reduced Reduce(RoundReducer& reducer, std::vector<Contribution>& all, const std::vector<size_t>& order) {
    std::vector<bool> there(all.size());
    for (size_t i = 0; i < order.size(); ++i) {
      Contribution& c = all[order[i]];
      there[order[i]] = true;
      const auto floor = static_cast<uint32_t>(std::find(there.begin(), there.end(), false) - there.begin());
      const compression::Codec* codec =
          c.codec.empty() ? nullptr
                          : compression::DecoderFor(static_cast<uint16_t>((*compression::MakeCodec(c.codec))->id()));
      const absl::Status added =
          reducer.Add(static_cast<uint32_t>(order[i]), codec, transport::Payload(c.payload, nullptr, c.by_reference), floor,
                      /*last=*/i + 1 == order.size());
      EXPECT_TRUE(added.ok()) << added;
    }
    auto reduced = reducer.Finish();
    EXPECT_TRUE(reduced.ok()) << reduced.status();
    return *std::move(reduced);
  }

  BlockPool blocks_{nullptr};
  ExactPool exact_;
};

TEST_F(RoundReducerTest, HasTheBitsOfTheSlowSumForAnyArrivalCodecAndTransport) {
  PhiloxRandom random(11);
  const char* const codecs[] = {"none", "none", "none", "int8", "fp16", ""};
  for (int trial = 0; trial < 400; ++trial) {
    const size_t n = 1 + random.Below(trial % 8 == 0 ? 20000 : 300);
    const size_t ranks = 1 + random.Below(5);
    const bool mean = random.Chance(0.5);
    std::vector<Contribution> all;
    for (size_t r = 0; r < ranks; ++r) all.push_back(Make(random, codecs[random.Below(6)], n));
    std::vector<size_t> order(ranks);
    for (size_t i = 0; i < ranks; ++i) order[i] = i;
    for (size_t i = ranks; i > 1; --i) std::swap(order[i - 1], order[random.Below(static_cast<uint32_t>(i))]);
    RoundReducer reducer(proto::ORDER_RANK, mean ? proto::REDUCTION_MEAN : proto::REDUCTION_SUM, n, &blocks_, &exact_);
    for (int round = 0; round < 2; ++round) {  // nothing stays from one round to the next
      const Reduced reduced = Reduce(reducer, all, order);
      const std::vector<float> expected = Slow(all, n, mean);
      EXPECT_TRUE(reduced.finite);
      ASSERT_EQ(std::memcmp(reduced.sum->values().data(), expected.data(), n * sizeof(float)), 0) << "trial " << trial;
    }
  }
}

TEST_F(RoundReducerTest, FindsWhatIsNotFiniteInTheSumOnly) {
  constexpr size_t kElements = 10000;
  PhiloxRandom random(12);
  for (const bool by_reference : {false, true}) {
    for (const size_t bad : {size_t{0}, size_t{4096}, kElements - 1}) {
      std::vector<Contribution> all = {Make(random, "none", kElements), Make(random, "none", kElements)};
      for (Contribution& c : all) {
        c.by_reference = by_reference;
        c.values.assign(kElements, 1.0f);
        c.values[bad] = std::numeric_limits<float>::max();  // finite each, and not together
        std::memcpy(c.payload.data(), c.values.data(), c.payload.size());
      }
      RoundReducer reducer(proto::ORDER_RANK, proto::REDUCTION_SUM, kElements, &blocks_, &exact_);
      EXPECT_FALSE(Reduce(reducer, all, {0, 1}).finite);
      all[1].values.assign(kElements, 1.0f);
      std::memcpy(all[1].payload.data(), all[1].values.data(), all[1].payload.size());
      EXPECT_TRUE(Reduce(reducer, all, {1, 0}).finite);
    }
  }
}

TEST_F(RoundReducerTest, ALentPayloadIsLetGoOfWithTheRound) {
  std::vector<float> values(1000, 1.0f);
  const auto alive = std::make_shared<int>(0);
  RoundReducer reducer(proto::ORDER_RANK, proto::REDUCTION_MEAN, values.size(), &blocks_, &exact_);
  const compression::Codec* none = compression::DecoderFor(0);
  const auto payload = [&] { return transport::Payload(std::as_bytes(std::span(values)), alive, /*by_reference=*/true); };
  // Alone at the end: others had nothing to add.
  ASSERT_TRUE(reducer.Add(0, none, payload(), 1, /*last=*/false).ok());
  EXPECT_EQ(alive.use_count(), 2);
  ASSERT_TRUE(reducer.Add(1, nullptr, transport::Payload(), 2, /*last=*/true).ok());
  auto reduced = reducer.Finish();
  ASSERT_TRUE(reduced.ok());
  EXPECT_EQ(reduced->sum->values()[999], 0.5f);
  EXPECT_EQ(alive.use_count(), 1);
  // Discarded.
  ASSERT_TRUE(reducer.Add(0, none, payload(), 1, /*last=*/false).ok());
  EXPECT_EQ(alive.use_count(), 2);
  reducer.Discard();
  EXPECT_EQ(alive.use_count(), 1);
  // Summed.
  ASSERT_TRUE(reducer.Add(0, none, payload(), 1, /*last=*/false).ok());
  ASSERT_TRUE(reducer.Add(1, none, payload(), 2, /*last=*/false).ok());
  EXPECT_EQ(alive.use_count(), 1);
  reducer.Discard();
}

}  // namespace
}  // namespace sluice::server
