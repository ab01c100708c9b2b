// What a BSP owner answers to a request: repeats, fencing, terms, what no correct worker sends, pulls, grants.

#include "server/testing/core_harness.h"

namespace sluice::server {
namespace {

using transport::kFlagAdmit;
using transport::kFlagContributed;

FrameHeader PullHeader(uint32_t rank, uint64_t round, uint16_t flags = 0, uint64_t request = 1) {
  FrameHeader h = CoreHarness::HeaderOf({.rank = rank, .round = round, .flags = flags});
  h.type = FrameType::kPull;
  h.aux64 = request;
  return h;
}

// --- deduplication, fencing, terms

TEST(BspAdmissionTest, RepeatOfTheOpenRoundIsReceivedAndMovesTheAnswer) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2"));
  s.Send({.rank = 0, .values = {1, 1, 1, 1}});
  s.core->OnUp(50, {.role = transport::PeerRole::kWorker, .job = 1, .job_uid = 77, .index = 0, .incarnation = 10});
  s.core->OnDown(1, absl::UnavailableError("cut"));
  s.Send({.rank = 0, .values = {1, 1, 1, 1}, .attempt = 2, .link = 50});
  s.core->OnTurnEnd();
  auto frames = s.endpoint.Take(50);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].header.type, FrameType::kState);
  EXPECT_EQ(frames[0].header.aux, static_cast<uint32_t>(transport::PushState::kReceived));
  s.Send({.rank = 1, .values = {3, 3, 3, 3}});
  s.core->OnTurnEnd();
  frames = s.endpoint.Take(50);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].Floats(), (std::vector<float>{2, 2, 2, 2}));
  EXPECT_EQ(s.observed.contributions.size(), 2u);
}

TEST(BspAdmissionTest, AppliedRoundIsAnsweredAgainFromTheLastReply) {
  CoreHarness s;
  s.Start(OnePartition("workers: 1 optimizer { kind: 'sgd' rate: 1 }", 1));
  s.Send({.values = {1}});
  EXPECT_EQ(s.TakeOne(0).Floats(), (std::vector<float>{-1}));
  s.Send({.values = {1}, .attempt = 2});
  SentFrame again = s.TakeOne(0);
  EXPECT_EQ(again.Floats(), (std::vector<float>{-1}));
  EXPECT_EQ(again.header.flags, 0);
  EXPECT_EQ(again.header.attempt, 2u);
  EXPECT_EQ(s.observed.rounds.size(), 1u);
  EXPECT_EQ(s.core->stats().duplicates, 1u);
}

TEST(BspAdmissionTest, RoundAheadIsBusy) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2"));
  s.Send({.round = 1, .values = {1, 1, 1, 1}});
  const SentFrame retry = s.TakeOne(0);
  EXPECT_EQ(retry.header.type, FrameType::kRetry);
  EXPECT_EQ(retry.header.aux, static_cast<uint32_t>(transport::RetryReason::kBusy));
}

TEST(BspAdmissionTest, OldIncarnationIsFencedAndNewerOneAsksForThePlan) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2"));
  s.Send({.values = {1, 1, 1, 1}, .incarnation = 9});
  SentFrame frame = s.TakeOne(0);
  EXPECT_EQ(frame.header.type, FrameType::kError);
  EXPECT_EQ(frame.header.status, static_cast<uint16_t>(absl::StatusCode::kAborted));
  EXPECT_NE(frame.Text().find("rank 0 was taken over by incarnation 10"), std::string::npos) << frame.Text();
  EXPECT_EQ(s.plan_requests, 0);
  s.Send({.values = {1, 1, 1, 1}, .incarnation = 11});
  frame = s.TakeOne(0);
  EXPECT_EQ(frame.header.aux, static_cast<uint32_t>(transport::RetryReason::kIncarnation));
  EXPECT_EQ(s.plan_requests, 1);
}

TEST(BspAdmissionTest, ANewLifeTakesOverWithoutLosingItsOldContribution) {
  CoreHarness s;
  proto::Plan plan = OnePartition("workers: 2");
  s.Start(plan);
  s.Send({.rank = 0, .values = {1, 1, 1, 1}});
  plan.set_version(2);
  plan.mutable_workers(0)->set_incarnation(11);
  s.core->OnPlan(plan);
  s.Send({.rank = 0, .values = {1, 1, 1, 1}, .incarnation = 11});
  EXPECT_EQ(s.TakeOne(0).header.type, FrameType::kState);
  s.Send({.rank = 1, .values = {3, 3, 3, 3}});
  const SentFrame reply = s.TakeOne(0);
  EXPECT_EQ(reply.Floats(), (std::vector<float>{2, 2, 2, 2}));
  EXPECT_EQ(reply.header.incarnation, 11u);
}

TEST(BspAdmissionTest, TermsAreAnsweredByRetry) {
  CoreHarness s;
  proto::Plan plan = OnePartition("workers: 1");
  plan.mutable_shards(0)->set_term(5);
  s.Start(plan);
  s.Send({.values = {1, 1, 1, 1}, .term = 4});
  SentFrame frame = s.TakeOne(0);
  EXPECT_EQ(frame.header.aux, static_cast<uint32_t>(transport::RetryReason::kTerm));
  EXPECT_EQ(frame.header.term, 5u);
  EXPECT_EQ(s.plan_requests, 0);
  s.Send({.values = {1, 1, 1, 1}, .term = 6});
  EXPECT_EQ(s.TakeOne(0).header.aux, static_cast<uint32_t>(transport::RetryReason::kPlan));
  EXPECT_EQ(s.plan_requests, 1);
}

TEST(BspAdmissionTest, UnknownJobAndPartitionAskForThePlan) {
  CoreHarness s;
  s.WorkerUp(0);
  s.Send({.values = {1, 1, 1, 1}});
  EXPECT_EQ(s.TakeOne(0).header.aux, static_cast<uint32_t>(transport::RetryReason::kPlan));
  EXPECT_EQ(s.plan_requests, 1);
  s.core->OnPlan(OnePartition("workers: 1"));
  s.clock.Advance(kSecond);
  s.Send({.partition = 7, .values = {1, 1, 1, 1}});
  EXPECT_EQ(s.TakeOne(0).header.aux, static_cast<uint32_t>(transport::RetryReason::kPlan));
  EXPECT_EQ(s.plan_requests, 2);
}

// --- what no correct worker sends

void ExpectEnded(CoreHarness& s, absl::StatusCode code, const std::string& text) {
  const SentFrame error = s.TakeOne(0);
  EXPECT_EQ(error.header.type, FrameType::kError);
  EXPECT_EQ(error.header.status, static_cast<uint16_t>(code)) << error.Text();
  EXPECT_NE(error.Text().find(text), std::string::npos) << error.Text();
  EXPECT_TRUE(s.endpoint.closed.contains(1));
  EXPECT_TRUE(s.observed.contributions.empty());
}

TEST(BspAdmissionTest, WrongSizesEndTheLink) {
  {
    CoreHarness s;
    s.Start(OnePartition("workers: 1"));
    s.Send({.values = {1, 1, 1}});
    ExpectEnded(s, absl::StatusCode::kInvalidArgument, "3 elements; the plan has 4");
    s.Send({.values = {1, 1, 1, 1}});   // nothing more is heard from it
    EXPECT_TRUE(s.Take(0).empty());
  }
  {
    CoreHarness s;
    s.Start(OnePartition("workers: 1"));
    s.Send({.values = {1, 1, 1, 1, 1, 1}, .elements = 4});
    ExpectEnded(s, absl::StatusCode::kInvalidArgument, "24 bytes");
  }
  {
    CoreHarness s;
    s.Start(OnePartition("workers: 1"));
    s.Send({.values = {1, 1, 1, 1}, .tensor = 3});
    ExpectEnded(s, absl::StatusCode::kInvalidArgument, "tensor 'w' partition 0");
  }
  {
    CoreHarness s;
    s.Start(OnePartition("workers: 1"));
    FrameHeader h = CoreHarness::HeaderOf({.values = {1, 1, 1, 1}});
    h.codec = 999;
    h.payload_bytes = 16;
    h.total_bytes = 16;
    s.Deliver(1, h, std::vector<std::byte>(16));
    ExpectEnded(s, absl::StatusCode::kInvalidArgument, "codec 999");
  }
}

TEST(BspAdmissionTest, AWorkerSpeaksOnlyForItself) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2"));
  s.Send({.rank = 1, .values = {1, 1, 1, 1}, .link = 1});
  ExpectEnded(s, absl::StatusCode::kInvalidArgument, "came as rank 0");
}

TEST(BspAdmissionTest, WorkersSendNoVerdicts) {
  CoreHarness s;
  s.Start(OnePartition("workers: 1 optimizer { clip_norm: 1 }"));
  FrameHeader h;
  h.type = FrameType::kVerdict;
  h.job = 1;
  s.Deliver(1, h, {});
  ExpectEnded(s, absl::StatusCode::kPermissionDenied, "no server");
}

TEST(BspAdmissionTest, InvalidPayloadNamesTensorPartitionAndRank) {
  CoreHarness s;
  s.Start(OnePartition("workers: 1"));
  FrameHeader h = CoreHarness::HeaderOf({.values = {1, 1, 1, 1}});
  const std::vector<std::byte> garbage(6, std::byte{0xFF});
  h.codec = static_cast<uint16_t>(compression::CodecId::kFp16);
  h.payload_bytes = 6;
  h.total_bytes = 6;
  s.Deliver(1, h, garbage);
  const SentFrame error = s.TakeOne(0);
  EXPECT_EQ(error.header.status, static_cast<uint16_t>(absl::StatusCode::kDataLoss));
  EXPECT_NE(error.Text().find("rank 0 for round 0 of tensor 'w' partition 0"), std::string::npos) << error.Text();
  s.Send({.values = {1, 1, 1, 1}, .attempt = 2});
  EXPECT_EQ(s.TakeOne(0).header.type, FrameType::kReply);
}

// --- pulls

TEST(BspAdmissionTest, PullWaitsForItsRound) {
  CoreHarness s;
  s.Start(OnePartition("workers: 1 optimizer { kind: 'sgd' rate: 1 }", 1));
  s.Deliver(1, PullHeader(0, 1, 0, 5), {});
  EXPECT_TRUE(s.Take(0).empty());
  s.Deliver(1, PullHeader(0, 1, 0, 6), {});   // asked again: takes the place of the first
  s.Send({.values = {2}});
  const std::vector<SentFrame> frames = s.Take(0);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].header.type, FrameType::kReply);
  EXPECT_EQ(frames[1].header.type, FrameType::kValue);
  EXPECT_EQ(frames[1].header.aux64, 6u);
  EXPECT_EQ(frames[1].header.round, 1u);
  EXPECT_EQ(frames[1].Floats(), (std::vector<float>{-2}));
}

TEST(BspAdmissionTest, AdmitComesAtOnceAndSaysWhetherTheRankHasContributed) {
  CoreHarness s;
  s.Start(OnePartition("workers: 2"));
  s.Deliver(1, PullHeader(0, 99, kFlagAdmit), {});
  SentFrame value = s.TakeOne(0);
  EXPECT_EQ(value.header.type, FrameType::kValue);
  EXPECT_EQ(value.header.round, 0u);
  EXPECT_FALSE(value.header.has(kFlagContributed));
  s.Send({.rank = 0, .values = {1, 1, 1, 1}});
  s.Deliver(1, PullHeader(0, 99, kFlagAdmit, 2), {});
  value = s.TakeOne(0);
  EXPECT_TRUE(value.header.has(kFlagContributed));
}

// --- grants

TEST(BspAdmissionTest, AnnouncedPushIsGrantedAndAssembled) {
  CoreHarness s;
  const size_t n = 8192;
  s.Start(OnePartition("workers: 1 optimizer { kind: 'sgd' rate: 1 }", n));
  std::vector<float> values(n, 2.0f);
  FrameHeader h = CoreHarness::HeaderOf({.values = values});
  h.type = FrameType::kAnnounce;
  h.total_bytes = n * sizeof(float);
  s.Deliver(1, h, {});
  const SentFrame grant = s.TakeOne(0);
  ASSERT_EQ(grant.header.type, FrameType::kGrant);
  MutableBytes slot = s.endpoint.slots.at(grant.header.slot);
  h.type = FrameType::kPush;
  h.slot = grant.header.slot;
  for (size_t offset : {size_t{16384}, size_t{0}}) {
    std::memcpy(slot.data() + offset, reinterpret_cast<const std::byte*>(values.data()) + offset, 16384);
    h.stripe_offset = offset;
    h.payload_bytes = 16384;
    s.core->OnFrame(1, h, transport::Payload(slot.subspan(offset, 16384), nullptr));
  }
  s.core->OnTurnEnd();
  EXPECT_EQ(s.Take(0).at(0).header.type, FrameType::kReply);
  EXPECT_EQ(s.observed.rounds[0].value, std::vector<float>(n, -2.0f));
  EXPECT_EQ(s.core->stats().pool_used, 0u);
}

TEST(BspAdmissionTest, EarlyRanksWaitEncodedInThePool) {
  CoreHarness s;
  s.Start(OnePartition("workers: 3", 1024));
  const std::vector<float> values(1024, 1.0f);
  s.Send({.rank = 2, .values = values});
  s.Send({.rank = 1, .values = values});
  EXPECT_GT(s.core->stats().pool_used, 0u);
  s.Send({.rank = 0, .values = values});
  EXPECT_EQ(s.core->stats().pool_used, 0u);
  EXPECT_EQ(s.TakeOne(2).Floats(), values);
}

}  // namespace
}  // namespace sluice::server
