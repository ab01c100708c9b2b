// What the scheduler makes of where members are and what they measure.
#include "scheduler/core_harness.h"

namespace sluice::scheduler {
namespace {

using testing::Contains;
using testing::HasSubstr;
using topology::Graph;
using topology::Medium;
using topology::VertexKind;

// Racks r1 (a, b) and r2 (c, d) with 100 MB/s to each host and 20 MB/s between them.
std::unique_ptr<network::Network> TwoRacks(const std::string& trees = "auto") {
  Graph graph;
  const uint32_t core = graph.Add(VertexKind::kSwitch, "core").value();
  for (const auto& [leaf, hosts] : {std::pair{"r1", "ab"}, {"r2", "cd"}}) {
    const uint32_t l = graph.Add(VertexKind::kSwitch, leaf).value();
    EXPECT_TRUE(graph.Connect(l, core, Medium::kEthernet, 20e6).ok());
    for (const char* h = hosts; *h != 0; ++h)
      EXPECT_TRUE(graph.Connect(graph.Add(VertexKind::kHost, std::string(1, *h)).value(), l, Medium::kEthernet, 100e6).ok());
  }
  proto::TopologyConfig config;
  config.set_files("racks.txt");
  config.set_link_bytes(1'000'000'000);
  config.set_oversubscription(1);
  config.set_trees(trees);
  config.set_replan_gain_percent(15);
  config.set_replan_after_ms(2000);
  config.set_replan_cooldown_ms(30000);
  return network::Network::Create(std::move(graph), config).value();
}

class NetworksTest : public CoreHarness {
 protected:
  NetworksTest() {
    topology_ = [] { return TwoRacks(); };
    job_.set_workers(4);
    config_.set_servers(4);
  }
  // A server and a worker on each host; ids are "s" and "w" and the host's name.
  void Start(const std::string& hosts = "abcd") {
    StartCore();
    for (const char host : hosts) {
      proto::Register server = ServerReg(std::string("s") + host);
      server.set_host(std::string(1, host));
      servers_.push_back(Connect(server));
    }
    int rank = 0;
    for (const char host : hosts) {
      proto::Register worker = WorkerReg(std::string("w") + host, rank++);
      worker.set_host(std::string(1, host));
      worker_.push_back(Connect(worker));
    }
  }
  const proto::Plan& plan() { return *peers_[worker_[0]].plan(); }
  void Say(SessionId session, const std::string& peer_id, double goodput, uint64_t bytes) {
    proto::MemberMessage message;
    proto::LinkPath* path = message.mutable_heartbeat()->mutable_links()->add_paths();
    message.mutable_heartbeat()->set_sequence(1);
    path->set_kind("tcp");
    path->set_peer_id(peer_id);
    path->set_goodput(goodput);
    path->set_rtt_us(800);
    path->set_bytes_out(bytes);
    core_->OnMessage(session, message);
  }
  std::optional<proto::LinkEstimate> Estimate(const std::string& from, const std::string& to) {
    const proto::LinkList list = core_->ListLinks();
    for (const proto::LinkEstimate& estimate : list.estimates())
      if (estimate.from() == from && estimate.to() == to) return estimate;
    return std::nullopt;
  }

  std::vector<SessionId> servers_;
};

TEST_F(NetworksTest, ThePlanSaysWhichWorkersAreNearEachOther) {
  Start();
  ASSERT_EQ(plan().state(), proto::JOB_RUNNING);
  ASSERT_EQ(plan().tiers_size(), 3);
  EXPECT_EQ(plan().tiers(0).name(), "host");
  EXPECT_EQ(plan().tiers(1).name(), "rack");
  EXPECT_GT(plan().tiers(1).bytes_per_second(), plan().tiers(2).bytes_per_second());
  for (const proto::WorkerInfo& worker : plan().workers()) ASSERT_EQ(worker.coordinates_size(), 3);
  EXPECT_NE(plan().workers(0).coordinates(0), plan().workers(1).coordinates(0));
  EXPECT_EQ(plan().workers(0).coordinates(1), plan().workers(1).coordinates(1));
  EXPECT_NE(plan().workers(1).coordinates(1), plan().workers(2).coordinates(1));
  EXPECT_EQ(plan().workers(0).coordinates(2), plan().workers(3).coordinates(2));
}

TEST_F(NetworksTest, RanksOfAGroupLieTogether) {
  job_.set_groups("tensor:2,data:2");
  StartCore();
  config_.set_servers(1);
  for (const char* host : {"a", "c", "d", "b"}) {
    proto::Register worker = WorkerReg(std::string("w") + host, -1);
    worker.set_host(host);
    worker_.push_back(Connect(worker));
  }
  // No two on one host: each rack's two make a group of "tensor".
  const uint32_t ranks[] = {0, 2, 3, 1};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(peers_[worker_[i]].welcome()->rank(), ranks[i]) << i;
}

TEST_F(NetworksTest, WithoutHostNamesNothingIsSaid) {
  config_.set_servers(1);
  StartJob();   // of members that do not say where they are
  EXPECT_EQ(plan().tiers_size(), 0);
  for (const proto::WorkerInfo& worker : plan().workers()) EXPECT_EQ(worker.coordinates_size(), 0);
}

TEST_F(NetworksTest, HostsThatTheTopologyDoesNotNameAreToldOf) {
  Start("abxy");
  ASSERT_EQ(plan().state(), proto::JOB_RUNNING);
  EXPECT_EQ(plan().workers(0).coordinates_size(), plan().tiers_size());
  EXPECT_GT(plan().tiers_size(), 0);
  const auto explanation = core_->ExplainPlan("j");
  ASSERT_TRUE(explanation.ok()) << explanation.status();
  EXPECT_THAT(explanation->notes(), Contains(HasSubstr("x, y")));
}

TEST_F(NetworksTest, WhatMembersMeasureBecomesEstimatesOfLinks) {
  Start();
  EXPECT_EQ(Estimate("r1", "core")->source(), "file");
  // The first report only says where counting begins; the third carries too little to have measured anything.
  for (const auto& [at, bytes, goodput] : {std::tuple{0, 1 << 20, 9e6}, {1, 3 << 20, 2e6}, {2, (3 << 20) + 1000, 1e3}}) {
    Say(worker_[0], "sc", goodput, static_cast<uint64_t>(bytes));
    Say(worker_[1], "nobody", goodput, static_cast<uint64_t>(bytes));
    Run(2 * kSecond, servers_);
    if (at == 0) {
      EXPECT_EQ(Estimate("r1", "core")->source(), "file");
      continue;
    }
    const proto::LinkEstimate up = *Estimate("r1", "core"), down = *Estimate("core", "r2");
    EXPECT_EQ(up.source(), "measured");
    EXPECT_DOUBLE_EQ(std::min(up.bytes_per_second(), down.bytes_per_second()), 2e6);
    EXPECT_DOUBLE_EQ(up.rtt_us(), 800);
    EXPECT_EQ(Estimate("core", "r1")->source(), "file");
  }
}

}  // namespace
}  // namespace sluice::scheduler
