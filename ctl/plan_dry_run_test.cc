#include "ctl/plan_dry_run.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "ctl/render.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::ctl {
namespace {

using ::testing::HasSubstr;

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

constexpr char kSlurm[] =
    "SwitchName=s0 Nodes=dev[0-3]\n"
    "SwitchName=s1 Nodes=dev[4-7]\n"
    "SwitchName=top Switches=s[0-1]\n";

absl::StatusOr<proto::Explanation> Plan(const std::string& topology, const std::string& job) {
  Arguments arguments;
  arguments.topology = {Write("topology.conf", topology)};
  arguments.job_file = Write("job.textproto", job);
  return PlanDryRun(arguments, proto::TopologyConfig());
}

TEST(PlanDryRun, PlacesAJobOnASlurmTopology) {
  const auto plan = Plan(kSlurm, "job { name: 'lm' workers: 4 groups: 'pipeline:4' exchange: 'allreduce' }\n"
                                 "parameter_bytes: 1000000\n"
                                 "traffic { name: 'pipeline' pattern: 'neighbours' bytes: 5000000 }\n"
                                 "exclude_hosts: 'dev[0,5-7]'\n");
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string text = Render(*plan);
  for (const char* part : {"job \"lm\", dry run", "8 hosts", "topology.conf", "placement of workers and servers: best", "best-fit", "round-robin",
                           "BUSIEST LINKS", "predicted step: ", "ROUTES", " -> dev", "via s", "collectives", "is assumed"})
    EXPECT_THAT(text, HasSubstr(part));
  const std::string hosts = RenderForLauncher(*plan, "hostlist");
  EXPECT_EQ(std::count(hosts.begin(), hosts.end(), '\n'), 4);
  EXPECT_THAT(hosts, HasSubstr("dev4\n"));
  EXPECT_THAT(RenderForLauncher(*plan, "rankfile"), HasSubstr("rank 3=dev"));
  EXPECT_THAT(RenderForLauncher(*plan, "slurm"), ::testing::MatchesRegex("(dev[1-4],){3}dev[1-4]\n"));
}

TEST(PlanDryRun, RefusesWithFileAndLine) {
  EXPECT_THAT(Plan(kSlurm, "job {\n  workers: 4\n  colour: 3\n}\n").status().message(), HasSubstr("job.textproto:3: "));
  EXPECT_THAT(Plan("SwitchName=s0 Nodes=dev[0-\n", "job { workers: 1 }").status().message(), HasSubstr("topology.conf:1"));
  EXPECT_THAT(Plan(kSlurm, "job { workers: 2 codec: 'zip' }").status().message(), HasSubstr("zip"));
  EXPECT_THAT(Plan(kSlurm, "job { workers: 2 exchange: 'allreduce' optimizer { kind: 'lamb' } }").status().message(), HasSubstr("lamb"));
  EXPECT_THAT(Plan(kSlurm, "job { workers: 9 }").status().message(), HasSubstr("1 slots are missing"));
  Arguments arguments;
  arguments.topology = {Write("topology.conf", kSlurm)};
  arguments.job_file = "/nonexistent/job";
  EXPECT_THAT(PlanDryRun(arguments, proto::TopologyConfig()).status().message(), HasSubstr("/nonexistent/job: it cannot be read"));
}

TEST(Arguments, PlanTakesADryRun) {
  const auto a = ParseArguments({"plan", "--dry-run", "--topology=a,b", "--topology", "h[1,3]=c", "--job-file=j", "--output=slurm", "--seed=7", "--json"});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_THAT(a->topology, ::testing::ElementsAre("a", "b", "h[1,3]=c"));
  EXPECT_EQ(a->job_file, "j");
  EXPECT_EQ(a->output, "slurm");
  EXPECT_EQ(a->seed, 7u);
  EXPECT_TRUE(ParseArguments({"plan", "--explain", "--job=j"})->explain);
  const auto error = [](const std::vector<std::string>& words) { return std::string(ParseArguments(words).status().message()); };
  EXPECT_THAT(error({"plan", "--dry-run"}), HasSubstr("needs --topology=FILE"));
  EXPECT_THAT(error({"plan", "--job-file=j"}), HasSubstr("go with plan --dry-run only"));
  EXPECT_THAT(error({"status", "--explain"}), HasSubstr("plan only"));
  EXPECT_TRUE(ParseArguments({"plan", "--explain", "--all"})->all);
  EXPECT_THAT(error({"plan", "--all"}), HasSubstr("--all goes with shards, plan --explain"));
  EXPECT_THAT(error({"plan", "--output=xml"}), HasSubstr("hostlist, rankfile and slurm"));
  EXPECT_THAT(Usage(), HasSubstr("plan --dry-run --topology=FILE"));
}

TEST(Render, AnExplanationOfARunningJob) {
  proto::Explanation e;
  e.set_job("x\033[2J");
  e.set_plan_version(12);
  e.set_step_ms(20);
  e.set_measured_step_ms(22);
  proto::Choice* choice = e.add_choices();
  choice->set_what("aggregation trees");
  choice->set_chosen("rack aggregators");
  for (const auto& [name, ms] : {std::pair("rack aggregators", 20.0), std::pair("none", 50.0)}) {
    choice->add_options()->set_name(name);
    choice->mutable_options(choice->options_size() - 1)->set_step_ms(ms);
  }
  proto::TreeNode* node = e.add_trees()->add_nodes();
  node->set_parent(-1);
  for (const uint32_t rank : {0u, 1u, 2u, 5u}) node->add_ranks(rank);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    e.add_ranks()->set_rank(rank);
    e.mutable_ranks(static_cast<int>(rank))->set_host(rank < 2 ? "a" : "b");
  }
  const std::string text = Render(e);
  for (const char* part : {"plan version 12", "measured: 22.0 ms (+10 %)", "* rack aggregators", "+150 %", "0-2,5", "owner", "0-1  a"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_EQ(text.find('\033'), std::string::npos);
}

proto::RouteLoad* AddRoute(const std::string& from, const std::string& to, const std::vector<std::string>& via, proto::Explanation* e) {
  proto::RouteLoad* route = e->add_routes();
  route->set_from(from);
  route->set_to(to);
  for (const std::string& name : via) route->add_via(name);
  route->set_what("pushes and replies");
  route->set_bytes(32 << 20);
  route->set_bytes_per_second(25e6);
  route->set_narrowest("rack0 -> core");
  return route;
}

TEST(Render, RoutesFromHostToHost) {
  proto::Explanation e;
  AddRoute("r0h0", "r1h0", {"rack0", "core", "rack1"}, &e);
  AddRoute("a (and 3 like it)", "b", {"a/mlx5_0", "pod/leaf0", "b/mlx5_1"}, &e)->set_bytes_per_second(12.5e9);
  e.set_routes_left_out(7);
  const std::string text = Render(e);
  for (const char* part : {"ROUTES ", "r0h0 -> r1h0            via rack0 core rack1 ", "32.0 MiB  rack0 -> core", "200 Mb/s  pushes and replies",
                           "a (and 3 like it) -> b  via mlx5_0 pod/leaf0 mlx5_1 ", "100 Gb/s", "\n7 more routes\n"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(Json(e), HasSubstr("\"routes_left_out\": 7"));
  EXPECT_THAT(Render(proto::Explanation()), testing::Not(HasSubstr("ROUTES")));
}

TEST(Render, ManyRoutesAreCut) {
  proto::Explanation e;
  for (int i = 0; i < 40; ++i) AddRoute("h" + std::to_string(i), "x", {"s"}, &e);
  e.set_routes_left_out(2);
  EXPECT_THAT(Render(e), testing::AllOf(HasSubstr("h31 ->"), testing::Not(HasSubstr("h32 ->")), HasSubstr("10 more routes; --all shows 8 of them")));
  EXPECT_THAT(Render(e, /*all=*/true), testing::AllOf(HasSubstr("h39 ->"), HasSubstr("2 more routes\n")));
}

}  // namespace
}  // namespace sluice::ctl
