// Whole plans on generated fabrics. Owners and trees: scheduler/planning.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/plan_job.h"
#include "scheduler/topology/complete.h"
#include "scheduler/topology/generate.h"

namespace sluice::placement {
namespace {

using ::testing::HasSubstr;

// Racks under one spine, `ratio` at the leaves.
struct Racks {
  Racks(uint32_t racks, uint32_t hosts, double ratio, uint32_t slots = 4)
      : graph(*topology::SpineLeaf({.leaves = racks, .spines = 1, .hosts_per_leaf = hosts, .ratio = ratio,
                                    .host = {.slots = slots, .link_bytes_per_second = 1e9}})),
        routes(fabric::Routes::Create(&graph)) {}
  topology::Graph graph;
  std::unique_ptr<fabric::Routes> routes;
};

proto::JobFile Job(uint32_t workers) {
  proto::JobFile job;
  job.mutable_job()->set_name("j");
  job.mutable_job()->set_workers(workers);
  job.set_parameter_bytes(100'000'000);
  return job;
}

absl::StatusOr<proto::Explanation> Plan(const Racks& racks, const proto::JobFile& job) { return PlanJob(job, racks.graph, *racks.routes, {}); }

TEST(PlanJob, ExplainsWhatItChoseAndWhatElseThereWas) {
  const Racks racks(2, 2, 5, 1);
  proto::JobFile job = Job(4);
  job.set_servers(2);
  job.mutable_job()->set_replicas(1);   // and so in different racks
  job.set_compute_ms(10);
  const auto plan = Plan(racks, job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->ranks_size(), 4);
  EXPECT_EQ(plan->servers_size(), 2);
  EXPECT_THAT(plan->topology(), HasSubstr("4 hosts (4 slots)"));
  ASSERT_EQ(plan->choices_size(), 3);
  EXPECT_EQ(plan->choices(0).what(), "placement of workers and servers");
  EXPECT_EQ(plan->choices(0).options_size(), 4);
  EXPECT_EQ(plan->choices(2).what(), "aggregation trees");
  EXPECT_FALSE(plan->trees().empty());
  EXPECT_FALSE(plan->busiest().empty());
  EXPECT_NEAR(plan->step_ms(), plan->compute_ms() + plan->communication_ms(), 1e-9);
  EXPECT_GT(plan->bound_ms(), 0);
  EXPECT_LE(plan->busiest(0).busy_ms(), plan->communication_ms());
  EXPECT_NEAR(plan->busiest(0).busy_ms() / plan->communication_ms(), 1, 0.1);   // and what the first partition waits for
  // With trees the racks' links carry sums alone.
  ASSERT_GT(plan->routes_size(), 2);
  EXPECT_THAT(plan->routes(0).what(), HasSubstr("forwards"));
  EXPECT_EQ(plan->routes(0).via_size(), 3);
  EXPECT_THAT(plan->routes(0).narrowest(), HasSubstr(" -> "));
  EXPECT_EQ(plan->routes(0).bytes_per_second(), plan->busiest(0).bytes_per_second());
}

const proto::Choice* FindChoice(const proto::Explanation& plan, const std::string& what) {
  for (const proto::Choice& choice : plan.choices())
    if (choice.what() == what) return &choice;
  return nullptr;
}

TEST(PlanJob, AServerBehindANarrowLinkOwnsLess) {
  const Racks racks(2, 2, 1, 1);
  for (const uint32_t link : {0, 1}) {   // n0's, of its own, has a tenth
    const uint32_t at = racks.graph.Incident(racks.graph.Find("n0"))[0].link;
    racks.routes->SetBytesPerSecond(fabric::Routes::ArcOf(at, link == 0), 1e8);
  }
  proto::JobFile job = Job(4);
  job.set_servers(4);
  const auto plan = Plan(racks, job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const proto::Choice* owners = FindChoice(*plan, "owners of shards");
  ASSERT_NE(owners, nullptr);
  EXPECT_EQ(owners->chosen(), "by the network");
  ASSERT_EQ(owners->options_size(), 2);
  EXPECT_LT(owners->options(0).step_ms(), 0.9 * owners->options(1).step_ms());
}

TEST(PlanJob, OwnersAndTreesAreWeighedBesideOtherTraffic) {
  const Racks racks(2, 2, 5, 1);
  proto::JobFile job = Job(4);
  job.set_servers(4);
  const auto alone = Plan(racks, job);
  ASSERT_TRUE(alone.ok()) << alone.status();
  job.mutable_job()->set_groups("data:4");
  proto::GroupTraffic* traffic = job.add_traffic();
  traffic->set_name("data");
  traffic->set_pattern("alltoall");
  traffic->set_bytes(400'000'000);
  const auto beside = Plan(racks, job);
  ASSERT_TRUE(beside.ok()) << beside.status();
  // Two of four ranks send a quarter each to two in the other rack.
  const double more_ms = 1e3 * 4 * 1e8 / beside->busiest(0).bytes_per_second();
  EXPECT_NEAR(beside->communication_ms(), alone->communication_ms() + more_ms, 0.02 * more_ms);
  const proto::Choice *before = FindChoice(*alone, "aggregation trees"), *after = FindChoice(*beside, "aggregation trees");
  ASSERT_EQ(before->options_size(), after->options_size());
  for (int i = 0; i < before->options_size(); ++i)
    EXPECT_NEAR(after->options(i).step_ms(), before->options(i).step_ms() + more_ms, 0.02 * more_ms);
}

TEST(PlanJob, SaysThatServersOwnNothing) {
  const Racks racks(2, 2, 1);
  proto::JobFile job = Job(4);
  job.set_servers(4);
  job.set_parameter_bytes(10 << 20);   // three partitions of 4 MiB
  const auto plan = Plan(racks, job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->ShortDebugString(), HasSubstr("3 partitions of up to 4194304 bytes for 4 servers"));
}

TEST(PlanJob, TreesFollowTheMode) {
  const Racks racks(2, 2, 5, 1);
  proto::JobFile job = Job(4);
  job.set_servers(4);
  for (const char* mode : {"auto", "on", "off"}) {
    const auto plan = PlanJob(job, racks.graph, *racks.routes, {.trees = mode});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->trees().empty(), std::string(mode) == "off");
    EXPECT_EQ(FindChoice(*plan, "aggregation trees")->chosen(), std::string(mode) == "off" ? "none" : "racks");
  }
  job.mutable_job()->set_mode(proto::MODE_ASP);
  const auto plan = Plan(racks, job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->trees().empty());
  EXPECT_THAT(FindChoice(*plan, "aggregation trees")->why(), HasSubstr("nothing to add up"));
}

TEST(PlanJob, TensorsAndCodecsCount) {
  const Racks racks(2, 2, 5, 1);
  proto::JobFile job = Job(4);
  const auto all = Plan(racks, job);
  ASSERT_TRUE(all.ok()) << all.status();
  job.clear_parameter_bytes();
  for (const uint64_t rows : {10'000, 15'000}) {
    proto::TensorSpec* tensor = job.add_tensors();
    tensor->set_name("t" + std::to_string(rows));
    tensor->add_shape(rows);
    tensor->add_shape(1000);
  }
  job.add_tensors()->mutable_table()->set_dim(8);
  const auto tensors = Plan(racks, job);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_NEAR(tensors->communication_ms() / all->communication_ms(), 1, 0.1);
  job.mutable_job()->set_codec("int8");
  job.mutable_job()->set_reply(proto::REPLY_CHANGE);
  const auto coded = Plan(racks, job);
  ASSERT_TRUE(coded.ok()) << coded.status();
  EXPECT_LT(coded->communication_ms(), 0.9 * tensors->communication_ms());
  job.clear_tensors();
  job.set_parameter_bytes(uint64_t{1} << 60);
  EXPECT_THAT(Plan(racks, job).status().message(), HasSubstr("at most 1e15"));
  job.set_parameter_bytes(uint64_t{1} << 49);
  EXPECT_TRUE(Plan(racks, job).ok());
  job.set_parameter_bytes(0);
  const auto none = Plan(racks, job);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->communication_ms(), 0);
  EXPECT_THAT(none->ShortDebugString(), HasSubstr("no dense tensors"));
}

TEST(PlanJob, ShowsTheRoutesOfGroups) {
  const Racks racks(2, 2, 5, 1);
  proto::JobFile job = Job(4);
  job.mutable_job()->set_exchange("allreduce");
  job.mutable_job()->set_groups("pipeline:4");
  proto::GroupTraffic* traffic = job.add_traffic();
  traffic->set_name("pipeline");
  traffic->set_pattern("neighbours");
  traffic->set_bytes(1'000'000);
  const auto plan = Plan(racks, job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // A ring of four and a line of four, of the same neighbours: 4 + 4 - 1 ordered pairs.
  EXPECT_EQ(plan->routes_size(), 7);
  double bytes = 0;
  for (const proto::RouteLoad& route : plan->routes()) {
    EXPECT_EQ(route.what(), "collectives");
    bytes += route.bytes();
  }
  EXPECT_NEAR(bytes, 4 * 2 * 0.75 * 100e6 + 6 * 1e6, 1);
}

TEST(PlanJob, JoinsHostsThatAreAlikeInLargeJobs) {
  const Racks racks(16, 32, 2, 1);   // 512 hosts
  const auto plan = Plan(racks, Job(512));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->routes_size(), 256);
  EXPECT_THAT(plan->routes(0).from(), HasSubstr("(and 31 like it)"));
  EXPECT_THAT(plan->ShortDebugString(), HasSubstr("routes are of groups of hosts that hang alike"));
}

TEST(PlanJob, PlansWithAnyExchangeAndPlacement) {
  const Racks racks(2, 4, 4);
  for (const char* exchange : {"", "servers", "allreduce", "sharded", "auto"}) {
    for (const char* placement : {"", "best", "best-fit", "round-robin", "random"}) {
      proto::JobFile job = Job(16);
      job.mutable_job()->set_exchange(exchange);
      job.set_placement(placement);
      const auto plan = Plan(racks, job);
      ASSERT_TRUE(plan.ok()) << exchange << " " << placement << ": " << plan.status();
      EXPECT_EQ(plan->ranks_size(), 16);
      EXPECT_LE(plan->bound_ms(), plan->communication_ms() * (1 + 1e-9)) << exchange << " " << placement;
    }
  }
}

TEST(PlanJob, SaysWhatIsMissingAndWhichRuleTakesIt) {
  const Racks racks(2, 2, 1, 4);
  const auto error = [&](const proto::JobFile& job) { return std::string(Plan(racks, job).status().message()); };
  EXPECT_THAT(error(Job(20)), HasSubstr("20 workers need 20 slots, and there is room for 16 workers on 4 hosts; 4 slots are missing"));
  proto::JobFile job = Job(8);
  job.set_gpus_per_worker(3);
  EXPECT_THAT(error(job), HasSubstr("4 slots lie in remainders smaller than gpus_per_worker (3)"));
  job = Job(10);
  job.add_exclude_hosts("n[0-1]");
  EXPECT_THAT(error(job), HasSubstr("only_hosts and exclude_hosts leave 8 of 16 slots"));
  job.clear_exclude_hosts();
  job.add_only_hosts("n[0");
  EXPECT_THAT(error(job), HasSubstr("only_hosts: "));
  job = Job(1);
  job.set_placement("fast");
  EXPECT_THAT(error(job), HasSubstr("placement: \"fast\""));
  job = Job(10);
  const auto plan = Plan(racks, job);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->ShortDebugString(), HasSubstr("no domain below the top holds all 10 workers"));
}

TEST(PlanJob, AJobThatNoFabricHoldsIsRefused) {
  topology::Graph graph;
  for (const char* fabric : {"a", "b"}) {
    const uint32_t leaf = *graph.Add(topology::VertexKind::kSwitch, std::string("leaf-") + fabric);
    for (const char* host : {"1", "2"})
      ASSERT_TRUE(graph.Connect(*graph.Add(topology::VertexKind::kHost, std::string(fabric) + host), leaf, topology::Medium::kEthernet).ok());
  }
  topology::Complete(&graph, {});
  const auto routes = fabric::Routes::Create(&graph);
  EXPECT_THAT(PlanJob(Job(3), graph, *routes, {}).status().message(),
              HasSubstr("the largest of 2 fabrics that nothing joins has room for 2; 1 are too many"));
  const auto plan = PlanJob(Job(2), graph, *routes, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->ranks(0).host()[0], plan->ranks(1).host()[0]);
  EXPECT_THAT(plan->ShortDebugString(), HasSubstr("is assumed"));
}

}  // namespace
}  // namespace sluice::placement
