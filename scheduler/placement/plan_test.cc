// Owners, trees and whole plans on generated fabrics.
#include <cmath>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/owners.h"
#include "scheduler/placement/plan_job.h"
#include "scheduler/placement/trees.h"
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
        domains(topology::Domains::Find(graph)), routes(fabric::Routes::Create(&graph)) {}
  topology::Graph graph;
  topology::Domains domains;
  std::unique_ptr<fabric::Routes> routes;
};

proto::Plan PlanOf(const std::vector<std::string>& servers, const std::vector<std::string>& workers) {
  proto::Plan plan;
  for (const std::string& host : servers) {
    proto::ServerInfo* server = plan.add_servers();
    server->set_server(static_cast<uint32_t>(plan.servers_size() - 1));
    server->set_id("s" + host);
    server->set_alive(true);
    server->set_host(host);
    proto::ShardInfo* shard = plan.add_shards();
    shard->set_shard(static_cast<uint32_t>(plan.shards_size() - 1));
    shard->set_server(server->server());
    shard->set_bytes(1'000'000);
  }
  for (const std::string& host : workers) {
    proto::WorkerInfo* worker = plan.add_workers();
    worker->set_rank(static_cast<uint32_t>(plan.workers_size() - 1));
    worker->set_host(host);
  }
  return plan;
}

TEST(PlaceOwners, GivesEqualSharesWhereServersAreAlike) {
  const Racks racks(2, 4, 1);
  const Owners owners = PlaceOwners(PlanOf({"n0", "n4"}, {"n1", "n2", "n5", "n6"}), racks.graph, racks.domains, *racks.routes, {});
  EXPECT_EQ(owners.weight, (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(owners.choice.chosen(), "equal shares");
}

TEST(PlaceOwners, AServerBehindANarrowLinkOwnsLess) {
  Racks racks(2, 4, 1);
  // n4's own link has a tenth: with equal shares it is busy ten times as long as n0's.
  const uint32_t host = racks.graph.Find("n4");
  const uint32_t link = racks.graph.Incident(host)[0].link;
  racks.routes->SetBytesPerSecond(fabric::Routes::ArcOf(link, true), 1e8);
  racks.routes->SetBytesPerSecond(fabric::Routes::ArcOf(link, false), 1e8);
  const Owners owners = PlaceOwners(PlanOf({"n0", "n4"}, {"n1", "n2", "n5", "n6"}), racks.graph, racks.domains, *racks.routes, {});
  EXPECT_EQ(owners.choice.chosen(), "by what their links carry");
  EXPECT_NEAR(owners.weight[0], 10.0 / 11, 0.02);
  EXPECT_NEAR(owners.weight[0] + owners.weight[1], 1, 1e-9);
  ASSERT_EQ(owners.choice.options_size(), 2);
  EXPECT_LT(owners.choice.options(0).step_ms(), owners.choice.options(1).step_ms() / 4);
}

TEST(PlaceOwners, CopiesGoToOtherDomainsFirstAndNeverToTheSameHostIfThereIsAnother) {
  const Racks racks(3, 2, 1);
  proto::Plan plan = PlanOf({"n0", "n0", "n1", "n2", "n4"}, {"n0"});
  plan.mutable_servers(4)->set_alive(false);
  const Owners owners = PlaceOwners(plan, racks.graph, racks.domains, *racks.routes, {});
  EXPECT_EQ(owners.backups[0], (std::vector<uint32_t>{3, 2, 1}));
  EXPECT_EQ(owners.weight[4], 0);
  EXPECT_TRUE(owners.backups[4].empty());
}

TEST(PlaceOwners, SaysWhichHostsItDoesNotKnow) {
  const Racks racks(2, 2, 1);
  const Owners owners = PlaceOwners(PlanOf({"n0", "elsewhere"}, {"n1", "nowhere"}), racks.graph, racks.domains, *racks.routes, {});
  EXPECT_EQ(owners.weight, (std::vector<double>{0.5, 0.5}));
  ASSERT_EQ(owners.notes.size(), 2u);
  EXPECT_THAT(owners.notes[0], HasSubstr("elsewhere"));
  EXPECT_THAT(owners.notes[1], HasSubstr("1 workers' hosts"));
  EXPECT_TRUE(PlaceOwners(proto::Plan(), racks.graph, racks.domains, *racks.routes, {}).weight.empty());
}

// Each rank in one node at most, parents before children, no owner adding up for itself.
void CheckTrees(const TreeOption& option) {
  for (const auto& [owner, number] : option.tree_of) {
    ASSERT_LE(number, option.trees.size());
    const proto::Tree& tree = option.trees[number - 1];
    std::set<uint32_t> ranks;
    for (int i = 0; i < tree.nodes_size(); ++i) {
      EXPECT_NE(tree.nodes(i).server(), owner);
      EXPECT_LT(tree.nodes(i).parent(), i);
      for (const uint32_t rank : tree.nodes(i).ranks()) EXPECT_TRUE(ranks.insert(rank).second);
    }
  }
}

TEST(ChooseTrees, RackAggregatorsCrossANarrowSpineOnce) {
  // Two racks of two hosts, 1:5 between: the plan that deploy/namespaces runs.
  const Racks racks(2, 2, 5);
  const TreeChoice choice = ChooseTrees(PlanOf({"n0", "n2"}, {"n0", "n1", "n2", "n3"}), racks.graph, racks.domains, *racks.routes, {});
  const TreeOption& chosen = choice.options[choice.chosen];
  EXPECT_EQ(chosen.name, "rack aggregators");
  CheckTrees(chosen);
  ASSERT_EQ(chosen.trees.size(), 2u);
  // To owner n0: ranks 2 and 3 over the server on n2.
  const proto::Tree& tree = chosen.trees[chosen.tree_of.at(0) - 1];
  ASSERT_EQ(tree.nodes_size(), 1);
  EXPECT_EQ(tree.nodes(0).server(), 1u);
  EXPECT_EQ(tree.nodes(0).parent(), -1);
  EXPECT_EQ(tree.nodes(0).ranks_size(), 2);
  EXPECT_LT(choice.choice.options(0).step_ms(), 0.6 * choice.choice.options(1).step_ms());
}

TEST(ChooseTrees, HostAggregatorsWhereAHostHasSeveralWorkers) {
  const Racks racks(1, 3, 1);
  std::vector<std::string> workers;
  for (const char* host : {"n0", "n1", "n2"}) workers.insert(workers.end(), 4, host);
  const TreeChoice choice = ChooseTrees(PlanOf({"n0", "n1", "n2"}, workers), racks.graph, racks.domains, *racks.routes, {});
  EXPECT_EQ(choice.options[choice.chosen].name, "host aggregators");
  for (const TreeOption& option : choice.options) CheckTrees(option);
}

TEST(ChooseTrees, NoneWhereNoneHelpsOrTheyAreOff) {
  const Racks flat(1, 4, 1);
  const TreeChoice choice = ChooseTrees(PlanOf({"n0", "n1"}, {"n2", "n3"}), flat.graph, flat.domains, *flat.routes, {});
  EXPECT_EQ(choice.options.size(), 1u);
  EXPECT_TRUE(choice.options[choice.chosen].trees.empty());
  const Racks racks(2, 2, 5);
  const proto::Plan plan = PlanOf({"n0", "n2"}, {"n0", "n1", "n2", "n3"});
  EXPECT_EQ(ChooseTrees(plan, racks.graph, racks.domains, *racks.routes, {.trees = "off"}).options.size(), 1u);
  EXPECT_EQ(ChooseTrees(proto::Plan(), racks.graph, racks.domains, *racks.routes, {}).options.size(), 1u);
  const Racks even(2, 2, 1);   // nothing is narrow, yet it is asked for
  EXPECT_FALSE([&] {
    const TreeChoice on = ChooseTrees(plan, even.graph, even.domains, *even.routes, {.trees = "on"});
    return on.options[on.chosen].trees.empty();
  }());
}

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
  EXPECT_NEAR(plan->busiest(0).busy_ms(), plan->communication_ms(), 1e-9);
  // With trees the racks' links carry sums alone.
  ASSERT_GT(plan->routes_size(), 2);
  EXPECT_THAT(plan->routes(0).what(), HasSubstr("forwards"));
  EXPECT_EQ(plan->routes(0).via_size(), 3);
  EXPECT_THAT(plan->routes(0).narrowest(), HasSubstr(" -> "));
  EXPECT_EQ(plan->routes(0).bytes_per_second(), plan->busiest(0).bytes_per_second());
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
