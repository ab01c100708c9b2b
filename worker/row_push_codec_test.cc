// Pushes of rows in a codec that loses something: what goes out and what stays behind, against the plain sums.
#include <cmath>
#include <limits>
#include <map>

#include "base/philox.h"
#include "compression/policy.h"
#include "compression/row_payload.h"
#include "gtest/gtest.h"
#include "worker/rows.h"

namespace sluice::worker {
namespace {

using compression::Codec;

TableShape Table(const char* codec, uint64_t residual_rows, uint32_t dim = 3) {
  TableShape table{.name = "users", .dim = dim, .segments = 4};
  table.codec = compression::MakeRowCodec(codec).value();
  if (residual_rows > 0) table.residual = std::make_shared<RowResidual>(dim, residual_rows);
  return table;
}

using Rows = std::map<uint64_t, std::vector<double>>;

void Add(Rows& rows, uint64_t id, std::span<const float> values) {
  std::vector<double>& sum = rows.try_emplace(id, values.size(), 0.0).first->second;
  for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
}

// What the servers make of a push; checks segments and order on the way.
std::map<uint64_t, std::vector<float>> Decoded(const TableShape& table, const RowPush& push) {
  std::map<uint64_t, std::vector<float>> rows;
  const Codec& decoder = *compression::DecoderFor(push.codec);
  for (uint32_t s = 0; s < table.segments; ++s) {
    const RowPush::Part& part = push.parts[s];
    if (part.rows == 0) continue;
    const auto parsed = compression::ParseRows(part.payload, part.rows);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    std::vector<float> values(parsed->ids.size() * table.dim);
    EXPECT_TRUE(decoder.Validate(parsed->values, values.size()).ok());
    EXPECT_TRUE(decoder.Decode(parsed->values, values).ok());
    for (size_t r = 0; r < parsed->ids.size(); ++r) {
      EXPECT_EQ(compression::SegmentOf(parsed->ids[r], table.segments), s);
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(r * table.dim);
      rows[parsed->ids[r]].assign(begin, begin + table.dim);
    }
  }
  return rows;
}

class Feedback : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Codecs, Feedback, testing::Values("fp16", "bf16", "int8"));

// Error feedback conserves: over any number of rounds, what was sent of a row and what is left of it make up its gradients.
TEST_P(Feedback, WhatWasSentAndWhatIsLeftMakeUpTheGradients) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    PhiloxRandom random(seed);
    const TableShape table = Table(GetParam(), 1000, 1 + random.Below(40));
    const size_t dim = table.dim;
    Rows pushed, sent;
    size_t terms = 1;
    for (int round = 0; round < 20; ++round) {
      std::vector<uint64_t> ids(random.Below(60));
      for (uint64_t& id : ids) id = random.Below(30) * 0x100000001u;
      std::vector<float> gradients(ids.size() * dim);
      for (float& g : gradients) g = random.Uniform() - 0.5f;
      for (size_t i = 0; i < ids.size(); ++i) Add(pushed, ids[i], std::span(gradients).subspan(i * dim, dim));
      terms += ids.size();
      const auto push = PrepareRowPush(table, ids, gradients);
      ASSERT_TRUE(push.ok()) << push.status();
      for (const auto& [id, values] : Decoded(table, *push)) Add(sent, id, values);
    }
    const RowResidual::Saved left = table.residual->Save();
    ASSERT_EQ(left.ids.size(), pushed.size());
    for (size_t i = 0; i < left.ids.size(); ++i) Add(sent, left.ids[i], std::span(left.values).subspan(i * dim, dim));
    const double bound = static_cast<double>(terms) * 2 * std::numeric_limits<float>::epsilon();
    for (const auto& [id, values] : pushed) {
      for (size_t k = 0; k < dim; ++k) ASSERT_NEAR(sent.at(id)[k], values[k], bound) << "row " << id << " value " << k;
    }
  }
}

// One push, element by element: the payload is the encoding of sum + residual, rows one after the other by id.
TEST_P(Feedback, ThePayloadIsTheEncodingOfSumAndResidual) {
  const TableShape table = Table(GetParam(), 100);
  const std::vector<uint64_t> ids = {5, 900, 5, 77, 13};
  const std::vector<float> gradients = {.11f, .12f, .13f, 2, 3, 4, .21f, .22f, .23f, -1, -2, -3, 1e-3f, 1e-4f, 1e-5f};
  Rows residual;
  for (int round = 0; round < 5; ++round) {
    std::map<uint64_t, std::vector<float>> sums;
    for (size_t i = 0; i < ids.size(); ++i) {
      std::vector<float>& sum = sums.try_emplace(ids[i], 3, -0.0f).first->second;
      for (size_t k = 0; k < 3; ++k) sum[k] += gradients[3 * i + k];
    }
    const RowResidual::Saved before = table.residual->Save();
    for (size_t i = 0; i < before.ids.size(); ++i) {
      for (size_t k = 0; k < 3; ++k) sums.at(before.ids[i])[k] += before.values[3 * i + k];
    }
    const auto push = PrepareRowPush(table, ids, gradients);
    ASSERT_TRUE(push.ok());
    for (uint32_t s = 0; s < table.segments; ++s) {
      std::vector<float> values;
      for (const auto& [id, sum] : sums) {
        if (compression::SegmentOf(id, table.segments) == s) values.insert(values.end(), sum.begin(), sum.end());
      }
      std::vector<std::byte> expected(table.codec->MaxEncodedBytes(values.size()));
      ASSERT_TRUE(table.codec->Encode({.gradient = values, .residual = {}, .residual_out = {}}, expected).ok());
      if (values.empty()) continue;
      const auto parsed = compression::ParseRows(push->parts[s].payload, push->parts[s].rows);
      ASSERT_TRUE(parsed.ok());
      EXPECT_TRUE(std::ranges::equal(parsed->values, expected)) << "segment " << s << " round " << round;
    }
  }
}

TEST(RowPushCodec, ARefusedPushLeavesTheResidualsAsTheyWere) {
  const TableShape table = Table("int8", 100, 1);
  const std::vector<uint64_t> ids = {1, 2, 3};
  ASSERT_TRUE(PrepareRowPush(table, ids, std::vector<float>{1.0f, 0.3f, 0.7f}).ok());
  const RowResidual::Saved before = table.residual->Save();
  EXPECT_FALSE(PrepareRowPush(table, ids, std::vector<float>{1, std::nanf(""), 1}).ok());
  EXPECT_FALSE(PrepareRowPush(table, std::vector<uint64_t>{1, 2, 3, 3}, std::vector<float>{1, 1, 3e38f, 3e38f}).ok());
  EXPECT_FALSE(PrepareRowPush(table, ids, std::vector<float>{1, 1}).ok());
  const RowResidual::Saved after = table.residual->Save();
  EXPECT_EQ(after.ids, before.ids);
  EXPECT_EQ(after.values, before.values);
}

TEST(RowPushCodec, ARejectedPartGoesBackIntoTheResiduals) {
  const TableShape table = Table("int8", 100, 2);
  const std::vector<uint64_t> ids = {1, 2, 3, 4, 5, 6};
  std::vector<float> gradients;
  for (int i = 0; i < 12; ++i) gradients.push_back(0.37f * static_cast<float>(i + 1));
  const auto push = PrepareRowPush(table, ids, gradients);
  ASSERT_TRUE(push.ok());
  for (const RowPush::Part& part : push->parts) ReturnRows(table, part);
  const RowResidual::Saved left = table.residual->Save();
  ASSERT_EQ(left.ids.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    for (size_t k = 0; k < 2; ++k) EXPECT_NEAR(left.values[2 * i + k], gradients[2 * (left.ids[i] - 1) + k], 1e-6);
  }
}

TEST(RowPushCodec, NoneKeepsNoResidualAndItsBits) {
  const TableShape plain{.name = "users", .dim = 3, .segments = 4}, table = Table("none", 100);
  const std::vector<uint64_t> ids = {8, 9, 8};
  const std::vector<float> gradients = {-0.0f, 1, 2, 3, 4, 5, -0.0f, 7, 8};
  for (int round = 0; round < 2; ++round) {
    const auto a = PrepareRowPush(plain, ids, gradients), b = PrepareRowPush(table, ids, gradients);
    ASSERT_TRUE(a.ok() && b.ok());
    for (uint32_t s = 0; s < 4; ++s) EXPECT_EQ(a->parts[s].payload, b->parts[s].payload);
    EXPECT_TRUE(std::signbit(Decoded(plain, *a).at(8)[0]));
  }
  EXPECT_EQ(table.residual->stats().rows, 0u);
}

TEST(RowPushCodec, TopKIsRefusedWithTheReason) {
  EXPECT_TRUE(compression::MakeRowCodec("").ok());
  const absl::Status status = compression::MakeRowCodec("topk:0.1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("none, fp16, bf16, mxfp8, int8 or int4"), std::string_view::npos) << status;
  EXPECT_FALSE(compression::MakeRowCodec("int9").ok());
}

}  // namespace
}  // namespace sluice::worker
