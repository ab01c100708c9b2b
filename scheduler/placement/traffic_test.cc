#include "scheduler/placement/traffic.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::placement {
namespace {

using ::testing::HasSubstr;

proto::JobFile Job(uint32_t workers, const std::string& groups) {
  proto::JobFile job;
  job.mutable_job()->set_workers(workers);
  job.mutable_job()->set_groups(groups);
  return job;
}

double Sent(const Traffic& traffic, uint32_t from, uint32_t to) {
  for (const Traffic::Peer& peer : traffic.Peers(from))
    if (peer.task == to) return peer.out;
  return 0;
}

TEST(TasksOf, GroupsExchangeWhatTheirPatternsSay) {
  proto::JobFile job = Job(24, "tensor:2,pipeline:3,data:4");
  const auto add = [&](const char* name, const char* pattern, uint64_t bytes) {
    proto::GroupTraffic* traffic = job.add_traffic();
    traffic->set_name(name);
    traffic->set_pattern(pattern);
    traffic->set_bytes(bytes);
  };
  add("tensor", "alltoall", 1000);
  add("pipeline", "neighbours", 100);
  add("data", "reducescatter", 40);
  job.set_parameter_bytes(8000);
  const auto tasks = TasksOf(job, Exchange::kAllReduce, 0);
  ASSERT_TRUE(tasks.ok()) << tasks.status();
  EXPECT_EQ(tasks->servers, 0u);
  EXPECT_EQ(tasks->blocks, (std::vector<uint32_t>{2, 6, 24}));
  const Traffic& traffic = tasks->traffic;
  EXPECT_EQ(Sent(traffic, 0, 1), 500);
  EXPECT_EQ(Sent(traffic, 0, 2), 100);
  EXPECT_EQ(Sent(traffic, 2, 0), 100);
  EXPECT_EQ(Sent(traffic, 4, 0), 0);    // a pipeline's ends are not joined
  EXPECT_EQ(Sent(traffic, 0, 6), 0.75 * 40 + 2 * 0.75 * 8000);   // the ring of gradients goes over "data"
  EXPECT_EQ(Sent(traffic, 18, 0), Sent(traffic, 0, 6));
}

TEST(TasksOf, ServersGetEachTheirPart) {
  proto::JobFile job = Job(40, "");
  job.set_parameter_bytes(16000);
  job.mutable_job()->set_codec("int8");
  job.mutable_job()->set_replicas(1);
  const auto tasks = TasksOf(job, Exchange::kServers, 8);
  ASSERT_TRUE(tasks.ok()) << tasks.status();
  EXPECT_EQ(tasks->tasks.size(), 48u);
  ASSERT_EQ(tasks->traffic.all_to_alls().size(), 1u);
  EXPECT_NEAR(tasks->traffic.all_to_alls()[0].there, 500, 20);   // and scales
  EXPECT_EQ(tasks->traffic.all_to_alls()[0].back, 2000);
  EXPECT_NEAR(tasks->traffic.total(), 40 * 8 * 2500.0, 40 * 8 * 20.0);
  ASSERT_EQ(tasks->apart.size(), 4u);
  EXPECT_EQ(tasks->apart[0], (std::vector<uint32_t>{40, 41}));
}

TEST(TasksOf, SaysWhichCodecItDoesNotKnow) {
  proto::JobFile job = Job(2, "");
  job.set_parameter_bytes(1 << 20);
  for (const char* codec : {"auto", "shrink:9"}) {
    job.mutable_job()->set_codec(codec);
    const auto tasks = TasksOf(job, Exchange::kServers, 1);
    ASSERT_TRUE(tasks.ok());
    EXPECT_EQ(tasks->push, 1);
    ASSERT_EQ(tasks->notes.size(), 1u);
    EXPECT_THAT(tasks->notes[0], HasSubstr(codec));
  }
}

TEST(TasksOf, RefusesUnknownGroupsAndPatterns) {
  proto::JobFile job = Job(4, "data:4");
  proto::GroupTraffic* traffic = job.add_traffic();
  traffic->set_name("dta");
  EXPECT_THAT(TasksOf(job, Exchange::kServers, 1).status().message(), HasSubstr("no group \"dta\""));
  traffic->set_name("data");
  traffic->set_pattern("ring");
  EXPECT_THAT(TasksOf(job, Exchange::kServers, 1).status().message(), HasSubstr("no pattern \"ring\""));
  job.mutable_job()->set_groups("data:3");
  EXPECT_THAT(TasksOf(job, Exchange::kServers, 1).status().message(), HasSubstr("the product of the sizes is 3"));
  job.mutable_job()->set_workers(4000000000u);
  EXPECT_THAT(TasksOf(job, Exchange::kServers, 1).status().message(), HasSubstr("are more than"));
}

TEST(ParameterBytes, CountsTensorsButNotTables) {
  proto::JobFile job;
  job.set_parameter_bytes(7);
  EXPECT_EQ(ParameterBytes(job), 7u);
  job.add_tensors()->add_shape(10);
  job.mutable_tensors(0)->add_shape(20);
  job.add_tensors()->mutable_table()->set_dim(5);
  EXPECT_EQ(ParameterBytes(job), 800u);
  job.mutable_tensors(0)->add_shape(UINT64_MAX);
  job.mutable_tensors(0)->add_shape(UINT64_MAX);
  EXPECT_GT(ParameterBytes(job), uint64_t{1} << 59);
}

}  // namespace
}  // namespace sluice::placement
