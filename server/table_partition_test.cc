// Tables at their owner: exactly once, order of sums, pulls that wait for their round, SSP and ASP, and what peers may send.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compression/row_payload.h"
#include "server/testing/core_harness.h"

namespace sluice::server {
namespace {

using transport::kFlagContributed;
using transport::kFlagEmpty;
using transport::PushState;
using transport::RetryReason;

using Ids = std::vector<uint64_t>;
using Floats = std::vector<float>;

class TableTest : public testing::Test {
 protected:
  void Begin(const std::string& job, const std::string& table = "optimizer { kind: 'sgd' rate: 1 }", uint32_t dim = 2,
             uint32_t segments = 1) {
    s_.Start(PlanBuilder(job).Server("s0").Table("users", dim, segments, table).plan);
  }
  static std::vector<std::byte> Rows(const Ids& ids, const Floats& values) {
    std::vector<std::byte> out;
    EXPECT_TRUE(compression::PackIds(ids, &out).ok());
    const ConstBytes bytes = std::as_bytes(std::span<const float>(values));
    out.insert(out.end(), bytes.begin(), bytes.end());
    return out;
  }
  static FrameHeader PushHeader(uint32_t rank, uint64_t round, size_t rows, uint32_t attempt = 1) {
    return CoreHarness::HeaderOf({.rank = rank, .round = round, .attempt = attempt, .elements = static_cast<uint32_t>(rows)});
  }
  void Push(uint32_t rank, uint64_t round, const Ids& ids, const Floats& values, uint32_t attempt = 1) {
    FrameHeader h = PushHeader(rank, round, ids.size(), attempt);
    std::vector<std::byte> bytes;
    if (ids.empty()) {
      h.flags = kFlagEmpty;
    } else {
      bytes = Rows(ids, values);
    }
    h.total_bytes = h.payload_bytes = static_cast<uint32_t>(bytes.size());
    s_.Deliver(rank + 1, h, bytes);
  }
  void Pull(uint32_t rank, uint64_t round, const Ids& ids, uint64_t request, uint16_t flags = 0) {
    FrameHeader h = PushHeader(rank, round, ids.size());
    h.type = FrameType::kPull;
    h.flags = flags;
    h.aux64 = request;
    std::vector<std::byte> bytes;
    h.codec = request % 2 == 0 ? transport::kPlainIds : transport::kPackedIds;
    if (h.codec == transport::kPlainIds) {
      const ConstBytes raw = std::as_bytes(std::span<const uint64_t>(ids));
      bytes.assign(raw.begin(), raw.end());
    } else if (!ids.empty()) {
      EXPECT_TRUE(compression::PackIds(ids, &bytes).ok());
    }
    h.total_bytes = h.payload_bytes = static_cast<uint32_t>(bytes.size());
    s_.Deliver(rank + 1, h, bytes);
  }
  Floats Read(const Ids& ids, uint64_t round = 0) {
    Pull(0, round, ids, 1000 + ++reads_);
    const SentFrame value = s_.TakeOne(0);
    EXPECT_EQ(value.header.type, FrameType::kValue);
    EXPECT_EQ(value.header.aux64, 1000 + reads_);
    return value.Floats();
  }

  CoreHarness s_;
  uint64_t reads_ = 0;
};

TEST_F(TableTest, ARoundClosesWithTheLastRankAndEveryRowIsUpdatedOnce) {
  Begin("workers: 3 reduction: REDUCTION_SUM");
  Push(0, 0, {4, 9}, {1, 2, 3, 4});
  Push(2, 0, {}, {});
  EXPECT_TRUE(s_.Take(0).empty());
  EXPECT_EQ(Read({4}), (Floats{0, 0})) << "the round is open";
  Push(1, 0, {9, 11}, {10, 20, 5, 6});
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const SentFrame answer = s_.TakeOne(rank);
    EXPECT_EQ(answer.header.type, FrameType::kApplied);
    EXPECT_EQ(answer.header.round, 0u);
    EXPECT_EQ(answer.header.aux, 3u);
  }
  EXPECT_EQ(Read({4, 9, 11, 12}, 1), (Floats{-1, -2, -13, -24, -5, -6, 0, 0}));
  ASSERT_EQ(s_.observed.rounds.size(), 1u);
  EXPECT_EQ(s_.observed.rounds[0].record.contributors, (std::vector<uint32_t>{0, 1, 2}));
}

TEST_F(TableTest, TheMeanIsOverAllContributorsAlsoThoseWithoutTheRow) {
  Begin("workers: 4");
  Push(3, 0, {4}, {8, 4});
  for (uint32_t rank = 0; rank < 3; ++rank) Push(rank, 0, {}, {});
  s_.Take(0);
  EXPECT_EQ(Read({4}), (Floats{-2, -1}));
}

TEST_F(TableTest, SumsGoInOrderOfRankWhateverTheOrderOfArrival) {
  // In fp32 (1e8 + 1) - 1e8 is 0 and (1e8 - 1e8) + 1 is 1.
  Begin("workers: 3 reduction: REDUCTION_SUM", "optimizer { kind: 'sgd' rate: 1 }", 1);
  Push(2, 0, {4}, {-1e8f});
  Push(0, 0, {4}, {1e8f});
  Push(1, 0, {4}, {1});
  s_.Take(0);
  EXPECT_EQ(Read({4}), (Floats{0}));
  Push(1, 1, {4}, {1});
  Push(2, 1, {4}, {-1e8f});
  Push(0, 1, {4}, {1e8f});
  s_.Take(0);
  EXPECT_EQ(Read({4}), (Floats{0}));
}

TEST_F(TableTest, ARepeatIsAnsweredAndNotApplied) {
  Begin("workers: 1");
  Push(0, 0, {4}, {1, 1});
  EXPECT_EQ(s_.TakeOne(0).header.type, FrameType::kApplied);
  Push(0, 0, {4}, {1, 1}, 2);
  const SentFrame again = s_.TakeOne(0);
  EXPECT_EQ(again.header.type, FrameType::kApplied);
  EXPECT_EQ(again.header.flags, 0);
  EXPECT_EQ(Read({4}), (Floats{-1, -1}));
  Push(0, 5, {4}, {1, 1});
  EXPECT_EQ(s_.TakeOne(0).header.aux, static_cast<uint32_t>(RetryReason::kBusy));
  EXPECT_EQ(s_.core->stats().duplicates, 1u);
}

TEST_F(TableTest, ARankThatHasContributedIsToldSo) {
  Begin("workers: 2");
  Push(0, 0, {4}, {1, 1});
  Push(0, 0, {4}, {1, 1}, 2);
  const SentFrame state = s_.TakeOne(0);
  EXPECT_EQ(state.header.type, FrameType::kState);
  EXPECT_EQ(state.header.aux, static_cast<uint32_t>(PushState::kReceived));
  EXPECT_NE(s_.core->stats().waiting_for.find("users"), std::string::npos) << s_.core->stats().waiting_for;
}

TEST_F(TableTest, APullWaitsForItsRound) {
  Begin("workers: 2 reduction: REDUCTION_SUM");
  Push(0, 0, {4}, {1, 1});
  Pull(0, 1, {4, 5}, 7);
  Pull(0, 1, {4, 5}, 7);   // a repeat takes its place
  Pull(0, 1, {5}, 8);
  EXPECT_TRUE(s_.Take(0).empty());
  Push(1, 0, {5}, {2, 2});
  std::vector<SentFrame> frames = s_.Take(0);
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0].header.type, FrameType::kApplied);
  EXPECT_EQ(frames[1].header.aux64, 7u);
  EXPECT_EQ(frames[1].Floats(), (Floats{-1, -1, -2, -2}));
  EXPECT_EQ(frames[1].header.round, 1u);
  EXPECT_EQ(frames[2].Floats(), (Floats{-2, -2}));
}

// Ids that follow each other pack into less than a byte each: they were refused as more rows than the request had bytes.
TEST_F(TableTest, APullOfConsecutiveIdsIsAnswered) {
  Begin("workers: 1");
  Ids ids;
  for (uint64_t id = 0; ids.size() < 500; ++id)
    if (compression::SegmentOf(id, 1) == 0) ids.push_back(id);
  for (uint64_t request : {1u, 2u}) {   // packed, plain
    Pull(0, 0, ids, request);
    const SentFrame value = s_.TakeOne(0);
    ASSERT_EQ(value.header.type, FrameType::kValue) << value.Text();
    EXPECT_EQ(value.Floats().size(), 2 * ids.size());
  }
}

TEST_F(TableTest, AdmissionNamesTheOpenRoundAndWhetherThisRankIsInIt) {
  Begin("workers: 2");
  Push(0, 0, {4}, {1, 1});
  Pull(0, 0, {}, 3, transport::kFlagAdmit);
  const SentFrame value = s_.TakeOne(0);
  EXPECT_EQ(value.header.type, FrameType::kValue);
  EXPECT_EQ(value.header.round, 0u);
  EXPECT_EQ(value.header.flags, kFlagContributed);
  EXPECT_TRUE(value.payload.empty());
}

TEST_F(TableTest, ParkedPullsOfOneRankAreBounded) {
  Begin("workers: 1");
  for (uint64_t request = 1; request <= 257; ++request) Pull(0, 1, {4}, request);
  const SentFrame busy = s_.TakeOne(0);
  EXPECT_EQ(busy.header.type, FrameType::kRetry);
  EXPECT_EQ(busy.header.aux64, 257u);
}

TEST_F(TableTest, AspAppliesOnArrivalAndSspHoldsTheAnswer) {
  Begin("workers: 2 mode: MODE_SSP staleness: 1 optimizer { kind: 'sgd' }");
  Push(0, 0, {4}, {1, 1});
  EXPECT_EQ(s_.TakeOne(0).header.type, FrameType::kApplied);
  Push(0, 1, {4}, {1, 1});
  EXPECT_TRUE(s_.Take(0).empty()) << "rank 1 is two rounds behind";
  EXPECT_EQ(Read({4}, 2), (Floats{-2, -2})) << "it is applied all the same";
  Push(1, 0, {4}, {10, 10});
  EXPECT_EQ(s_.TakeOne(1).header.type, FrameType::kApplied);
  EXPECT_EQ(s_.TakeOne(0).header.round, 1u);
  EXPECT_EQ(Read({4}, 2), (Floats{-12, -12}));
  EXPECT_EQ(s_.observed.rounds.size(), 3u);
}

TEST_F(TableTest, TheRateFollowsTheScheduleOfTheJobAsAFactor) {
  Begin("workers: 1 optimizer { kind: 'sgd' rate: 10 schedule: 'step' step_rounds: 1 step_factor: 0.5 }",
        "optimizer { kind: 'sgd' rate: 4 }", 1);
  for (uint64_t round = 0; round < 3; ++round) Push(0, round, {1}, {1});
  s_.Take(0);
  EXPECT_EQ(Read({1}), (Floats{-7}));   // 4 + 2 + 1
}

TEST_F(TableTest, WhatCannotBeEndsTheLinkOrIsRefusedByName) {
  Begin("workers: 1", "vocabulary: 100", 2, 4);
  const auto refused = [&](const FrameHeader& header, ConstBytes bytes) {
    s_.Deliver(1, header, bytes);
    const std::vector<SentFrame> frames = s_.Take(0);
    return frames.empty() ? std::string("nothing") : frames.back().Text();
  };
  Ids mine;
  for (uint64_t id = 0; mine.size() < 2; ++id)
    if (compression::SegmentOf(id, 4) == 0) mine.push_back(id);
  uint64_t other = 0, beyond = 100;
  while (compression::SegmentOf(other, 4) == 0) ++other;
  while (compression::SegmentOf(beyond, 4) != 0) ++beyond;
  const auto push = [&](const Ids& ids, size_t rows, size_t values) {
    FrameHeader h = PushHeader(0, 0, rows);
    const std::vector<std::byte> bytes = Rows(ids, Floats(values, 1.0f));
    h.total_bytes = h.payload_bytes = static_cast<uint32_t>(bytes.size());
    return refused(h, bytes);
  };
  EXPECT_NE(push({other}, 1, 2).find("is of segment"), std::string::npos);
  EXPECT_NE(push({beyond}, 1, 2).find("vocabulary"), std::string::npos);
  EXPECT_NE(push({mine[0]}, 2, 2).find("users"), std::string::npos);       // fewer rows than the header says
  EXPECT_NE(push({mine[0]}, 1, 1).find("users"), std::string::npos);       // half a row
  EXPECT_EQ(s_.core->stats().contributions, 0u);
  EXPECT_TRUE(s_.endpoint.closed.empty());
  FrameHeader assign = PushHeader(0, 0, 1);
  assign.flags = transport::kFlagAssign;
  EXPECT_NE(refused(assign, {}).find("it is a table"), std::string::npos);
  EXPECT_FALSE(s_.endpoint.closed.empty());
}

}  // namespace
}  // namespace sluice::server
