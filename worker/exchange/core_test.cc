// A worker's core with tensors that go among the workers.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/testing/cluster.h"

namespace sluice::worker {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<float>;

ClusterOptions Options(proto::Exchange exchange) {
  ClusterOptions options;
  options.ranks = 2;
  options.job = "optimizer { kind: 'sgd' rate: 0.5 schedule: 'step' step_rounds: 1 step_factor: 0.5 }";
  options.exchange = exchange;
  return options;
}

TEST(ExchangeCore, TrainsWithoutServers) {
  for (const proto::Exchange exchange : {proto::EXCHANGE_ALLREDUCE, proto::EXCHANGE_SHARDED}) {
    Cluster cluster(Options(exchange));
    cluster.Start(0);
    cluster.Start(1);
    const std::vector<uint32_t> ids = cluster.Register({{"w", 100}, {"b", 3}});
    for (uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(cluster.core(rank).NextRound(ids[0]), 0u);
      EXPECT_EQ(cluster.core(rank).rate(), 0.5f);
      EXPECT_EQ(cluster.core(rank).TensorName(ids[1]), "b");
    }
    Values values[2] = {Values(100, 1.0f), Values(100)}, gradients[2] = {Values(100, 2.0f), Values(100, 4.0f)}, pulled(100);
    std::vector<std::shared_ptr<Cluster::Pending>> pendings;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      pendings.push_back(cluster.Submit(rank, {.kind = OpKind::kBroadcast, .tensor = ids[0], .input = values[rank], .output = values[rank]}));
      pendings.push_back(cluster.Submit(rank, {.kind = OpKind::kPushPull, .tensor = ids[0], .input = gradients[rank], .output = values[rank]}));
    }
    EXPECT_FALSE(cluster.core(0).Snapshot().ok());
    ASSERT_TRUE(cluster.Wait(pendings));
    for (const auto& pending : pendings) EXPECT_EQ(pending->result.status, absl::OkStatus());
    EXPECT_EQ(values[0], Values(100, -0.5f));   // 1 - 0.5 * 3
    EXPECT_EQ(values[1], values[0]);
    EXPECT_EQ(pendings[1]->result.round, 1u);
    EXPECT_EQ(pendings[1]->result.next_rate, 0.25f);
    EXPECT_EQ(cluster.core(0).rate(), 0.25f);
    EXPECT_EQ(cluster.core(0).NextRound(ids[0]), 2u);
    const WorkerStats stats = cluster.core(0).stats();
    EXPECT_EQ(stats.bytes_out_push, 0u);
    EXPECT_EQ(stats.max_round, 1u);
    EXPECT_GT(stats.peer_bytes_out, 400u);
    ASSERT_TRUE(cluster.Wait({cluster.Submit(1, {.kind = OpKind::kPull, .tensor = ids[0], .output = pulled})}));
    EXPECT_EQ(pulled, values[0]);
  }
}

TEST(ExchangeCore, WaitsAreToldAndAWorkerThatCannotGoOnEndsThem) {
  Cluster cluster(Options(proto::EXCHANGE_ALLREDUCE));
  cluster.Start(0);
  cluster.Start(1);
  const uint32_t id = cluster.Register({{"w", 100}})[0];
  Values gradient(100, 1.0f);
  const auto waits = cluster.Submit(0, {.kind = OpKind::kPush, .tensor = id, .input = gradient});
  cluster.RunFor(kSecond);
  EXPECT_FALSE(waits->done);
  EXPECT_THAT(cluster.core(0).Waiting(), HasSubstr("all-reduce of 100 values"));
  proto::SchedulerMessage over;
  over.mutable_shutdown()->set_why("enough");
  cluster.core(0).member().OnMessage(over);
  ASSERT_TRUE(cluster.Wait({waits}));
  EXPECT_THAT(waits->result.status.message(), HasSubstr("enough"));
}

TEST(ExchangeCore, TheFirstOperationsWaitForAllWorkers) {
  Cluster cluster(Options(proto::EXCHANGE_SHARDED));
  cluster.Start(0);
  cluster.plan.mutable_workers(1)->set_alive(false);
  const uint32_t id = cluster.Register({{"w", 100}})[0];
  Values values[2] = {Values(100, 3.0f), Values(100)};
  const auto broadcast = [&](uint32_t rank) {
    return cluster.Submit(rank, {.kind = OpKind::kBroadcast, .tensor = id, .input = values[rank], .output = values[rank]});
  };
  const auto first = broadcast(0);
  cluster.RunFor(kSecond);
  EXPECT_THAT(cluster.core(0).Waiting(), HasSubstr("the first exchange of a tensor among the workers"));
  cluster.plan.mutable_workers(1)->set_alive(true);
  cluster.Start(1);
  cluster.Register({{"w", 100}});
  ASSERT_TRUE(cluster.Wait({first, broadcast(1)}));
  EXPECT_EQ(first->result.status, absl::OkStatus());
  EXPECT_EQ(values[1], values[0]);
}

TEST(ExchangeCore, SnapshotsAreRefused) {
  ClusterOptions options = Options(proto::EXCHANGE_ALLREDUCE);
  options.data += " snapshot_dir: '/nowhere'";
  Cluster cluster(options);
  cluster.Start(0);
  cluster.Start(1);
  proto::TensorSpec spec;
  spec.set_name("w");
  spec.add_shape(8);
  absl::StatusOr<std::vector<uint32_t>> ids = absl::UnknownError("");
  cluster.core(0).RegisterTensors({spec}, [&](absl::StatusOr<std::vector<uint32_t>> got) { ids = std::move(got); });
  cluster.RunUntil([&] { return ids.status().code() != absl::StatusCode::kUnknown; });
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(ids.status().message(), HasSubstr("data.snapshot_dir does not go with tensor w"));
}

}  // namespace
}  // namespace sluice::worker
