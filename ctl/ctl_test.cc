#include "absl/strings/str_cat.h"
#include "base/version.h"
#include "ctl/arguments.h"
#include "ctl/render.h"
#include "ctl/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace sluice::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Table, AlignsColumnsAndCleansCells) {
  Table table({"NAME", ">N", "TEXT"});
  table.Add({"a", "7", "x"});
  table.Add({"longer", "1234"});
  table.Add({"é\n\033[2J", "1", "y", "dropped"});
  EXPECT_EQ(table.Text(),
            "NAME       N  TEXT\n"
            "a          7  x\n"
            "longer  1234\n"
            "é??[2J     1  y\n");
}

TEST(Table, NumbersForPeople) {
  EXPECT_EQ(Bytes(0), "0 B");
  EXPECT_EQ(Bytes(1023), "1023 B");
  EXPECT_EQ(Bytes(64 << 20), "64.0 MiB");
  EXPECT_EQ(Bytes(UINT64_MAX), "16.0 EiB");
  EXPECT_EQ(Duration(1500), "1.5 s");
  EXPECT_EQ(Duration(200'000), "3 min 20 s");
  EXPECT_EQ(Duration(7'500'000), "2 h 5 min");
  EXPECT_EQ(Duration(90'000'000), "1 d 1 h");
}

TEST(Arguments, TakesCommandsOptionsAndSettings) {
  auto a = ParseArguments({"--scheduler", "h:1", "events", "--follow", "--json", "--after=7", "--limit", "3"});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->command, "events");
  EXPECT_TRUE(a->follow && a->json);
  EXPECT_EQ(a->after, 7u);
  EXPECT_EQ(a->limit, 3u);
  EXPECT_THAT(a->config, ElementsAre("--scheduler", "h:1"));
  EXPECT_EQ(ParseArguments({"status", "--watch"})->watch_seconds, 2);
  EXPECT_EQ(ParseArguments({"status", "--watch", "0.5", "--job=j"})->watch_seconds, 0.5);
  EXPECT_EQ(ParseArguments({"--watch", "status"})->command, "status");
  EXPECT_EQ(ParseArguments({"doctor", "server", "--node.data_port=9"})->role, "server");
  EXPECT_EQ(ParseArguments({"tables", "--job=j", "--watch"})->command, "tables");
  EXPECT_TRUE(ParseArguments({"--help"})->help);
  EXPECT_THAT(Usage(), HasSubstr("\n  tables "));
}

TEST(Arguments, TopologyTakesAnActionAndFiles) {
  const auto a = ParseArguments({"topology", "show", "topology.conf", "n[01-02]=dgx.xml", "--json"});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->action, "show");
  EXPECT_THAT(a->files, ElementsAre("topology.conf", "n[01-02]=dgx.xml"));
  EXPECT_TRUE(ParseArguments({"topology", "check"})->files.empty());
  EXPECT_THAT(ParseArguments({"topology"}).status().ToString(), HasSubstr("needs import, show or check"));
  EXPECT_THAT(ParseArguments({"topology", "list"}).status().ToString(), HasSubstr("\"list\" is none of import, show, check"));
  EXPECT_THAT(Usage(), HasSubstr("\n  topology import FILE"));
}

TEST(Arguments, AMistypedOptionNamesTheNearestOfItsOwn) {
  EXPECT_THAT(ParseArguments({"status", "--jsn"}).status().ToString(), HasSubstr("--jsn\"; the nearest is --json"));
  EXPECT_THAT(ParseArguments({"events", "--folow"}).status().ToString(), HasSubstr("the nearest is --follow"));
  EXPECT_THAT(ParseArguments({"status", "--jbo=x"}).status().ToString(), HasSubstr("the nearest is --job"));
  // Settings are none of them, however near; nor is what is like nothing.
  for (const char* setting : {"--id=a", "--node.id=a", "--trace=t", "--connect-timeout-ms=5", "--nothing-like-it=1"})
    EXPECT_THAT(ParseArguments({"doctor", setting})->config, ElementsAre(setting));
}

TEST(Render, WhoHasFinishedAndWhoWasNotHeardYet) {
  proto::WorkerList workers;
  proto::MemberStatus* done = workers.add_workers();
  done->set_member(1);
  done->set_id("left-in-order");
  done->set_finished(true);
  proto::MemberStatus* silent = workers.add_workers();
  silent->set_member(2);
  silent->set_id("of-before-the-restart");
  silent->set_unheard(true);
  silent->set_since_heartbeat_ms(4000);
  const std::string text = Render(workers);
  EXPECT_THAT(text, ::testing::ContainsRegex("left-in-order .* finished "));
  EXPECT_THAT(text, ::testing::ContainsRegex("of-before-the-restart .* no +not yet "));
  proto::Cluster cluster;
  *cluster.add_members() = *done;
  *cluster.add_members() = *silent;
  EXPECT_THAT(Render(cluster), HasSubstr(" finished "));
  EXPECT_THAT(Render(cluster), HasSubstr(" not yet "));
}

TEST(Arguments, MovesTakeShardsAndServers) {
  const auto a = ParseArguments({"move-shard", "7", "s2", "--job=j"});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->shard, 7u);
  EXPECT_EQ(a->server, "s2");
  EXPECT_TRUE(ParseArguments({"rebalance", "--dry-run"})->dry_run);
  const auto probe = ParseArguments({"links", "--probe", "--all", "--bytes=16MiB"});
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_TRUE(probe->probe && probe->all);
  EXPECT_EQ(probe->bytes, 16u << 20);
  EXPECT_EQ(ParseArguments({"links", "--probe", "--bytes", "70000"})->bytes, 70000u);
  EXPECT_EQ(ParseArguments({"drain", "s1"})->server, "s1");
  EXPECT_TRUE(ParseArguments({"drain-status", "s1", "--watch"}).ok());
  EXPECT_TRUE(ParseArguments({"moves", "--watch", "1"}).ok());
  const auto refused = [](const std::vector<std::string>& words) {
    return std::string(ParseArguments(words).status().message());
  };
  EXPECT_THAT(refused({"move-shard", "x", "s2"}), HasSubstr("\"x\" is not the number of a shard"));
  EXPECT_THAT(refused({"move-shard", "7"}), HasSubstr("needs the number of a shard and the id of a server"));
  EXPECT_THAT(refused({"drain"}), HasSubstr("needs the id of a server"));
  EXPECT_THAT(refused({"drain", "s1", "s2"}), HasSubstr("unexpected \"s2\""));
  EXPECT_THAT(refused({"drain", "s1", "--watch"}), HasSubstr("drain-status SERVER --watch"));
  EXPECT_THAT(refused({"rebalance", "--watch"}), HasSubstr("moves --watch"));
  EXPECT_THAT(refused({"status", "--probe"}), HasSubstr("links only"));
  EXPECT_THAT(refused({"links", "--bytes=1MiB"}), HasSubstr("links --probe only"));
  EXPECT_THAT(refused({"links", "--all"}), HasSubstr("and links --probe only"));
  EXPECT_THAT(refused({"links", "--probe", "--watch"}), HasSubstr("done once"));
  for (const char* size : {"--bytes=8MB", "--bytes=0", "--bytes=-1", "--bytes=x", "--bytes=99999999999GiB"})
    EXPECT_THAT(refused({"links", "--probe", size}), HasSubstr("no size"));
  EXPECT_THAT(refused({"status", "--dry-run"}), HasSubstr("rebalance and plan only"));
}

TEST(Render, MovesBalanceAndDrains) {
  proto::MoveList list;
  list.set_job("j");
  EXPECT_EQ(Render(list), "job j: no shard is to move\n");
  list.set_paused(true);
  auto* move = list.add_moves();
  move->set_shard(7);
  move->set_from("s0");
  move->set_to("s2");
  move->set_state("filling");
  move->set_bytes(64 << 20);
  move->set_bytes_sent(32 << 20);
  move->set_bytes_left(96 << 20);
  move->set_bytes_per_second(16 << 20);
  move->set_eta_ms(6000);
  move->set_reason("s0 is being drained");
  for (const char* part : {"filling", "64.0 MiB", "32.0 MiB", "96.0 MiB", "16.0 MiB/s", "6.0 s", "s0 is being drained",
                           "moves are paused"})
    EXPECT_THAT(Render(list), HasSubstr(part));
  proto::RebalanceAnswer answer;
  answer.set_dry_run(true);
  EXPECT_THAT(Render(answer), HasSubstr("no move is needed"));
  *answer.add_moves() = *move;
  EXPECT_THAT(Render(answer), HasSubstr("nothing was moved (--dry-run)"));
  proto::ServerLoad* load = answer.add_servers();
  load->set_server("s0");
  load->set_bytes_before(64 << 20);
  load->set_load_before(0.82);
  load->set_load_after(0.41);
  load->set_cpu_before(1.64);
  load->set_out_before(120 << 20);
  EXPECT_THAT(Render(answer), HasSubstr("weighed by bytes"));
  answer.set_by_load(true);
  for (const char* part : {"82 %", "41 %", "1.64 s/s", "120.0 MiB/s", "64.0 MiB"})
    EXPECT_THAT(Render(answer), HasSubstr(part));
  proto::DrainStatus drain;
  drain.set_server("s1");
  drain.set_text("takes shards and copies");
  EXPECT_EQ(Render(drain), "server s1 takes shards and copies\n");
  drain.set_draining(true);
  drain.set_text("4 shards and 0 copies are left");
  drain.set_bytes(1 << 20);
  EXPECT_EQ(Render(drain), "server s1 is being drained: 4 shards and 0 copies are left (1.0 MiB)\n");
}

TEST(Arguments, AbortTakesAJobAndAReason) {
  const auto a = ParseArguments({"abort", "mnist", "--reason", "its nodes are gone", "--json"});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->command, "abort");
  EXPECT_EQ(a->job, "mnist");
  EXPECT_EQ(a->reason, "its nodes are gone");
  EXPECT_EQ(ParseArguments({"--reason=x", "abort", "--job", "7"})->job, "7");
  EXPECT_TRUE(ParseArguments({"abort", "--help"})->help);
  const auto error = [](std::vector<std::string> words) { return ParseArguments(words).status().ToString(); };
  EXPECT_THAT(error({"abort"}), HasSubstr("name or the number"));
  EXPECT_THAT(error({"abort", "a", "b"}), HasSubstr("unexpected \"b\""));
  EXPECT_THAT(error({"abort", "a", "--watch"}), HasSubstr("--watch"));
  EXPECT_THAT(error({"status", "--reason=x"}), HasSubstr("abort only"));
  EXPECT_THAT(Usage(), HasSubstr("abort JOB [--reason=TEXT]"));
}

TEST(Arguments, RefusesWithTheNearest) {
  const auto error = [](std::vector<std::string> words) { return ParseArguments(words).status().ToString(); };
  EXPECT_THAT(error({}), HasSubstr("status, shards"));
  EXPECT_THAT(error({"statsu"}), HasSubstr("nearest is status"));
  EXPECT_THAT(error({"status", "extra"}), HasSubstr("extra"));
  EXPECT_THAT(error({"status", "--follow"}), HasSubstr("events"));
  EXPECT_THAT(error({"status", "--all"}), HasSubstr("shards"));
  EXPECT_TRUE(ParseArguments({"shards", "--all"})->all);
  EXPECT_THAT(error({"status", "--job"}), HasSubstr("needs a value"));
  EXPECT_THAT(error({"events", "--after=x"}), HasSubstr("--after"));
  for (const char* seconds : {"0", "-1", "nan", "x", "1e9"})
    EXPECT_THAT(error({"status", absl::StrCat("--watch=", seconds)}), HasSubstr("--watch")) << seconds;
  EXPECT_THAT(error({"status", "--timeout=0"}), HasSubstr("--timeout"));
}

proto::Cluster SomeCluster() {
  proto::Cluster cluster;
  cluster.set_version("1.2.3");
  cluster.set_uptime_ms(61'000);
  auto* job = cluster.add_jobs();
  job->set_job(1);
  job->set_name("mnist");
  job->set_state(proto::JOB_FORMING);
  job->set_why("waiting for rank 1");
  job->set_protection("protected: every shard has 1 copy in sync");
  job->set_workers_expected(2);
  job->set_workers_alive(1);
  auto* server = cluster.add_members();
  server->set_member(1);
  server->set_role(proto::ROLE_SERVER);
  server->set_id("s0");
  server->set_rank(-1);
  server->set_alive(true);
  server->set_waiting_for("round 5 of fc1: rank 1");
  return cluster;
}

TEST(Render, Cluster) {
  const std::string text = Render(SomeCluster());
  for (const char* part : {"scheduler 1.2.3, up 1 min 1 s", "mnist", "forming", "1/2", "mnist: waiting for rank 1", "mnist: protected: every shard has 1 copy",
                           "server", "s0", "s0: round 5 of fc1: rank 1"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(Render(proto::Cluster()), HasSubstr("no job yet"));
}

TEST(Render, PlanShardsWorkersEventsConfig) {
  proto::Plan plan;
  plan.set_job(3);
  plan.mutable_config()->set_name("j");
  plan.set_state(proto::JOB_RUNNING);
  plan.add_servers()->set_id("s0");
  plan.mutable_servers(0)->add_lanes()->set_host("10.0.0.1");
  plan.add_workers()->add_out_from_round(3);
  plan.add_tensors()->mutable_spec()->set_name("fc1");
  plan.mutable_tensors(0)->mutable_spec()->add_shape(784);
  plan.mutable_tensors(0)->mutable_spec()->add_shape(128);
  for (const char* part : {"job 3 \"j\"", "running", "10.0.0.1:0", "out", "fc1", "784x128"})
    EXPECT_THAT(Render(plan), HasSubstr(part));

  proto::ShardList shards;
  shards.set_job("j");
  EXPECT_THAT(Render(shards), HasSubstr("has not started"));
  shards.add_shards()->set_server_id("s0");
  EXPECT_EQ(Render(shards), "job j\nnone of its 1 shards holds anything yet (--all)\n");
  EXPECT_THAT(Render(shards, true), HasSubstr("s0"));
  shards.add_shards()->set_server_id("s1");
  shards.mutable_shards(1)->set_partitions(1);
  EXPECT_THAT(Render(shards), HasSubstr("s1"));
  EXPECT_THAT(Render(shards), Not(HasSubstr("s0")));
  EXPECT_THAT(Render(shards), HasSubstr("\n1 more are empty (--all)\n"));
  EXPECT_THAT(Render(shards, true), Not(HasSubstr("--all")));

  EXPECT_THAT(Render(shards), HasSubstr("  TREE  COPIES\n"));
  shards.mutable_shards(1)->mutable_info()->set_tree(17);
  EXPECT_THAT(Render(shards), HasSubstr(" 17"));

  proto::ShardStatus* moving = shards.add_shards();
  moving->set_partitions(1);
  moving->mutable_info()->set_moving(true);
  moving->mutable_info()->set_move_to(2);
  for (const uint32_t server : {1u, 2u, 3u}) {
    moving->mutable_info()->add_backups()->set_server(server);
    moving->add_copies()->set_server_id("s" + std::to_string(server));
  }
  moving->mutable_copies(0)->set_in_sync(true);
  moving->mutable_copies(1)->set_bytes_sent(40);
  moving->mutable_copies(1)->set_bytes_left(60);
  EXPECT_THAT(Render(shards), HasSubstr("s1 in sync, s2 40 %, s3 begins, moves to s2"));

  proto::WorkerList workers;
  workers.add_workers()->set_rank(0);
  EXPECT_THAT(Render(workers), HasSubstr("RANK"));

  proto::JobStatus job;
  job.set_job(3);
  job.set_name("j");
  job.set_state(proto::JOB_FAILED);
  job.set_why("aborted by an operator");
  EXPECT_EQ(Render(job), "job 3 \"j\" has failed: aborted by an operator\nnone of its workers was connected\n");
  job.set_workers_alive(1);
  job.set_workers_expected(2);
  EXPECT_THAT(Render(job), HasSubstr("1 of its 2 workers are connected and were told"));

  proto::EventList events;
  EXPECT_EQ(Render(events), "no events\n");
  auto* event = events.add_events();
  event->set_number(12);
  event->set_unix_ms(1'700'000'000'123);
  event->set_kind("job_failed");
  event->set_text("line\nbreak");
  EXPECT_THAT(Render(events), HasSubstr("2023-11-14T22:13:20.123Z"));
  EXPECT_THAT(Render(*event), HasSubstr("line?break"));

  proto::EffectiveConfig config;
  config.add_values()->set_key("node.port");
  EXPECT_THAT(Render(config), HasSubstr("node.port"));
}

TEST(Render, Links) {
  proto::LinkList list;
  EXPECT_THAT(Render(list), HasSubstr("no member has told of its links yet"));
  proto::MemberLinks* server = list.add_members();
  server->set_role(proto::ROLE_SERVER);
  server->set_id("s0");
  EXPECT_EQ(Render(list), "no member has a link\n");
  proto::MemberLinks* worker = list.add_members();
  worker->set_role(proto::ROLE_WORKER);
  worker->set_job("mnist");
  worker->set_rank(3);
  proto::LinkPath* base = worker->mutable_report()->add_paths();
  base->set_peer("server s0 loop 1\n");
  base->set_kind("tcp");
  base->set_rail("base");
  base->set_address("10.0.0.1:7001");
  base->set_bytes_out(64 << 20);
  base->set_resent(7);
  base->set_rtt_us(1234);
  base->set_retransmits(2);
  base->set_note("this host has no RDMA device");
  proto::LinkPath* shm = worker->mutable_report()->add_paths();
  shm->set_link(1);
  shm->set_kind("shm");
  shm->set_goodput(3 << 20);
  worker->mutable_report()->set_left_out(5);
  EXPECT_EQ(Render(list),
            "MEMBER        PEER               LINK  KIND  RAIL  ADDRESS          GOODPUT      RTT       OUT   IN  CHUNKS  RESENT  RETRANS  NOTE\n"
            "mnist rank 3  server s0 loop 1?     0  tcp   base  10.0.0.1:7001          -  1.23 ms  64.0 MiB  0 B       0       7        2  this host has no RDMA device\n"
            "mnist rank 3                        1  shm   -                    3.0 MiB/s        -       0 B  0 B       0       0        0\n"
            "5 more paths are not reported: a member names its first 128\n");
  list.clear_members();
  list.add_members();
  proto::LinkEstimate* measured = list.add_estimates();
  measured->set_from("rack1");
  measured->set_to("core");
  measured->set_medium("ethernet");
  measured->set_bytes_per_second(20 << 20);
  measured->set_nominal(25 << 20);
  measured->set_source("measured");
  measured->set_age_ms(1500);
  measured->set_confidence(1);
  measured->set_rtt_us(900);
  measured->set_retransmits(4);
  list.add_estimates()->set_source("file");
  EXPECT_EQ(Render(list),
            "no member has a link\n\n"
            "links of the topology, each direction: 1 of 2 measured\n"
            "FROM   TO    MEDIUM    COUNTED ON     NOMINAL  SOURCE      AGE  CONFIDENCE      RTT  RETRANS\n"
            "rack1  core  ethernet  20.0 MiB/s  25.0 MiB/s  measured  1.5 s        1.00  0.90 ms        4\n");
}

TEST(Render, Tensors) {
  proto::TensorList list;
  list.set_job("j");
  EXPECT_EQ(Render(list), "job j has no tensors: none of its workers has registered one\n");
  auto* tensor = list.add_tensors();
  tensor->set_name("fc1\n");
  tensor->add_shape(784);
  tensor->add_shape(128);
  tensor->set_partitions(1);
  tensor->set_codec("topk:0.01");
  tensor->mutable_measured()->set_codec("topk:0.25");
  tensor->mutable_measured()->set_round(51);
  tensor->mutable_measured()->set_raw_bytes(1000);
  tensor->mutable_measured()->set_wire_bytes(25);
  tensor->mutable_measured()->set_relative_error(0.875);
  tensor->mutable_measured()->set_residual_ratio(12.5);
  tensor->set_rank(3);
  tensor = list.add_tensors();
  tensor->set_name("fc1.bias");
  tensor->add_shape(128);
  tensor->set_codec("none");
  tensor->set_note("a bias");
  const std::string text = Render(list);
  EXPECT_THAT(text, HasSubstr("784x128"));
  EXPECT_THAT(text, HasSubstr("2.50 %"));
  EXPECT_THAT(text, HasSubstr("0.875"));
  EXPECT_THAT(text, HasSubstr("measured in topk:0.25"));
  EXPECT_THAT(text, HasSubstr("a bias"));
  EXPECT_THAT(text, Not(HasSubstr("fc1\n")));
}

TEST(Render, Tables) {
  proto::TableList list;
  list.set_job("clicks");
  EXPECT_EQ(Render(list), "job clicks has no tables: none of its workers has registered one\n");
  auto* table = list.add_tables();
  table->set_name("users\n");
  table->set_dim(16);
  table->set_dtype("bf16");
  table->set_optimizer("adagrad");
  table->set_segments(8);
  table->set_segments_reported(8);
  auto* counts = table->mutable_counts();
  counts->set_rows(1000);
  counts->set_bytes(64 << 10);
  counts->set_reads(400);
  counts->set_hits(100);
  counts->set_updates(5000);
  counts->set_evicted_age(1);
  counts->set_evicted_bound(20);
  counts->set_dropped_zero(300);
  counts->set_not_admitted(7);
  counts->set_no_room(6);
  counts->set_nonfinite(5);
  table->set_hit_rate(0.25);
  for (const uint64_t id : {UINT64_MAX, uint64_t{3}}) {
    table->add_hot()->set_id(id);
    table->mutable_hot(table->hot_size() - 1)->set_count(48);
  }
  EXPECT_EQ(Render(list),
            "job clicks\n"
            "TABLE   DIM  DTYPE  OPTIMIZER  SEGMENTS  ROWS  SIZE      HIT RATE  UPDATES  EVICTED  NOT ADMITTED  NO ROOM  "
            "NONFINITE  HOT IDS\n"
            "users?   16  bf16   adagrad           8  1000  64.0 KiB    25.0 %     5000      321             7        6  "
            "        5  18446744073709551615:48 3:48\n");
  auto* fresh = list.add_tables();
  fresh->set_name("items");
  fresh->set_segments(4);
  fresh->set_segments_reported(1);
  EXPECT_THAT(Render(list), HasSubstr("  items: of 1 of its 4 segments; servers have not told of the others\n"));
  EXPECT_THAT(Render(list), HasSubstr("         -        0 "));   // nothing read: no rate
  const auto json = nlohmann::json::parse(Json(list));
  EXPECT_EQ(json["tables"][0]["counts"]["no_room"], "6");
  EXPECT_EQ(json["tables"][0]["hot"][1]["id"], "3");
  EXPECT_EQ(json["tables"][1]["hit_rate"], 0);
}

TEST(Json, HasEveryFieldUnderItsOwnName) {
  const auto json = nlohmann::json::parse(Json(SomeCluster()));
  EXPECT_EQ(json["jobs"][0]["workers_expected"], 2);
  EXPECT_EQ(json["jobs"][0]["tensors"], 0);
  EXPECT_EQ(json["members"][0]["role"], "ROLE_SERVER");
  const std::string line = Json(SomeCluster(), true);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
}

}  // namespace
}  // namespace sluice::ctl
