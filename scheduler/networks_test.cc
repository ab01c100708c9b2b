// What the scheduler makes of where members are and what they measure.
#include <algorithm>

#include "scheduler/core_harness.h"

namespace sluice::scheduler {
namespace {

using testing::Contains;
using testing::HasSubstr;
using topology::Graph;
using topology::Medium;
using topology::VertexKind;

// Racks r1 (a, b) and r2 (c, d) with 100 MB/s to each host and 20 MB/s between them.
std::unique_ptr<network::Network> TwoRacks(const std::string& trees = "auto", double between = 20e6) {
  Graph graph;
  const uint32_t core = graph.Add(VertexKind::kSwitch, "core").value();
  for (const auto& [leaf, hosts] : {std::pair{"r1", "ab"}, {"r2", "cd"}}) {
    const uint32_t l = graph.Add(VertexKind::kSwitch, leaf).value();
    EXPECT_TRUE(graph.Connect(l, core, Medium::kEthernet, between).ok());
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

class PlanningTest : public NetworksTest {
 protected:
  PlanningTest() { job_.set_replicas(0); }
  // 64 MiB in partitions of 4 MiB.
  void Register() {
    Tensors(worker_[0], 1, {Spec("t", {16 << 20})});
    Run(100 * kMillisecond, All());
  }
  std::vector<SessionId> All() {
    std::vector<SessionId> all = servers_;
    all.insert(all.end(), worker_.begin(), worker_.end());
    return all;
  }
  size_t Nodes() {
    size_t nodes = 0;
    for (const proto::Tree& tree : plan().trees()) nodes += static_cast<size_t>(tree.nodes_size());
    return nodes;
  }
  int Count(const std::string& kind) {
    const std::vector<std::string> kinds = EventKinds();
    return static_cast<int>(std::count(kinds.begin(), kinds.end(), kind));
  }
};

TEST_F(PlanningTest, TreesAreChosenWithThePlanThatHasTensors) {
  Start();
  EXPECT_EQ(plan().trees_size(), 0);
  Register();
  ASSERT_EQ(plan().tensors_size(), 1);
  EXPECT_GT(Nodes(), 0u);
  for (const proto::ShardInfo& shard : plan().shards()) EXPECT_NE(shard.tree(), 0u);
  EXPECT_THAT(plan().trees(0).why(), HasSubstr("racks: predicted step"));
  EXPECT_EQ(Count("trees"), 1);
  const auto said = core_->ExplainPlan("j");
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->trees_size(), plan().trees_size());
  EXPECT_GT(said->step_ms(), said->bound_ms() * 0.999);
  EXPECT_EQ(said->measured_step_ms(), 0);
  EXPECT_EQ(core_->ExplainPlan("other").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PlanningTest, OwnersGoToTheRackWithMostWorkers) {
  topology_ = [] { return TwoRacks("off"); };
  job_.set_workers(3);
  StartCore();
  for (const char host : std::string("abcd")) {
    proto::Register server = ServerReg(std::string("s") + host);
    server.set_host(std::string(1, host));
    servers_.push_back(Connect(server));
  }
  for (const char host : std::string("abc")) {
    proto::Register worker = WorkerReg(std::string("w") + host, static_cast<int>(worker_.size()));
    worker.set_host(std::string(1, host));
    worker_.push_back(Connect(worker));
  }
  Register();
  uint64_t near = 0, all = 0;
  for (const proto::ShardInfo& shard : plan().shards()) {
    all += shard.bytes();
    if (shard.server() < 2) near += shard.bytes();
  }
  EXPECT_EQ(all, uint64_t{64} << 20);
  EXPECT_GT(near, all * 9 / 10);
  const auto said = core_->ExplainPlan("j");
  const auto& owners = said->choices(said->choices_size() - 1);
  EXPECT_EQ(owners.what(), "owners of shards");
  EXPECT_EQ(owners.chosen(), "by the network");
  EXPECT_LT(owners.options(0).step_ms(), 0.8 * owners.options(1).step_ms());
}

TEST_F(PlanningTest, CopiesLieInAnotherRackThanTheOwner) {
  job_.set_replicas(1);
  Start();
  for (const proto::ShardInfo& shard : plan().shards()) {
    ASSERT_EQ(shard.backups_size(), 1);
    EXPECT_NE(shard.backups(0).server() / 2, shard.server() / 2);
  }
  job_.set_name("two");   // where there is no such choice, at least on another host
  job_.set_replicas(2);
  worker_.clear();
  for (const char host : std::string("abcd")) {
    proto::Register worker = WorkerReg(std::string("x") + host, static_cast<int>(worker_.size()));
    worker.set_host(std::string(1, host));
    worker_.push_back(Connect(worker));
  }
  for (const proto::ShardInfo& shard : plan().shards()) {
    ASSERT_EQ(shard.backups_size(), 2);
    EXPECT_NE(shard.backups(0).server(), shard.backups(1).server());
    EXPECT_NE(shard.backups(0).server() / 2, shard.server() / 2);
  }
}

TEST_F(PlanningTest, OffMeansNoTreesAndOnMeansSomeWhereThereCanBe) {
  topology_ = [] { return TwoRacks("off"); };
  Start();
  Register();
  EXPECT_EQ(plan().trees_size(), 0);
  EXPECT_THAT(core_->ExplainPlan("j")->choices(0).why(), HasSubstr("topology.trees is off"));
}

TEST_F(PlanningTest, TreesChangeOnlyWhenAGainHasLasted) {
  // 90 MB/s between the racks: trees gain nothing worth while.
  topology_ = [] { return TwoRacks("auto", 400e6); };
  Start();
  Register();
  ASSERT_EQ(Nodes(), 0u);
  // What each worker says of its paths to the three servers on other hosts.
  uint64_t bytes = 0;
  const auto say = [&](double inside, double across) {
    bytes += 1 << 20;
    for (size_t i = 0; i < 4; ++i) {
      proto::MemberMessage message;
      message.mutable_heartbeat()->set_sequence(1);
      for (size_t peer = 0; peer < 4; ++peer) {
        if (peer == i) continue;
        proto::LinkPath* path = message.mutable_heartbeat()->mutable_links()->add_paths();
        path->set_kind("tcp");
        path->set_peer_id(std::string("s") + "abcd"[peer]);
        path->set_goodput(i / 2 == peer / 2 ? inside : across);
        path->set_bytes_out(bytes);
      }
      core_->OnMessage(worker_[i], message);
    }
  };
  say(33e6, 33e6);
  Run(2 * kSecond, All());
  // The link between the racks degrades for a moment: nothing changes.
  say(90e6, 1e6);
  Run(1500 * kMillisecond, All());
  EXPECT_EQ(Estimate("r1", "core")->source(), "measured");
  say(33e6, 33e6);
  Run(5 * kSecond, All());
  EXPECT_EQ(Nodes(), 0u);
  EXPECT_EQ(Count("replanned"), 0);
  // It stays slow: trees come, once.
  for (int i = 0; i < 4; ++i) {
    say(90e6, 1e6);
    Run(kSecond, All());
  }
  EXPECT_GT(Nodes(), 0u);
  EXPECT_EQ(Count("replanned"), 1);
  const uint32_t epoch = plan().trees(0).epoch();
  // It is well again at once: the trees stay for topology.replan_cooldown_ms at least.
  for (int i = 0; i < 10; ++i) {
    say(33e6, 33e6);
    Run(kSecond, All());
  }
  EXPECT_EQ(plan().trees(0).epoch(), epoch);
  EXPECT_EQ(Count("replanned"), 1);
}

TEST_F(PlanningTest, StepsAreMeasuredOutOfHeartbeats) {
  Start();
  Register();
  for (uint64_t round = 1; round <= 4; ++round) {
    for (size_t i = 0; i < 4; ++i) {
      proto::MemberMessage message;
      message.mutable_heartbeat()->set_round(10 * round);
      message.mutable_heartbeat()->set_round_at_us(1000 + round * (i == 2 ? 3'000'000 : 2'000'000));
      core_->OnMessage(worker_[i], message);
    }
  }
  EXPECT_NEAR(core_->ExplainPlan("j")->measured_step_ms(), 300, 1e-6);   // the slowest
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

TEST_F(NetworksTest, TensorsAreExchangedAsTheJobSays) {
  job_.set_exchange("sharded");
  Start();
  Tensors(worker_[0], 1, {Spec("w", {1000})});
  core_->OnTick();
  ASSERT_EQ(plan().tensors_size(), 1);
  EXPECT_EQ(plan().tensors(0).exchange(), proto::EXCHANGE_SHARDED);
  EXPECT_EQ(plan().tensors(0).partition_shard_size(), 0);
  EXPECT_THAT(EventKinds(), Contains("exchange"));
  const auto said = core_->ExplainPlan("j");
  ASSERT_TRUE(said.ok());
  const auto& choices = said->choices();
  const auto choice = std::ranges::find(choices, "exchange of tensors", &proto::Choice::what);
  ASSERT_NE(choice, choices.end());
  EXPECT_EQ(choice->chosen(), "sharded");
  EXPECT_EQ(choice->options_size(), 3);
  EXPECT_GT(said->step_ms(), 0);
  proto::TensorSpec now_and_then = Spec("v", {10});
  now_and_then.set_occasional(true);
  Tensors(worker_[0], 2, {now_and_then});
  core_->OnTick();
  EXPECT_THAT(peers_[worker_[0]].done(2)->message(), HasSubstr("TensorSpec::every_step"));
}

TEST_F(NetworksTest, AutoTakesAllReduceWhereServersAreNarrow) {
  job_.set_exchange("auto");
  config_.set_servers(1);
  StartCore();
  proto::Register server = ServerReg("sd");
  server.set_host("d");
  servers_.push_back(Connect(server));
  int rank = 0;
  for (const char* host : {"a", "a", "b", "b"}) {
    proto::Register worker = WorkerReg(std::string("w") + std::to_string(rank), rank);
    worker.set_host(host);
    ++rank;
    worker_.push_back(Connect(worker));
  }
  Tensors(worker_[0], 1, {Spec("w", {1 << 20})});
  core_->OnTick();
  ASSERT_EQ(plan().tensors_size(), 1);
  EXPECT_EQ(plan().tensors(0).exchange(), proto::EXCHANGE_ALLREDUCE);
}

}  // namespace
}  // namespace sluice::scheduler
