// BSP rounds of one lane: order, replies, broadcasts, changes, skips, lent memory.

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "server/testing/core_harness.h"

namespace sluice::server {
namespace {

using transport::kFlagAssign;
using transport::kFlagChange;
using transport::kFlagEmpty;
using transport::kFlagNonfinite;
using transport::kFlagNoReply;
using transport::kFlagSkipped;

FrameHeader PullHeader(uint32_t rank, uint64_t round, uint16_t flags = 0, uint64_t request = 1) {
  FrameHeader h = CoreHarness::HeaderOf({.rank = rank, .round = round, .flags = flags});
  h.type = FrameType::kPull;
  h.aux64 = request;
  return h;
}

TEST(BspTest, MeanOfTwoRanksGoesToBoth) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2"));
  s.Send({.rank = 0, .values = {1, 2, 3, 4}});
  EXPECT_TRUE(s.Take(0).empty());
  s.Send({.rank = 1, .values = {3, 2, 1, 0}});
  for (uint32_t rank : {0u, 1u}) {
    const SentFrame reply = s.TakeOne(rank);
    EXPECT_EQ(reply.header.type, FrameType::kReply);
    EXPECT_EQ(reply.header.rank, rank);
    EXPECT_EQ(reply.header.round, 0u);
    EXPECT_EQ(reply.header.aux, 2u);
    EXPECT_EQ(reply.header.flags, 0);
    EXPECT_EQ(reply.Floats(), (std::vector<float>{2, 2, 2, 2}));
  }
  ASSERT_EQ(s.observed.rounds.size(), 1u);
  EXPECT_EQ(s.observed.rounds[0].record.contributors, (std::vector<uint32_t>{0, 1}));
  EXPECT_TRUE(s.observed.rounds[0].reply.empty());
  EXPECT_EQ(s.core->stats().rounds_applied, 1u);
}

TEST(BspTest, SumAndNoReply) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2 reduction: REDUCTION_SUM"));
  s.Send({.rank = 0, .values = {1, 2, 3, 4}, .flags = kFlagNoReply});
  s.Send({.rank = 1, .values = {3, 2, 1, 0}});
  EXPECT_EQ(s.TakeOne(0).header.type, FrameType::kApplied);
  EXPECT_EQ(s.TakeOne(1).Floats(), (std::vector<float>{4, 4, 4, 4}));
}

// Every order of arrival, order of summation and codec against the obvious reference.
TEST(BspTest, OrdersAndCodecsEqualTheReference) {
  constexpr uint32_t kRanks = 3;
  constexpr size_t kElements = 300;
  for (const char* order : {"ORDER_RANK", "ORDER_EXACT", "ORDER_FAST"}) {
    for (const char* codec : {"none", "fp16", "bf16", "int8", "topk:0.1"}) {
      std::vector<uint32_t> arrival = {0, 1, 2};
      std::vector<float> exact_result;
      do {
        SCOPED_TRACE(testing::Message() << order << " " << codec << " first " << arrival[0] << arrival[1]);
        CoreHarness s;
        s.Start(OnePartition(absl::StrCat("workers: 3 reduction: REDUCTION_SUM order: ", order, " codec: 'int8'"),
                             kElements));
        PhiloxRandom random(5);
        std::vector<std::vector<float>> pushed(kRanks, std::vector<float>(kElements));
        for (auto& values : pushed) {
          for (float& v : values) v = std::ldexp(random.Uniform() - 0.5f, static_cast<int>(random.Below(12)));
        }
        for (uint32_t rank : arrival) s.Send({.rank = rank, .values = pushed[rank], .codec = codec});
        const std::vector<float> got = s.TakeOne(2).Floats();
        std::vector<uint32_t> sequence = std::string(order) == "ORDER_FAST" ? arrival : std::vector<uint32_t>{0, 1, 2};
        EXPECT_EQ(s.observed.rounds.at(0).record.contributors, sequence);
        std::vector<float> expected(kElements);
        std::vector<double> wide(kElements, 0.0);
        for (size_t i = 0; i < sequence.size(); ++i) {
          const std::vector<std::byte> bytes = CoreHarness::Encode(codec, pushed[sequence[i]]);
          const auto decoder = compression::MakeCodec(codec);
          std::vector<float> decoded(kElements);
          ASSERT_TRUE((*decoder)->Decode(bytes, decoded).ok());
          for (size_t e = 0; e < kElements; ++e) {
            expected[e] = i == 0 ? decoded[e] : expected[e] + decoded[e];
            wide[e] += decoded[e];
          }
        }
        if (std::string(order) != "ORDER_EXACT") {
          EXPECT_EQ(got, expected);
        } else {
          // Three values of 24 bits over 12 binary orders are summed in fp64 without a rounding.
          for (size_t e = 0; e < kElements; ++e) ASSERT_EQ(got.at(e), static_cast<float>(wide[e])) << e;
          if (exact_result.empty()) exact_result = got;
          EXPECT_EQ(got, exact_result);
        }
      } while (std::next_permutation(arrival.begin(), arrival.end()));
    }
  }
}

TEST(BspTest, FirstContributionIsAssignedSoNegativeZeroLives) {
  CoreHarness s;
  s.Start(OnePartition("workers: 1", 1));
  s.Send({.values = {-0.0f}});
  EXPECT_TRUE(std::signbit(s.TakeOne(0).Floats().at(0)));
}

TEST(BspTest, OptimizerRepliesParametersAndTheNextRate) {
  CoreHarness s;
  s.Start(OnePartition("workers: 1 optimizer { kind: 'sgd' rate: 0.5 schedule: 'step' step_rounds: 1 step_factor: 0.5 }", 2));
  s.Send({.values = {1, -2}});
  SentFrame reply = s.TakeOne(0);
  EXPECT_EQ(reply.Floats(), (std::vector<float>{-0.5f, 1.0f}));
  EXPECT_EQ(reply.header.rate_bits, std::bit_cast<uint32_t>(0.25f));
  s.Send({.round = 1, .values = {4, 4}});
  EXPECT_EQ(s.TakeOne(0).Floats(), (std::vector<float>{-1.5f, 0.0f}));
  EXPECT_EQ(s.observed.rounds[1].record.rate_bits, std::bit_cast<uint32_t>(0.25f));
}

TEST(BspTest, AggregateReplyBesideAnOptimizerIsRecorded) {
  CoreHarness s;
  s.Start(OnePartition("workers: 1 reply: REPLY_AGGREGATE optimizer { kind: 'sgd' rate: 1 }", 1));
  s.Send({.values = {3}});
  EXPECT_EQ(s.TakeOne(0).Floats(), (std::vector<float>{3}));
  EXPECT_EQ(s.observed.rounds[0].value, (std::vector<float>{-3}));
  EXPECT_EQ(s.observed.rounds[0].reply.size(), 4u);
}

// --- broadcasts

TEST(BspTest, BroadcastAssignsAndIsNoStep) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2 optimizer { kind: 'sgd' rate: 1 schedule: 'step' step_rounds: 1 step_factor: 0.5 }", 2));
  s.Send({.rank = 1, .flags = kFlagEmpty, .elements = 2});
  s.Send({.rank = 0, .values = {5, 6}, .flags = kFlagAssign});
  for (uint32_t rank : {0u, 1u}) {
    const SentFrame reply = s.TakeOne(rank);
    EXPECT_EQ(reply.Floats(), (std::vector<float>{5, 6}));
    EXPECT_EQ(reply.header.rate_bits, std::bit_cast<uint32_t>(1.0f));
    EXPECT_EQ(reply.header.aux, 2u);
  }
  EXPECT_TRUE(s.observed.rounds[0].record.assigned);
  for (uint32_t rank : {0u, 1u}) s.Send({.rank = rank, .round = 1, .values = {1, 1}});
  EXPECT_EQ(s.TakeOne(0).Floats(), (std::vector<float>{4, 5}));
  EXPECT_EQ(s.observed.rounds[1].record.rate_bits, std::bit_cast<uint32_t>(1.0f));
}

TEST(BspTest, BroadcastAndGradientDoNotMix) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2"));
  s.Send({.rank = 0, .values = {1, 1, 1, 1}, .flags = kFlagAssign});
  s.Send({.rank = 1, .values = {1, 1, 1, 1}});
  const SentFrame error = s.TakeOne(1);
  EXPECT_EQ(error.header.status, static_cast<uint16_t>(absl::StatusCode::kFailedPrecondition));
  EXPECT_NE(error.Text().find("rank 1 pushes a gradient to round 0 of tensor 'w' partition 0 (job-wide 0), and rank 0 "
                              "broadcasts it"), std::string::npos) << error.Text();
  s.Send({.rank = 1, .values = {2, 2, 2, 2}, .flags = kFlagAssign, .attempt = 2});
  EXPECT_NE(s.TakeOne(1).Text().find("both broadcast as root"), std::string::npos);
  s.Send({.rank = 1, .flags = kFlagEmpty, .attempt = 3});
  EXPECT_EQ(s.TakeOne(1).Floats(), (std::vector<float>{1, 1, 1, 1}));
}

TEST(BspTest, BroadcastWithoutARootAppliesNothing) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2 optimizer { kind: 'sgd' rate: 1 }"));
  s.Send({.rank = 0, .flags = kFlagEmpty});
  s.Send({.rank = 1, .flags = kFlagEmpty});
  const SentFrame reply = s.TakeOne(0);
  EXPECT_TRUE(reply.header.has(kFlagSkipped));
  EXPECT_EQ(reply.Floats(), (std::vector<float>{0, 0, 0, 0}));
}

// --- change replies

TEST(BspTest, ReplicasFollowTheServersResidual) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2 reply: REPLY_CHANGE reply_codec: 'int8' codec_min_elements: 1 "
                       "optimizer { kind: 'momentum' rate: 0.1 }", 64));
  std::vector<float> initial(64, 0.25f);
  s.Send({.rank = 0, .values = initial, .flags = kFlagAssign});
  s.Send({.rank = 1, .flags = kFlagEmpty, .elements = 64});
  SentFrame first = s.TakeOne(0);
  EXPECT_FALSE(first.header.has(kFlagChange));
  EXPECT_EQ(first.Floats(), initial);
  s.Take(1);
  std::vector<float> replica = initial;
  PhiloxRandom random(3);
  for (uint64_t round = 1; round < 20; ++round) {
    std::vector<std::vector<std::byte>> payloads;
    for (uint32_t rank : {0u, 1u}) {
      std::vector<float> gradient(64);
      for (float& g : gradient) g = random.Uniform() - 0.5f;
      s.Send({.rank = rank, .round = round, .values = gradient});
    }
    for (uint32_t rank : {0u, 1u}) {
      const SentFrame reply = s.TakeOne(rank);
      EXPECT_TRUE(reply.header.has(kFlagChange));
      payloads.push_back(reply.payload);
      EXPECT_EQ(reply.header.codec, static_cast<uint16_t>(compression::CodecId::kInt8));
    }
    EXPECT_EQ(payloads[0], payloads[1]);
    EXPECT_EQ(s.observed.rounds.back().reply, payloads[0]);
    ASSERT_TRUE(compression::DecoderFor(static_cast<uint16_t>(compression::CodecId::kInt8))
                    ->DecodeAdd(payloads[0], replica).ok());
    // A laggard pulls y, to the bit; and what is lost in a round comes in the next.
    s.Deliver(1, PullHeader(0, round + 1, 0, round), {});
    EXPECT_EQ(s.TakeOne(0).Floats(), replica);
    const std::vector<float>& x = s.observed.rounds.back().value;
    for (size_t i = 0; i < 64; ++i) ASSERT_NEAR(replica[i], x[i], 0.01f);
  }
}

TEST(BspTest, ExemptTensorsGoWholeInChangeMode) {
  CoreHarness s;
  s.Start(PlanBuilder("workers: 1 reply: REPLY_CHANGE optimizer { kind: 'sgd' rate: 1 }")
              .Server("s0").Tensor("bias", {2}, proto::TENSOR_BIAS).plan);
  s.Send({.values = {1, 2}});
  const SentFrame reply = s.TakeOne(0);
  EXPECT_FALSE(reply.header.has(kFlagChange));
  EXPECT_EQ(reply.Floats(), (std::vector<float>{-1, -2}));
}

// --- skips

TEST(BspTest, OverflowSkipsThePartitionsRound) {
  constexpr size_t kElements = 40000;   // several pieces of the last addition
  for (const size_t at : {size_t{0}, kElements - 1}) {
    CoreHarness s;
    s.Start(OnePartition("workers: 2 reduction: REDUCTION_SUM optimizer { kind: 'sgd' rate: 1 }", kElements));
    std::vector<float> large(kElements, 0.0f);
    large[at] = 3e38f;
    for (uint32_t rank : {0u, 1u}) s.Send({.rank = rank, .values = large});
    const SentFrame reply = s.TakeOne(0);
    EXPECT_TRUE(reply.header.has(kFlagSkipped));
    EXPECT_EQ(reply.Floats(), std::vector<float>(kElements, 0.0f));
    EXPECT_EQ(s.core->stats().rounds_skipped, 1u);
    EXPECT_TRUE(s.observed.rounds[0].record.skipped);
    for (uint32_t rank : {0u, 1u}) s.Send({.rank = rank, .round = 1, .values = std::vector<float>(kElements, 1.0f)});
    s.Take(1);
    EXPECT_EQ(s.TakeOne(0).Floats(), std::vector<float>(kElements, -2.0f));
  }
}

TEST(BspTest, PiecesOfTheLastAdditionCoverTheWholePartition) {
  constexpr size_t kElements = 40001;
  for (const uint32_t last : {0u, 1u, 2u}) {
    CoreHarness s;
    s.Start(OnePartition("workers: 3", kElements));
    std::vector<std::vector<float>> pushed(3, std::vector<float>(kElements));
    PhiloxRandom random(last);
    for (auto& values : pushed) {
      for (float& v : values) v = random.Uniform() - 0.5f;
    }
    std::vector<float> expected(kElements);
    for (size_t e = 0; e < kElements; ++e) expected[e] = ((pushed[0][e] + pushed[1][e]) + pushed[2][e]) / 3.0f;
    for (uint32_t rank : {0u, 1u, 2u}) {
      if (rank != last) s.Send({.rank = rank, .values = pushed[rank]});
    }
    s.Send({.rank = last, .values = pushed[last]});
    EXPECT_EQ(s.TakeOne(1).Floats(), expected);
  }
}

TEST(BspTest, NonfiniteFlagSkipsWithoutAPayload) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2"));
  s.Send({.rank = 0, .values = {1, 1, 1, 1}});
  s.Send({.rank = 1, .flags = kFlagNonfinite});
  const SentFrame reply = s.TakeOne(0);
  EXPECT_EQ(reply.header.type, FrameType::kApplied);   // an aggregate does not exist
  EXPECT_TRUE(reply.header.has(kFlagSkipped));
}

// --- lent memory

proto::DataConfig SmallEager() {
  proto::DataConfig data;
  data.set_stripe_bytes(16 << 10);
  return data;
}

TEST(BspTest, ALentReplyDoesNotChangeWhenTheNextRoundIsApplied) {
  CoreHarness s("s0", 0, SmallEager());
  s.endpoint.by_reference = true;
  const size_t n = 16 << 10;
  s.Start(OnePartition("workers: 1 optimizer { kind: 'sgd' rate: 1 }", n));
  s.Send({.values = std::vector<float>(n, 1.0f)});
  ASSERT_EQ(s.TakeOne(0).Floats()[0], -1.0f);
  ASSERT_EQ(s.endpoint.lent.size(), 1u);
  const uint64_t state = s.core->stats().state_bytes;
  s.Send({.round = 1, .values = std::vector<float>(n, 1.0f)});
  EXPECT_EQ(s.TakeOne(0).Floats()[0], -2.0f);
  EXPECT_EQ(s.core->stats().state_bytes, state + n * sizeof(float));   // one copy, because the first is still lent
  s.endpoint.ReleaseAll();
  for (uint64_t round = 2; round < 6; ++round) {
    s.Send({.round = round, .values = std::vector<float>(n, 1.0f)});
    s.Take(0);
    s.endpoint.ReleaseAll();
  }
  EXPECT_EQ(s.core->stats().state_bytes, state + n * sizeof(float));   // and no more
}

TEST(BspTest, LargeReplyGoesInStripesIntoTheSlot) {
  CoreHarness s("s0", 0, SmallEager());
  const size_t n = 16 << 10;
  s.Start(OnePartition("workers: 1", n));
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i);
  s.Send({.values = values, .reply_slot = 9});
  std::vector<std::byte> whole(n * sizeof(float));
  const std::vector<SentFrame> stripes = s.Take(0);
  EXPECT_EQ(stripes.size(), 4u);
  for (const SentFrame& stripe : stripes) {
    EXPECT_EQ(stripe.header.slot, 9u);
    std::copy(stripe.payload.begin(), stripe.payload.end(),
              whole.begin() + static_cast<ptrdiff_t>(stripe.header.stripe_offset));
  }
  EXPECT_EQ(std::memcmp(whole.data(), values.data(), whole.size()), 0);
  // Asked again while it is under way: no second copy.
  s.Send({.values = values, .reply_slot = 9});
  EXPECT_EQ(s.TakeOne(0).header.type, FrameType::kState);
  s.endpoint.ReleaseAll();
  s.Send({.values = values, .reply_slot = 10});
  EXPECT_EQ(s.Take(0).size(), 4u);
}

TEST(BspTest, TracesAreToldWhenAnAnswerWasQueuedBegunAndLetGoOf) {
  CoreHarness s("s0", 0, SmallEager());
  s.Start(OnePartition("workers: 2", 16 << 10));
  const std::vector<float> values(16 << 10, 1.0f);
  s.Send({.values = values, .reply_slot = 9});
  const TimeNs start = s.clock.Now();
  s.clock.Advance(5);
  s.Send({.rank = 1, .values = values, .reply_slot = 9});   // closes the round
  s.clock.Advance(7);
  EXPECT_TRUE(s.observed.answered.empty());
  s.endpoint.ReleaseAll();
  ASSERT_EQ(s.observed.answered.size(), 2u);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const auto& [header, times] = s.observed.answered[rank];
    EXPECT_EQ(header.type, FrameType::kReply);
    EXPECT_EQ(header.rank, rank);
    EXPECT_EQ(times.queued, start + 5);
    EXPECT_EQ(times.begun, start + 5);
    EXPECT_EQ(times.done, start + 12);
  }
}

// --- backup workers

constexpr const char* kOneMayMiss = "workers: 3 backup_workers: 1 optimizer { kind: 'sgd' rate: 1 }";

TEST(BspTest, TheFirstOfThemCloseARoundInOrderOfRankAndWhoIsLateIsRejected) {
  CoreHarness s;
  s.Start(OnePartition(kOneMayMiss));
  s.Send({.rank = 2, .values = {3, 3, 3, 3}});
  EXPECT_TRUE(s.observed.rounds.empty());
  s.Send({.rank = 1, .values = {1, 1, 1, 1}});
  ASSERT_EQ(s.observed.rounds.size(), 1u);
  EXPECT_EQ(s.observed.rounds[0].record.contributors, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(s.TakeOne(1).Floats(), (std::vector<float>{-2, -2, -2, -2}));
  s.Send({.rank = 0, .values = {9, 9, 9, 9}});
  const SentFrame late = s.TakeOne(0);
  EXPECT_TRUE(late.header.has(transport::kFlagRejected));
  EXPECT_EQ(late.Floats(), (std::vector<float>{-2, -2, -2, -2}));
  // It goes on with the next round, as any other.
  s.Send({.rank = 0, .round = 1, .values = {1, 1, 1, 1}});
  s.Send({.rank = 2, .round = 1, .values = {1, 1, 1, 1}});
  EXPECT_EQ(s.observed.rounds[1].record.contributors, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(s.core->stats().rejected, 1u);
}

// Told that its push was applied, it would take the new residual for true, and what a skipped step owes would be lost.
TEST(BspTest, WhoAsksForASkippedRoundLongAfterItHearsThatItWasSkipped) {
  CoreHarness s;
  s.Start(OnePartition(std::string(kOneMayMiss) + " on_nonfinite: NONFINITE_SKIP"));
  s.Send({.rank = 0, .values = {5, 5, 5, 5}});
  s.Send({.rank = 1, .flags = transport::kFlagNonfinite});
  ASSERT_EQ(s.observed.rounds.size(), 1u);
  EXPECT_TRUE(s.TakeOne(0).header.has(transport::kFlagSkipped));
  for (uint64_t round = 1; round < 4; ++round) {
    s.Send({.rank = 1, .round = round, .values = {1, 1, 1, 1}});
    s.Send({.rank = 2, .round = round, .values = {1, 1, 1, 1}});
  }
  ASSERT_EQ(s.observed.rounds.size(), 4u);
  s.Take(0);
  s.Take(1);
  s.Take(2);
  s.Send({.rank = 0, .values = {5, 5, 5, 5}});   // its answer was lost
  const SentFrame answer = s.TakeOne(0);
  EXPECT_TRUE(answer.header.has(transport::kFlagSkipped));
  EXPECT_FALSE(answer.header.has(transport::kFlagRejected));
  s.Send({.rank = 1, .round = 0, .values = {1, 1, 1, 1}});   // whose last one was applied
  EXPECT_FALSE(s.TakeOne(1).header.has(transport::kFlagSkipped));
}

TEST(BspTest, WhoIsLateGetsTheReplicaWholeAndNoChange) {
  CoreHarness s;
  s.Start(OnePartition(absl::StrCat(kOneMayMiss, " reply: REPLY_CHANGE reply_codec: 'fp16' codec_min_elements: 1")));
  for (const uint64_t round : {0, 1}) {
    for (const uint32_t rank : {1u, 2u}) s.Send({.rank = rank, .round = round, .values = {1, 1, 1, 1}});
  }
  EXPECT_TRUE(s.Take(1).back().header.has(transport::kFlagChange));
  s.Send({.rank = 0, .round = 1, .values = {9, 9, 9, 9}});
  const SentFrame late = s.TakeOne(0);
  EXPECT_FALSE(late.header.has(transport::kFlagChange));
  EXPECT_EQ(late.Floats(), (std::vector<float>{-2, -2, -2, -2}));
}

TEST(BspTest, ABroadcastNeedsEverybodyAlsoWithBackupWorkers) {
  CoreHarness s;
  s.Start(OnePartition(kOneMayMiss));
  s.Send({.rank = 0, .values = {5, 5, 5, 5}, .flags = transport::kFlagAssign});
  s.Send({.rank = 1, .flags = transport::kFlagEmpty});
  EXPECT_TRUE(s.observed.rounds.empty());
  s.Send({.rank = 2, .flags = transport::kFlagEmpty});
  EXPECT_EQ(s.observed.rounds.size(), 1u);
}

TEST(BspTest, ARoundClosesAtItsDeadlineWithThoseThatCame) {
  for (const char* order : {"ORDER_RANK", "ORDER_FAST", "ORDER_EXACT"}) {
    CoreHarness s;
    s.Start(OnePartition(absl::StrCat("workers: 3 round_deadline_ms: 50 optimizer { kind: 'sgd' rate: 1 } order: ", order)));
    s.Send({.rank = 2, .values = {3, 3, 3, 3}});
    s.clock.Advance(49 * kMillisecond);
    s.core->OnTick();
    EXPECT_TRUE(s.observed.rounds.empty());
    s.Send({.rank = 1, .values = {1, 1, 1, 1}});   // the deadline is the first one's
    s.clock.Advance(kMillisecond);
    s.core->OnTick();
    ASSERT_EQ(s.observed.rounds.size(), 1u) << order;
    EXPECT_EQ(s.TakeOne(2).Floats(), (std::vector<float>{-2, -2, -2, -2}));
    s.Send({.rank = 0, .values = {9, 9, 9, 9}});
    EXPECT_TRUE(s.TakeOne(0).header.has(transport::kFlagRejected));
    s.clock.Advance(kSecond);
    s.core->OnTick();
    EXPECT_EQ(s.observed.rounds.size(), 1u);   // a round that nobody has begun does not end
  }
}

TEST(BspTest, BackupWorkersAreRefusedWhereALateWorkerCouldNotGoOn) {
  for (const char* config : {"workers: 2 backup_workers: 1", "workers: 2 backup_workers: 1 mode: MODE_ASP optimizer { kind: 'sgd' }",
                             "workers: 2 backup_workers: 2 optimizer { kind: 'sgd' }"}) {
    CoreHarness s;
    s.Start(OnePartition(config));
    s.Send({.values = {1, 1, 1, 1}});
    EXPECT_NE(s.TakeOne(0).Text().find("job.backup_workers"), std::string::npos) << config;
  }
}

}  // namespace
}  // namespace sluice::server
