// Frames that no correct peer sends, by the thousand: the core answers or ends the link, and loses nothing of the others.

#include <algorithm>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "server/step_messages.h"
#include "server/testing/core_harness.h"

namespace sluice::server {
namespace {

class HostileFramesTest : public ::testing::TestWithParam<const char*> {};

// Small numbers most of the time, so that much of it is nearly right.
uint64_t Wild(PhiloxRandom& random) {
  switch (random.Below(8)) {
    case 0: return UINT64_MAX;
    case 1: return uint64_t{random()} << 32 | random();
    default: return random.Below(5);
  }
}

FrameHeader WildFrame(PhiloxRandom& random, std::vector<std::byte>* payload) {
  static constexpr FrameType kTypes[] = {FrameType::kAnnounce, FrameType::kPush,    FrameType::kPull, FrameType::kPartial,
                                         FrameType::kVerdict,  FrameType::kBatch,   FrameType::kError, FrameType::kReply,
                                         FrameType::kGrant,    FrameType::kApplied, FrameType::kValue, FrameType::kRetry};
  FrameHeader h;
  h.type = kTypes[random.Below(random.Chance(0.7) ? 5 : std::size(kTypes))];
  h.flags = random.Chance(0.3) ? static_cast<uint16_t>(random()) : static_cast<uint16_t>(1u << random.Below(10));
  if (random.Chance(0.5)) h.flags = 0;
  h.job = random.Chance(0.9) ? 1 : static_cast<uint32_t>(Wild(random));
  h.rank = random.Chance(0.9) ? 2 : static_cast<uint32_t>(Wild(random));
  h.incarnation = random.Chance(0.9) ? 10 : static_cast<uint32_t>(Wild(random));
  h.tensor = random.Chance(0.9) ? 0 : static_cast<uint32_t>(Wild(random));
  h.partition = static_cast<uint32_t>(random.Chance(0.9) ? random.Below(2) : Wild(random));
  h.term = random.Chance(0.9) ? 1 : static_cast<uint32_t>(Wild(random));
  h.round = Wild(random);
  h.attempt = static_cast<uint32_t>(Wild(random));
  h.codec = static_cast<uint16_t>(random.Below(7));
  h.elements = random.Chance(0.8) ? 8 : static_cast<uint32_t>(Wild(random));
  h.reply_slot = Wild(random);
  h.slot = Wild(random);
  h.aux = static_cast<uint32_t>(Wild(random));
  h.aux64 = Wild(random);
  payload->resize(random.Chance(0.5) ? 32 : random.Below(64));
  for (std::byte& b : *payload) b = static_cast<std::byte>(random.Chance(0.5) ? random() : random.Below(3));
  h.payload_bytes = static_cast<uint32_t>(payload->size());
  h.total_bytes = random.Chance(0.8) ? payload->size() : Wild(random);
  return h;
}

// A fresh link whose HELLO names a rank that the job does not have, or another job of this number, was told "connected".
TEST(HelloTest, AStrangerIsRefusedByItsHello) {
  CoreHarness s;
  const proto::Plan plan = PlanBuilder("").Server("s0").Tensor("w", {8}).plan;
  transport::Hello early{.role = transport::PeerRole::kWorker, .job = 1, .job_uid = 77, .index = 9, .incarnation = 10};
  s.core->OnUp(100, early);   // before the plan nobody can tell
  EXPECT_FALSE(s.endpoint.closed.contains(100));
  s.Start(plan);
  ASSERT_TRUE(s.endpoint.closed.contains(100));
  EXPECT_EQ(s.endpoint.closed.at(100).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(s.endpoint.closed.at(100).message().find("rank 9 in job 1"), std::string_view::npos);
  transport::Hello other{.role = transport::PeerRole::kWorker, .job = 1, .job_uid = 78, .index = 0, .incarnation = 10};
  s.core->OnUp(101, other);
  ASSERT_TRUE(s.endpoint.closed.contains(101));
  EXPECT_EQ(s.endpoint.closed.at(101).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(s.endpoint.closed.contains(1)) << "rank 0 belongs to the job";
}

TEST_P(HostileFramesTest, TwoGoodRanksGoOnBesideABadOne) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    PhiloxRandom random(seed);
    CoreHarness s;
    proto::Plan plan = PlanBuilder(GetParam()).Server("s0").Tensor("w", {8, 8}).plan;
    // Rank 2 is the bad one: the round does not wait for it.
    plan.mutable_workers(2)->set_finished(true);
    s.Start(plan);
    transport::Hello server;
    server.role = transport::PeerRole::kServer;
    s.core->OnUp(40, server);
    LinkId bad = 100;
    transport::Hello hello{.role = transport::PeerRole::kWorker, .job = 1, .job_uid = 77, .index = 2, .incarnation = 10};
    s.core->OnUp(bad, hello);
    for (uint64_t round = 0; round < 5; ++round) {
      for (int i = 0; i < 40; ++i) {
        std::vector<std::byte> payload;
        const FrameHeader h = WildFrame(random, &payload);
        const bool as_server = h.type == FrameType::kPartial && random.Chance(0.5);
        s.Deliver(as_server ? 40 : bad, h, payload);
        if (random.Chance(0.1)) s.core->OnTick();
        if (s.endpoint.closed.contains(40)) {
          s.core->OnDown(40, s.endpoint.closed.at(40));
          s.endpoint.closed.erase(40);
          s.core->OnUp(40, server);
        }
        if (s.endpoint.closed.contains(bad)) {
          s.core->OnDown(bad, s.endpoint.closed.at(bad));
          s.core->OnUp(++bad, hello);
        }
      }
      for (uint32_t partition : {0u, 1u}) {
        for (uint32_t rank : {0u, 1u}) {
          s.Send({.rank = rank, .partition = partition, .round = round, .values = std::vector<float>(8, 1.0f)});
        }
      }
      for (uint32_t rank : {0u, 1u}) {
        const std::vector<SentFrame> answers = s.Take(rank);
        ASSERT_EQ(answers.size(), 2u) << "round " << round;
        for (const SentFrame& answer : answers) {
          EXPECT_EQ(answer.header.type, FrameType::kReply);
          EXPECT_FALSE(answer.header.has(transport::kFlagSkipped));
          EXPECT_EQ(answer.header.round, round);
        }
      }
    }
    for (const auto& contribution : s.observed.contributions) EXPECT_NE(contribution.rank, 2u);
    s.endpoint.ReleaseAll();
    EXPECT_EQ(s.core->stats().pool_used, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, HostileFramesTest,
                         ::testing::Values("workers: 3", "workers: 3 order: ORDER_EXACT optimizer { kind: 'adam' }",
                                           "workers: 3 reply: REPLY_CHANGE codec_min_elements: 1 optimizer { kind: 'sgd' }",
                                           "workers: 3 mode: MODE_SSP optimizer { kind: 'sgd' }"));

// Probe bytes that nobody asked for cost the core nothing, and the others do not notice.
TEST(HostileProbeTest, WildFramesOfJobZeroFromServers) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    PhiloxRandom random(seed);
    CoreHarness s;
    s.Start(PlanBuilder("workers: 2").Server("s0").Tensor("w", {8}).plan);
    transport::Hello server;
    server.role = transport::PeerRole::kServer;
    for (const LinkId link : {40, 41}) s.core->OnUp(link, server);
    for (int i = 0; i < 300; ++i) {
      std::vector<std::byte> payload;
      FrameHeader h = WildFrame(random, &payload);
      h.job = 0;
      h.type = random.Chance(0.3) ? FrameType::kAnnounce : random.Chance(0.9) ? FrameType::kPush : FrameType::kGrant;
      h.attempt = random.Below(2);
      const LinkId link = random.Chance(0.5) ? 40 : 41;
      s.Deliver(link, h, payload);
      if (random.Chance(0.05)) s.clock.Advance(kSecond);
      if (random.Chance(0.1)) s.core->OnTick();
      EXPECT_LE(s.endpoint.slots.size(), 1u);
      if (random.Chance(0.02)) {
        s.core->OnDown(link, absl::UnavailableError("gone"));
        s.endpoint.slots.clear();
        s.core->OnUp(link, server);
      }
    }
    EXPECT_TRUE(s.endpoint.closed.empty());
    for (uint32_t rank : {0u, 1u}) s.Send({.rank = rank, .values = std::vector<float>(8, 1.0f)});
    for (uint32_t rank : {0u, 1u}) EXPECT_EQ(s.TakeOne(rank).header.type, FrameType::kReply);
  }
}

// A server that lies about the step can end the step, not the process.
TEST(HostileStepTest, WildRecordsAndVerdictsFromAServer) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    PhiloxRandom random(seed);
    CoreHarness s;
    s.Start(PlanBuilder("workers: 3 optimizer { kind: 'lamb' clip_norm: 1 }").Server("s0").Tensor("w", {8, 8}).plan);
    transport::Hello server;
    server.role = transport::PeerRole::kServer;
    LinkId link = 100;
    s.core->OnUp(link, server);
    for (int i = 0; i < 200; ++i) {
      std::vector<std::byte> payload;
      FrameHeader h = WildFrame(random, &payload);
      h.type = random.Chance(0.5) ? FrameType::kPartial : FrameType::kVerdict;
      h.aux = random.Below(3);
      if (random.Chance(0.5)) {
        payload = h.type == FrameType::kVerdict
                      ? EncodeVerdict({random.Chance(0.5), random(), random.Uniform(), {{random.Below(3), 1.0}}})
                      : EncodePartial({{random.Below(4), random.Below(4), {1, 1}}}, h.aux % 2, 100)[0];
        h.payload_bytes = static_cast<uint32_t>(payload.size());
        h.total_bytes = payload.size();
      }
      s.Deliver(link, h, payload);
      if (random.Chance(0.3)) {
        s.Send({.rank = random.Below(3), .partition = random.Below(2), .round = random.Below(3),
                .values = std::vector<float>(8, 1.0f)});
      }
      if (s.endpoint.closed.contains(link)) {
        s.core->OnDown(link, s.endpoint.closed.at(link));
        s.core->OnUp(++link, server);
      }
    }
    EXPECT_GT(link, 100u);
  }
}

}  // namespace
}  // namespace sluice::server
