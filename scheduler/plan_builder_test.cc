#include "scheduler/plan_builder.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::scheduler {
namespace {

proto::Plan MakePlan(std::vector<int> lanes, uint32_t shards, uint32_t partition_bytes) {
  proto::Plan plan;
  plan.mutable_config()->set_partition_bytes(partition_bytes);
  for (size_t i = 0; i < lanes.size(); ++i) {
    auto* server = plan.add_servers();
    server->set_server(i);
    for (int l = 0; l < lanes[i]; ++l) server->add_lanes();
  }
  PlaceShards(shards, 3, &plan);
  return plan;
}

proto::TensorSpec Spec(std::vector<uint64_t> shape) {
  proto::TensorSpec spec;
  spec.set_name("t");
  for (uint64_t d : shape) spec.add_shape(d);
  return spec;
}

TEST(PlaceShards, GoesRoundTheLanesAndNeighboursLieOnDifferentServers) {
  const proto::Plan plan = MakePlan({2, 1, 2}, 0, 1024);
  EXPECT_EQ(plan.shards_size(), 80);
  std::map<std::pair<uint32_t, uint32_t>, int> load;
  for (const auto& shard : plan.shards()) {
    ++load[{shard.server(), shard.lane()}];
    EXPECT_EQ(shard.term(), 3u);
  }
  EXPECT_EQ(load.size(), 5u);
  for (const auto& [lane, n] : load) EXPECT_EQ(n, 16);
  EXPECT_NE(plan.shards(0).server(), plan.shards(1).server());
  EXPECT_EQ(MakePlan({1}, 5, 1024).shards_size(), 5);
  EXPECT_EQ(MakePlan({}, 5, 1024).shards_size(), 0);
}

TEST(CheckSpec, CountsElementsWithoutOverflow) {
  EXPECT_EQ(*CheckSpec(Spec({})), 1u);
  EXPECT_EQ(*CheckSpec(Spec({2, 3, 4})), 24u);
  EXPECT_EQ(*CheckSpec(Spec({1 << 15, 1 << 15})), uint64_t{1} << 30);
  EXPECT_FALSE(CheckSpec(Spec({1 << 15, 1 << 15, 2})).ok());
  EXPECT_FALSE(CheckSpec(Spec({UINT64_MAX, UINT64_MAX})).ok());
  EXPECT_FALSE(CheckSpec(Spec({uint64_t{1} << 32, uint64_t{1} << 32})).ok());  // 2^64 is 0 to one who multiplies first
  EXPECT_FALSE(CheckSpec(Spec({3, 0})).ok());
  EXPECT_FALSE(CheckSpec(Spec(std::vector<uint64_t>(65, 1))).ok());
  proto::TensorSpec unnamed;
  EXPECT_FALSE(CheckSpec(unnamed).ok());
}

TEST(AddTensor, OneThatIsNotOfServersHasNoPartitions) {
  proto::Plan plan = MakePlan({1, 1}, 4, 64);
  AddTensor(Spec({100}), 100, &plan);
  const uint32_t partitions = CountPartitions(plan);
  AddTensor(Spec({1000}), 1000, &plan, {}, proto::EXCHANGE_SHARDED);
  AddTensor(Spec({10}), 10, &plan);
  EXPECT_EQ(plan.tensors(1).tensor(), 1u);
  EXPECT_EQ(plan.tensors(1).exchange(), proto::EXCHANGE_SHARDED);
  EXPECT_EQ(plan.tensors(1).partition_shard_size() + plan.tensors(1).partition_elements_size(), 0);
  EXPECT_EQ(plan.tensors(2).first_partition(), partitions);
  uint64_t bytes = 0;
  for (const proto::ShardInfo& shard : plan.shards()) bytes += shard.bytes();
  EXPECT_EQ(bytes, 4u * 110);
}

TEST(AddTensor, CutsAndPlacesLikeTheObviousWay) {
  PhiloxRandom random(7);
  for (int run = 0; run < 50; ++run) {
    const uint32_t partition_bytes = 4 * (1 + random.Below(100));
    proto::Plan plan = MakePlan({1, 2}, 1 + random.Below(9), partition_bytes);
    std::vector<uint64_t> bytes(plan.shards_size());
    uint32_t first = 0;
    for (int t = 0; t < 6; ++t) {
      const uint64_t n = 1 + random.Below(2000);
      AddTensor(Spec({n}), n, &plan);
      const proto::TensorInfo& tensor = plan.tensors(t);
      ASSERT_EQ(tensor.first_partition(), first);
      ASSERT_EQ(tensor.tensor(), static_cast<uint32_t>(t));
      uint64_t left = n;
      for (int p = 0; p < tensor.partition_elements_size(); ++p) {
        const uint64_t size = std::min<uint64_t>(left, partition_bytes / 4);
        ASSERT_EQ(tensor.partition_elements(p), size);
        std::map<std::pair<uint32_t, uint32_t>, uint64_t> lanes;
        std::map<uint32_t, uint64_t> servers;
        for (int s = 0; s < plan.shards_size(); ++s) {
          lanes[{plan.shards(s).server(), plan.shards(s).lane()}] += bytes[s];
          servers[plan.shards(s).server()] += bytes[s];
        }
        // Lanes are counted as PlaceShards deals them: by number, then by server.
        const auto load = [&](int s) {
          const uint32_t server = plan.shards(s).server(), lane = plan.shards(s).lane();
          return std::tuple(lanes.at({server, lane}), servers.at(server), lane, server, bytes[s]);
        };
        int least = 0;
        for (int s = 1; s < plan.shards_size(); ++s)
          if (load(s) < load(least)) least = s;
        ASSERT_EQ(tensor.partition_shard(p), static_cast<uint32_t>(least));
        bytes[least] += 4 * size;
        left -= size;
      }
      ASSERT_EQ(left, 0u);
      first += tensor.partition_elements_size();
    }
    ASSERT_EQ(CountPartitions(plan), first);
    for (int s = 0; s < plan.shards_size(); ++s) ASSERT_EQ(plan.shards(s).bytes(), bytes[s]);
  }
}

std::vector<uint64_t> PartitionSizes(std::vector<uint64_t> shape, uint32_t partition_bytes) {
  proto::Plan plan = MakePlan({1}, 1, partition_bytes);
  uint64_t elements = 1;
  for (const uint64_t extent : shape) elements *= extent;
  AddTensor(Spec(shape), elements, &plan);
  const auto& sizes = plan.tensors(0).partition_elements();
  EXPECT_EQ(static_cast<uint64_t>(sizes.size()), PartitionsOf(Spec(shape), elements, plan));
  return {sizes.begin(), sizes.end()};
}

TEST(AddTensor, CutsBetweenRowsWhereOneFits) {
  using Sizes = std::vector<uint64_t>;
  EXPECT_EQ(PartitionSizes({10, 30}, 400), (Sizes{90, 90, 90, 30}));
  EXPECT_EQ(PartitionSizes({5, 2, 3, 5}, 400), (Sizes{90, 60}));         // a convolution's rows are all but its first extent
  EXPECT_EQ(PartitionSizes({3, 100}, 400), (Sizes{100, 100, 100}));
  EXPECT_EQ(PartitionSizes({2, 101}, 400), (Sizes{100, 100, 2}));        // no row fits
  EXPECT_EQ(PartitionSizes({250}, 400), (Sizes{100, 100, 50}));
  EXPECT_EQ(PartitionSizes({}, 400), (Sizes{1}));
}

// Weight, bias, weight, bias: shards dealt in turn would put both weights on one server and both biases on the other.
TEST(AddTensor, TwoLargeTensorsWithSmallOnesBetweenLieOnTwoServers) {
  for (const int lanes : {1, 2, 4}) {
    proto::Plan plan = MakePlan({lanes, lanes}, 0, 1 << 20);
    for (const uint64_t n : {10000, 10, 10000, 10}) AddTensor(Spec({n}), n, &plan);
    const auto server = [&](int t) { return plan.shards(plan.tensors(t).partition_shard(0)).server(); };
    EXPECT_NE(server(0), server(2)) << lanes << " lanes";
  }
}

TEST(CheckRoom, BoundsPartitionsAndTensors) {
  const proto::Plan plan = MakePlan({1}, 1, 1024);
  const auto room = [&](uint64_t elements) { return CheckRoom(plan, 1, PartitionsOf(Spec({elements}), elements, plan)); };
  EXPECT_TRUE(room(uint64_t{256} << 20).ok());
  EXPECT_EQ(room((uint64_t{256} << 20) + 1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(CheckRoom(plan, (1 << 20) + 1, 1).ok());
}

proto::TensorSpec TableOf(uint32_t dim, uint32_t segments = 0) {
  proto::TensorSpec spec = Spec({});
  spec.set_name("table");
  spec.mutable_table()->set_dim(dim);
  spec.mutable_table()->set_segments(segments);
  return spec;
}

TEST(CheckSpec, ATableHasRowsOfSomeValuesAndNoShape) {
  EXPECT_EQ(*CheckSpec(TableOf(16)), 16u);
  EXPECT_FALSE(CheckSpec(TableOf(0)).ok());
  EXPECT_FALSE(CheckSpec(TableOf(65537)).ok());
  EXPECT_FALSE(CheckSpec(TableOf(1, 65537)).ok());
  proto::TensorSpec shaped = TableOf(4);
  shaped.add_shape(4);
  EXPECT_FALSE(CheckSpec(shaped).ok());
  proto::TensorSpec coded = TableOf(4);
  coded.mutable_table()->set_codec("int8");
  EXPECT_TRUE(CheckSpec(coded).ok());
  coded.mutable_table()->set_codec("topk:0.1");
  EXPECT_NE(CheckSpec(coded).status().message().find("rows go as"), std::string_view::npos);
}

TEST(AddTensor, SegmentsOfTablesAreSpreadEvenlyWhateverElseIsThere) {
  proto::Plan plan = MakePlan({2, 2}, 0, 1024);
  AddTensor(Spec({100000}), 100000, &plan);   // fills some shards more than others
  AddTensor(TableOf(8), 8, &plan);
  AddTensor(TableOf(3, 6), 3, &plan);
  std::map<std::pair<uint32_t, uint32_t>, int> lanes;
  for (int t = 1; t < 3; ++t) {
    EXPECT_EQ(plan.tensors(t).first_partition(),
              plan.tensors(t - 1).first_partition() + static_cast<uint32_t>(plan.tensors(t - 1).partition_shard_size()));
    for (const uint32_t s : plan.tensors(t).partition_shard()) ++lanes[{plan.shards(s).server(), plan.shards(s).lane()}];
  }
  EXPECT_EQ(plan.tensors(1).partition_shard_size(), 16);
  EXPECT_EQ(plan.tensors(2).partition_shard_size(), 6);
  ASSERT_EQ(lanes.size(), 4u);
  for (const auto& [lane, segments] : lanes) EXPECT_TRUE(segments == 5 || segments == 6) << segments;
}

TEST(SameSpec, ATableWithOtherParametersIsNamed) {
  EXPECT_TRUE(SameSpec(TableOf(8), 0, TableOf(8), 1).ok());
  proto::TensorSpec other = TableOf(8);
  other.mutable_table()->mutable_optimizer()->set_kind("adagrad");
  const absl::Status status = SameSpec(TableOf(8), 0, other, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("adagrad"), std::string_view::npos) << status;
  EXPECT_FALSE(SameSpec(TableOf(8), 0, Spec({8}), 1).ok());
}

TEST(SameSpec, AMismatchNamesTheJobAndThisProcessAlsoWhereBothAreOneRank) {
  const std::string text(SameSpec(Spec({12, 32}), 1, Spec({12, 33}), 1).message());
  EXPECT_NE(text.find("this job has 12x32"), std::string::npos) << text;
  EXPECT_NE(text.find("an earlier process of rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("this process (rank 1) has 12x33"), std::string::npos) << text;
}

TEST(SameSpec, IgnoresPriorityAndNothingElse) {
  proto::TensorSpec a = Spec({2, 3}), b = a;
  b.set_priority(9);
  b.set_dtype("fp32");
  EXPECT_TRUE(SameSpec(a, 0, b, 1).ok());
  b.set_kind(proto::TENSOR_BIAS);
  EXPECT_FALSE(SameSpec(a, 0, b, 1).ok());
  EXPECT_FALSE(SameSpec(a, 0, Spec({3, 2}), 1).ok());
  EXPECT_FALSE(SameSpec(a, 0, Spec({2, 3, 1}), 1).ok());
}

}  // namespace
}  // namespace sluice::scheduler
