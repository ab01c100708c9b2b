// Probes of links: who is told to send to whom and when, and what becomes of the results.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "scheduler/core_harness.h"

namespace sluice::scheduler {
namespace {

using testing::HasSubstr;
using topology::Graph;
using topology::Medium;
using topology::VertexKind;

// Racks r1 (a, b) and r2 (c, d) and r3 (e) under a core; nothing is known of the links' speed.
std::unique_ptr<network::Network> Racks() {
  Graph graph;
  const uint32_t core = graph.Add(VertexKind::kSwitch, "core").value();
  for (const auto& [leaf, hosts] : {std::pair{"r1", "ab"}, {"r2", "cd"}, {"r3", "e"}}) {
    const uint32_t l = graph.Add(VertexKind::kSwitch, leaf).value();
    EXPECT_TRUE(graph.Connect(l, core, Medium::kEthernet).ok());
    for (const char* h = hosts; *h != 0; ++h)
      EXPECT_TRUE(graph.Connect(graph.Add(VertexKind::kHost, std::string(1, *h)).value(), l, Medium::kEthernet).ok());
  }
  proto::TopologyConfig config;
  config.set_files("racks.txt");
  config.set_link_bytes(1'000'000'000);
  config.set_oversubscription(1);
  config.set_trees("auto");
  return network::Network::Create(std::move(graph), config).value();
}

class ProbingTest : public CoreHarness {
 protected:
  ProbingTest() {
    topology_ = [] { return Racks(); };
    config_.set_servers(4);
  }
  void Start(const std::string& hosts = "abcd") {
    StartCore();
    for (const char host : hosts) Server(std::string(1, host));
  }
  SessionId Server(const std::string& host, const std::string& id = "") {
    proto::Register server = ServerReg(id.empty() ? "s" + host : id);
    server.set_host(host);
    return by_id_[server.id()] = Connect(server);
  }
  absl::StatusOr<proto::ProbeLinksAnswer> Ask(bool all = false, uint64_t bytes = 0) {
    proto::ProbeLinksRequest request;
    request.set_all(all);
    request.set_bytes(bytes);
    return core_->ProbeLinks(request);
  }
  // What servers were told since the last call, by "from>to".
  std::map<std::string, proto::Probe> Told() {
    std::map<std::string, proto::Probe> told;
    for (auto& [id, session] : by_id_) {
      std::vector<proto::SchedulerMessage>& received = peers_[session].received;
      for (const proto::SchedulerMessage& message : received) {
        if (!message.has_probe()) continue;
        EXPECT_EQ(message.probe().peers_size(), 1);
        told[absl::StrCat(id, ">", message.probe().peers(0).peer())] = message.probe();
      }
      received.clear();
    }
    return told;
  }
  // In Mb/s; 0: an error.
  void Say(const std::string& pair, const proto::Probe& probe, double rate, uint64_t request = 0) {
    proto::MemberMessage message;
    message.mutable_heartbeat()->set_sequence(1);
    proto::ProbeResult* result = message.mutable_heartbeat()->add_probes();
    result->set_request(request == 0 ? probe.request() : request);
    result->set_peer(pair.substr(pair.find('>') + 1));
    result->set_rtt_us(1000);
    if (rate > 0) {
      result->set_bytes(probe.bytes());
      result->set_elapsed_us(1000 + static_cast<uint64_t>(8 * static_cast<double>(probe.bytes()) / rate));
    } else {
      result->set_error("server x at 10.0.0.1:1: connection refused");
    }
    core_->OnMessage(by_id_.at(pair.substr(0, pair.find('>'))), message);
  }
  // The network: 1 Gb/s inside of racks, 200 Mb/s between.
  static double Rate(const std::string& pair) {
    const auto rack = [](char host) { return host < 'c' ? 1 : host < 'e' ? 2 : 3; };
    return rack(pair[1]) == rack(pair[4]) ? 1000 : 200;
  }
  void AnswerAll() {
    for (std::map<std::string, proto::Probe> told = Told(); !told.empty(); told = Told())
      for (const auto& [pair, probe] : told) Say(pair, probe, Rate(pair));
  }
  std::optional<proto::LinkEstimate> Estimate(const std::string& from, const std::string& to) {
    const proto::LinkList list = core_->ListLinks();
    for (const proto::LinkEstimate& estimate : list.estimates())
      if (estimate.from() == from && estimate.to() == to) return estimate;
    return std::nullopt;
  }
  std::string LastText(const std::string& kind) {
    std::string text;
    const proto::EventList list = core_->ListEvents(0, 0);
    for (const proto::Event& event : list.events())
      if (event.kind() == kind) text = event.text();
    return text;
  }

  std::map<std::string, SessionId> by_id_;
};

TEST_F(ProbingTest, MeasuresWhatIsInQuestionRoundAfterRound) {
  Start();
  const auto answer = Ask();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->pairs(), 6u);
  EXPECT_EQ(answer->bytes(), 6u * (8 << 20));
  EXPECT_THAT(answer->unreachable(), testing::UnorderedElementsAre("r3 -> core", "core -> r3", "e -> r3", "r3 -> e"));
  auto told = Told();
  ASSERT_EQ(told.size(), 2u);   // one in each rack
  const proto::Probe& first = told.at("sa>sb");
  EXPECT_EQ(first.bytes(), 8u << 20);
  EXPECT_GT(first.timeout_ms(), 8000u);
  EXPECT_EQ(first.peers(0).addresses(0).port(), 1000u);
  EXPECT_EQ(first.request(), answer->request());
  uint64_t last = 0;
  size_t rounds = 0, between = 0;
  for (; !told.empty(); told = Told(), ++rounds) {
    Run(100 * kMillisecond, {by_id_["sa"], by_id_["sb"], by_id_["sc"], by_id_["sd"]});
    for (const auto& [pair, probe] : told) {
      EXPECT_TRUE(Told().empty()) << "the next round waits for all of this one";
      EXPECT_GT(probe.request(), last);
      between += Rate(pair) == 200;
      Say(pair, probe, Rate(pair));
    }
    last = told.begin()->second.request();
  }
  EXPECT_EQ(rounds, 4u);
  EXPECT_EQ(between, 2u);
  EXPECT_TRUE(Told().empty());
  EXPECT_THAT(LastText("probe_done"), HasSubstr(absl::StrCat("request ", answer->request(), ": probed 6 pairs in 0.4 s: slowest ")));
  EXPECT_THAT(LastText("probe_done"), HasSubstr("core"));
  EXPECT_THAT(LastText("probe_done"), HasSubstr("200.0 Mb/s"));
  EXPECT_NEAR(Estimate("a", "r1")->bytes_per_second(), 125e6, 1e5);
  EXPECT_EQ(Estimate("a", "r1")->source(), "measured");
  EXPECT_NEAR(Estimate("r1", "core")->bytes_per_second(), 25e6, 1e5);
  EXPECT_NEAR(Estimate("core", "r2")->bytes_per_second(), 25e6, 1e5);
  EXPECT_DOUBLE_EQ(Estimate("core", "r2")->confidence(), 1);
  EXPECT_DOUBLE_EQ(Estimate("core", "r2")->rtt_us(), 1000);
  EXPECT_EQ(Estimate("r3", "core")->source(), "assumed");

  // Now nothing that can be reached is in question, but on request.
  EXPECT_EQ(Ask()->pairs(), 0u);
  EXPECT_EQ(Ask()->unreachable_size(), 4);
  EXPECT_TRUE(Told().empty());
  EXPECT_EQ(Ask(true, 1 << 20)->pairs(), 6u);
  EXPECT_EQ(Told().at("sa>sb").bytes(), 1u << 20);
}

TEST_F(ProbingTest, OnlyOneAtATime) {
  Start();
  const auto first = Ask();
  ASSERT_TRUE(first.ok());
  Run(kSecond, {by_id_["sa"], by_id_["sb"], by_id_["sc"], by_id_["sd"]});
  const auto second = Ask();
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr(absl::StrCat("request ", first->request(), ", for 1.0 s, round 1 of 4")));
  AnswerAll();
  EXPECT_TRUE(Ask(true).ok());
}

TEST_F(ProbingTest, RequestsThatMakeNoSenseAreRefused) {
  Start("a");
  EXPECT_THAT(Ask().status().message(), HasSubstr("all that are here are on a"));
  Server("a", "twin");
  EXPECT_EQ(Ask().status().code(), absl::StatusCode::kFailedPrecondition);
  Server("b");
  EXPECT_EQ(Ask(false, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(false, uint64_t{1} << 40).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Ask().ok());
  by_id_.erase("twin");
  EXPECT_EQ(Told().size(), 1u);   // one server a host, and one direction first
}

TEST_F(ProbingTest, APairThatFailsIsToldAndTheOthersCount) {
  Start();
  ASSERT_TRUE(Ask().ok());
  for (std::map<std::string, proto::Probe> told = Told(); !told.empty(); told = Told())
    for (const auto& [pair, probe] : told) Say(pair, probe, pair == "sa>sb" ? 0 : Rate(pair));
  EXPECT_THAT(LastText("probe_failed"), HasSubstr("server sa (host a) -> server sb (host b): server x at 10.0.0.1:1: connection refused"));
  EXPECT_THAT(LastText("probe_done"), HasSubstr("probed 5 pairs"));
  EXPECT_THAT(LastText("probe_done"), HasSubstr("1 failed"));
  EXPECT_EQ(Estimate("b", "r1")->source(), "measured");
}

TEST_F(ProbingTest, AServerThatDiesOrSaysNothingEndsItsPairs) {
  config_.set_lease_ms(1'000'000);
  Start();
  ASSERT_TRUE(Ask().ok());
  std::map<std::string, proto::Probe> told = Told();
  Say("sc>sd", told.at("sc>sd"), 1000);
  Run(15 * kSecond, {by_id_["sa"]});
  EXPECT_TRUE(Told().empty()) << "sa may still answer";
  Run(5 * kSecond, {by_id_["sa"]});   // it has not
  told = Told();
  ASSERT_EQ(told.count("sb>sa"), 1u);
  Say("sd>sc", told.at("sd>sc"), 1000);
  Cut(by_id_["sb"]);
  Run(100 * kMillisecond, {by_id_["sa"]});
  told = Told();
  ASSERT_EQ(told.size(), 1u);
  Say("sa>sc", told.at("sa>sc"), 200);
  told = Told();
  Say("sc>sa", told.at("sc>sa"), 200);
  EXPECT_THAT(LastText("probe_done"), HasSubstr("probed 4 pairs"));
  EXPECT_THAT(LastText("probe_done"), HasSubstr("2 failed"));
  std::vector<std::string> failures;
  const proto::EventList events = core_->ListEvents(0, 0);
  for (const proto::Event& event : events.events())
    if (event.kind() == "probe_failed") failures.push_back(event.text());
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_THAT(failures[0], HasSubstr("server sa has not said for"));
  EXPECT_THAT(failures[1], HasSubstr("server sb was lost"));
  EXPECT_TRUE(Ask(true).ok()) << "it has ended";
}

TEST_F(ProbingTest, ResultsThatNobodyAskedForAreDropped) {
  Start();
  const auto answer = Ask();
  ASSERT_TRUE(answer.ok());
  const std::map<std::string, proto::Probe> told = Told();
  const proto::Probe& probe = told.at("sa>sb");
  Say("sa>sc", probe, 1);                            // not its peer
  Say("sc>sb", probe, 1);                            // not its sender
  Say("sa>sb", probe, 1, probe.request() + 1);       // another request
  EXPECT_EQ(Estimate("a", "r1")->source(), "assumed");
  Say("sa>sb", probe, 1000);
  Say("sa>sb", probe, 1);                            // again
  proto::Probe wrong = told.at("sc>sd");
  wrong.set_bytes(3);                                // it says that 3 bytes arrived
  Say("sc>sd", wrong, 1000);
  AnswerAll();
  EXPECT_THAT(LastText("probe_failed"), HasSubstr("a result that cannot be: 3 bytes"));
  EXPECT_NEAR(Estimate("a", "r1")->bytes_per_second(), 125e6, 1e5);
  Say("sa>sb", probe, 1);                            // after the end
}

}  // namespace
}  // namespace sluice::scheduler
