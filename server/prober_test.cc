// Probes between servers: the messages one by one, and two cores on the simulated network.
#include "server/prober.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "server/probe_sink.h"
#include "server/testing/core_harness.h"
#include "transport/sim/sim_endpoint.h"

namespace sluice::server {
namespace {

using testing::HasSubstr;

proto::Probe Request(uint64_t number, uint64_t bytes, std::vector<std::string> peers) {
  proto::Probe probe;
  probe.set_request(number);
  probe.set_bytes(bytes);
  probe.set_timeout_ms(10000);
  for (const std::string& peer : peers) {
    probe.add_peers()->set_peer(peer);
    proto::Address* address = probe.mutable_peers(probe.peers_size() - 1)->add_addresses();
    address->set_host("host-" + peer);
    address->set_port(7000);
    address->set_unix_socket("sluice-x");   // never taken
    address->set_host_id("here");
  }
  return probe;
}

class ProberTest : public ::testing::Test {
 protected:
  ProberTest() : prober_(&endpoint_, &clock_, {}, [this](const proto::ProbeResult& result) { results_.push_back(result); }) {
    clock_.Advance(kSecond);
  }
  LinkId Last() { return endpoint_.connects.back().link; }
  void Frame(FrameType type, uint64_t aux64, uint64_t slot = 0, const std::string& text = "") {
    FrameHeader header;
    header.type = type;
    header.attempt = static_cast<uint32_t>(endpoint_.connects.size());
    header.aux64 = aux64;
    header.slot = slot;
    header.payload_bytes = static_cast<uint32_t>(text.size());
    prober_.OnFrame(Last(), header, {reinterpret_cast<const std::byte*>(text.data()), text.size()});
  }
  // Up to the first byte; the window is `slot_bytes`.
  void Open(uint64_t slot_bytes) {
    prober_.OnUp(Last());
    Frame(FrameType::kGrant, slot_bytes, 77);
    clock_.Advance(3 * kMillisecond);
    endpoint_.Take(Last());
    Frame(FrameType::kState, 0);
  }

  ManualClock clock_;
  FakeEndpoint endpoint_;
  std::vector<proto::ProbeResult> results_;
  Prober prober_;
};

TEST_F(ProberTest, MeasuresAnEmptyMessageAndThenTheBytes) {
  prober_.OnProbe(Request(5, 1 << 20, {"s1"}));
  ASSERT_EQ(endpoint_.connects.size(), 1u);
  EXPECT_EQ(endpoint_.connects[0].address.host, "host-s1");
  EXPECT_EQ(endpoint_.connects[0].address.unix_socket, "");
  const LinkId link = Last();
  EXPECT_TRUE(prober_.Owns(link));
  EXPECT_TRUE(endpoint_.Take(link).empty());
  prober_.OnUp(link);
  std::vector<SentFrame> sent = endpoint_.Take(link);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header.type, FrameType::kAnnounce);
  EXPECT_EQ(sent[0].header.job, 0u);
  EXPECT_EQ(sent[0].header.total_bytes, 1u << 20);
  Frame(FrameType::kGrant, 512 << 10, 77);
  sent = endpoint_.Take(link);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header.type, FrameType::kPush);
  EXPECT_EQ(sent[0].payload.size(), 0u);
  clock_.Advance(2 * kMillisecond);
  Frame(FrameType::kState, 0);
  // As much as the slot holds, and no more before something has arrived.
  sent = endpoint_.Take(link);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].header.slot, 77u);
  EXPECT_EQ(sent[1].header.round, 0u);
  EXPECT_EQ(sent[1].header.stripe_offset, 256u << 10);
  EXPECT_EQ(sent[1].payload.size(), 256u << 10);
  clock_.Advance(10 * kMillisecond);
  Frame(FrameType::kState, 256 << 10);
  Frame(FrameType::kState, 512 << 10);
  sent = endpoint_.Take(link);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].header.round, 1u);
  EXPECT_EQ(sent[0].header.stripe_offset, 0u);
  EXPECT_TRUE(results_.empty());
  clock_.Advance(10 * kMillisecond);
  Frame(FrameType::kState, 1 << 20);
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(results_[0].request(), 5u);
  EXPECT_EQ(results_[0].peer(), "s1");
  EXPECT_EQ(results_[0].bytes(), 1u << 20);
  EXPECT_EQ(results_[0].elapsed_us(), 20000u);
  EXPECT_EQ(results_[0].rtt_us(), 2000u);
  EXPECT_EQ(results_[0].error(), "");
  EXPECT_TRUE(endpoint_.closed.contains(link));
  EXPECT_TRUE(prober_.Owns(link)) << "until OnDown: what is still said of it is nobody else's";
  prober_.OnDown(link, absl::CancelledError(""));
  EXPECT_FALSE(prober_.Owns(link));
  EXPECT_EQ(results_.size(), 1u);
}

TEST_F(ProberTest, OnePeerAfterTheOtherAndRepeatsOnlyOnce) {
  prober_.OnProbe(Request(5, 100, {"s1", "s2"}));
  prober_.OnProbe(Request(5, 100, {"s1", "s2"}));
  prober_.OnProbe(Request(4, 100, {"s3"}));
  ASSERT_EQ(endpoint_.connects.size(), 1u);
  Open(4096);
  Frame(FrameType::kState, 100);
  ASSERT_EQ(endpoint_.connects.size(), 2u);
  EXPECT_EQ(endpoint_.connects[1].address.host, "host-s2");
  Open(4096);
  Frame(FrameType::kState, 100);
  EXPECT_EQ(results_.size(), 2u);
  EXPECT_TRUE(prober_.idle());
}

TEST_F(ProberTest, ErrorsSayWhoWhereAndHowLong) {
  prober_.OnProbe(Request(1, 1 << 20, {"s1", "s2", "s3", "s4", "s5"}));
  prober_.OnDown(Last(), absl::UnavailableError("connection refused"));
  EXPECT_THAT(results_.back().error(), HasSubstr("server s1 at host-s1:7000: connection refused (no connection, after 0.0 s)"));
  Open(4096);
  Frame(FrameType::kState, 4096);
  clock_.Advance(10 * kSecond);
  prober_.OnTick();
  EXPECT_THAT(results_.back().error(), HasSubstr("server s2 at host-s2:7000: 4096 of 1048576 bytes have arrived for 10.0 s, the time limit"));
  EXPECT_EQ(results_.back().bytes(), 4096u);
  prober_.OnUp(Last());
  Frame(FrameType::kRetry, 0);
  EXPECT_THAT(results_.back().error(), HasSubstr("takes part in another probe"));
  prober_.OnUp(Last());
  Frame(FrameType::kError, 0, 0, "who are you?");
  EXPECT_THAT(results_.back().error(), HasSubstr("refused: who are you?"));
  Open(4096);
  Frame(FrameType::kState, 1 << 20);   // more than was sent
  EXPECT_THAT(results_.back().error(), HasSubstr("acknowledged 1048576 bytes, and 4096 were sent"));
  EXPECT_EQ(results_.size(), 5u);
  EXPECT_TRUE(prober_.idle());
}

TEST_F(ProberTest, AnotherRequestEndsWhatIsLeftOfTheOneBefore) {
  prober_.OnProbe(Request(1, 100, {"s1", "s2"}));
  prober_.OnProbe(Request(2, 100, {"s3"}));
  ASSERT_EQ(results_.size(), 2u);
  for (const proto::ProbeResult& result : results_) EXPECT_THAT(result.error(), HasSubstr("request 2"));
  EXPECT_EQ(endpoint_.connects.back().address.host, "host-s3");
}

TEST_F(ProberTest, ArbitraryRequestsAndAnswersEndInResults) {
  PhiloxRandom random(3);
  uint64_t asked = 0;
  for (uint64_t number = 1; number < 300; ++number) {
    proto::Probe probe = Request(number, random.Chance(0.2) ? UINT64_MAX : random.Below(1 << 20), {});
    for (uint32_t i = random.Below(random.Chance(0.05) ? 400 : 4); i > 0; --i) {
      probe.add_peers()->set_peer("p");
      if (random.Chance(0.8)) probe.mutable_peers(probe.peers_size() - 1)->add_addresses()->set_host(random.Chance(0.8) ? "h" : "");
    }
    probe.set_timeout_ms(random.Below(3));
    asked += static_cast<uint64_t>(std::min(probe.peers_size(), kMaxProbePeers));
    prober_.OnProbe(probe);
    for (int i = 0; i < 20 && !endpoint_.connects.empty(); ++i) {
      switch (random.Below(4)) {
        case 0: prober_.OnUp(Last()); break;
        case 1: prober_.OnDown(Last(), absl::UnavailableError("gone")); break;
        case 2: prober_.OnWritable(Last()); break;
        default: {
          static constexpr FrameType kTypes[] = {FrameType::kGrant, FrameType::kState, FrameType::kRetry, FrameType::kError, FrameType::kPush};
          FrameHeader header;
          header.type = kTypes[random.Below(5)];
          header.attempt = random.Chance(0.1) ? random() : static_cast<uint32_t>(endpoint_.connects.size());
          header.slot = random.Below(3);
          header.aux64 = random.Chance(0.3) ? uint64_t{random()} << 32 : random.Chance(0.5) ? 0 : 1 + random.Below(8 << 20);
          prober_.OnFrame(Last(), header, {});
        }
      }
      if (random.Chance(0.1)) clock_.Advance(kMillisecond);
      prober_.OnTick();
    }
    endpoint_.sent.clear();
    endpoint_.lent.clear();
  }
  prober_.OnProbe(Request(1000, 1, {}));
  EXPECT_EQ(results_.size(), asked);
}

class ProbeSinkTest : public ::testing::Test {
 protected:
  FrameHeader Frame(FrameType type, uint32_t attempt, uint64_t bytes) {
    FrameHeader header;
    header.type = type;
    header.attempt = attempt;
    if (type == FrameType::kAnnounce) header.total_bytes = bytes;
    else header.payload_bytes = static_cast<uint32_t>(bytes);
    return header;
  }
  ManualClock clock_;
  FakeEndpoint endpoint_;
  ProbeSink sink_{&endpoint_, &clock_};
};

TEST_F(ProbeSinkTest, OneLinkAtATimeHasMemory) {
  EXPECT_TRUE(sink_.OnFrame(1, Frame(FrameType::kAnnounce, 9, UINT64_MAX)));
  const std::vector<SentFrame> granted = endpoint_.Take(1);
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].header.type, FrameType::kGrant);
  EXPECT_EQ(granted[0].header.attempt, 9u);
  EXPECT_EQ(granted[0].header.aux64, kProbeWindow);
  ASSERT_TRUE(endpoint_.slots.contains(granted[0].header.slot));
  EXPECT_EQ(endpoint_.slots.at(granted[0].header.slot).size(), kProbeWindow);
  sink_.OnFrame(2, Frame(FrameType::kAnnounce, 1, 100));
  EXPECT_EQ(endpoint_.Take(2).at(0).header.type, FrameType::kRetry);
  EXPECT_TRUE(sink_.OnFrame(1, Frame(FrameType::kPush, 9, 0)));
  EXPECT_EQ(endpoint_.Take(1).at(0).header.aux64, 0u);
  sink_.OnFrame(1, Frame(FrameType::kPush, 9, 100));
  sink_.OnFrame(1, Frame(FrameType::kPush, 9, 50));
  EXPECT_EQ(endpoint_.Take(1).at(1).header.aux64, 150u);
  sink_.OnDown(1);
  EXPECT_TRUE(sink_.idle());
  sink_.OnFrame(2, Frame(FrameType::kAnnounce, 1, 100));
  EXPECT_EQ(endpoint_.Take(2).at(0).header.type, FrameType::kGrant);
}

TEST_F(ProbeSinkTest, BytesThatNobodyGrantedAreDroppedWithoutAWord) {
  EXPECT_FALSE(sink_.OnFrame(1, Frame(FrameType::kPush, 0, 1000)));
  EXPECT_TRUE(endpoint_.Take(1).empty());
  sink_.OnFrame(1, Frame(FrameType::kAnnounce, 4, 1));
  endpoint_.Take(1);
  EXPECT_FALSE(sink_.OnFrame(1, Frame(FrameType::kPush, 3, 10)));
  EXPECT_FALSE(sink_.OnFrame(2, Frame(FrameType::kPush, 4, 10)));
  EXPECT_TRUE(endpoint_.Take(1).empty());
  EXPECT_TRUE(endpoint_.Take(2).empty());
}

TEST_F(ProbeSinkTest, ASilentPeerLosesItsMemory) {
  sink_.OnFrame(1, Frame(FrameType::kAnnounce, 1, 1 << 20));
  clock_.Advance(kProbeSilence - 1);
  sink_.OnTick();
  EXPECT_FALSE(sink_.idle());
  sink_.OnFrame(1, Frame(FrameType::kPush, 1, 1));
  clock_.Advance(kProbeSilence - 1);
  sink_.OnTick();
  EXPECT_FALSE(sink_.idle());
  clock_.Advance(1);
  sink_.OnTick();
  EXPECT_TRUE(sink_.idle());
  EXPECT_TRUE(endpoint_.slots.empty());
  EXPECT_FALSE(sink_.OnFrame(1, Frame(FrameType::kPush, 1, 1)));
}

// Two whole cores on the simulated network.
class ProbedServersTest : public ::testing::Test {
 protected:
  struct Server {
    std::unique_ptr<transport::SimEndpoint> endpoint;
    std::unique_ptr<ServerCore> core;
  };
  ProbedServersTest() {
    for (const std::string name : {"s0", "s1"}) {
      Server& server = servers_[name];
      server.endpoint = network_.CreateEndpoint("host-" + name);
      ServerCoreOptions options;
      options.id = name;
      options.probed = [this](const proto::ProbeResult& result) { results_.push_back(result); };
      server.core = ServerCore::Create(std::move(options), server.endpoint.get(), &clock_);
      server.endpoint->SetHandler(server.core.get());
      server.endpoint->Listen({.role = transport::PeerRole::kServer, .name = name});
    }
  }
  void Run(TimeNs time) {
    for (const TimeNs end = clock_.Now() + time; clock_.Now() < end;) {
      network_.RunFor(10 * kMillisecond);
      for (auto& [name, server] : servers_) {
        server.core->OnTick();
        server.core->OnTurnEnd();
      }
    }
  }

  ManualClock clock_;
  transport::SimNetwork network_{1, {}, &clock_};
  std::map<std::string, Server> servers_;
  std::vector<proto::ProbeResult> results_;
};

TEST_F(ProbedServersTest, EachProbesTheOther) {
  clock_.Advance(kSecond);
  servers_["s0"].core->OnProbe(Request(1, 9'000'001, {"s1", "s9"}));   // nobody is at s9
  servers_["s1"].core->OnProbe(Request(1, 64 << 10, {"s0"}));
  Run(30 * kSecond);
  ASSERT_EQ(results_.size(), 3u);
  for (const proto::ProbeResult& result : results_) {
    EXPECT_EQ(result.error().empty(), result.peer() != "s9") << result.error();
    if (result.peer() == "s1") {
      EXPECT_EQ(result.bytes(), 9'000'001u);
    }
    if (result.peer() != "s9") {
      EXPECT_GE(result.rtt_us(), 40u);
      EXPECT_GT(result.elapsed_us(), result.rtt_us() / 2);
    }
  }
  for (auto& [name, server] : servers_) {
    EXPECT_EQ(server.core->stats().refused, 0u);
    EXPECT_EQ(server.endpoint->open_slots(), 0u);
    EXPECT_EQ(server.endpoint->lent(), 0u);
  }
}

TEST_F(ProbedServersTest, AWildNetworkOnlyMakesThemFail) {
  clock_.Advance(kSecond);
  network_.set_faults({.drop = 0.05, .duplicate = 0.05, .reorder = 0.2, .reset = 0.01, .connect_failure = 0.1, .slow_write = 0.2});
  for (uint64_t number = 1; number <= 20; ++number) {
    servers_["s0"].core->OnProbe(Request(number, 3 << 20, {"s1", "s1"}));
    servers_["s1"].core->OnProbe(Request(number, 3 << 20, {"s0"}));
    Run(number % 2 == 0 ? 40 * kSecond : 20 * kMillisecond);
  }
  EXPECT_EQ(results_.size(), 60u);
  network_.set_faults({});
  Run(20 * kSecond);
  for (auto& [name, server] : servers_) EXPECT_EQ(server.endpoint->open_slots(), 0u);
  results_.clear();
  servers_["s0"].core->OnProbe(Request(100, 3 << 20, {"s1"}));
  Run(5 * kSecond);
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(results_[0].error(), "");
}

}  // namespace
}  // namespace sluice::server
