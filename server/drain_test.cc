#include "server/drain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace sluice::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kLife = 7;

class FakeCall final : public DrainCall {};

class DrainTest : public ::testing::Test {
 protected:
  explicit DrainTest(TimeNs limit = 25 * kSecond) {
    Drain::Env env;
    env.id = "a";
    env.limit = limit;
    env.clock = &clock_;
    env.log = &log_;
    env.ask = [this](TimeNs timeout, std::function<void(absl::Status)> done) {
      asked_.push_back(timeout);
      done_ = std::move(done);
      return std::make_unique<FakeCall>();
    };
    env.end = [this](const std::string& why) { ended_.push_back(why); };
    drain_ = std::make_unique<Drain>(std::move(env));
    clock_.Set(kSecond);
  }

  // Two shards, each with a copy; b is the other server.
  static proto::Plan Plan(uint32_t first, uint32_t second, bool copies = true) {
    proto::Plan plan;
    plan.set_job(1);
    plan.set_state(proto::JOB_RUNNING);
    for (const char* id : {"a", "b"}) {
      proto::ServerInfo* server = plan.add_servers();
      server->set_server(static_cast<uint32_t>(plan.servers_size() - 1));
      server->set_id(id);
      server->set_incarnation(kLife);
      server->set_alive(true);
    }
    for (const uint32_t owner : {first, second}) {
      proto::ShardInfo* shard = plan.add_shards();
      shard->set_server(owner);
      if (copies) shard->add_backups()->set_server(1 - owner);
    }
    return plan;
  }

  bool Begin(bool connected = true) {
    why_.clear();
    return drain_->Begin(connected, &why_);
  }
  void Pass(TimeNs time, bool connected = true) {
    clock_.Advance(time);
    drain_->OnTick(connected);
  }

  ManualClock clock_;
  const Logger log_{"test"};
  std::vector<TimeNs> asked_;
  std::function<void(absl::Status)> done_;
  std::vector<std::string> ended_;
  std::string why_;
  std::unique_ptr<Drain> drain_;
};

class NoDrainTest : public DrainTest {
 protected:
  NoDrainTest() : DrainTest(0) {}
};

TEST_F(DrainTest, EndsAtOnceWithoutARunningJob) {
  EXPECT_FALSE(Begin());
  proto::Plan plan = Plan(0, 0);
  plan.set_state(proto::JOB_FORMING);
  drain_->OnPlan(plan, kLife);
  EXPECT_FALSE(Begin());
  drain_->OnPlan(Plan(0, 0), kLife);
  plan.set_state(proto::JOB_FINISHED);
  drain_->OnPlan(plan, kLife);
  EXPECT_FALSE(Begin());
  EXPECT_EQ(why_, "");
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(DrainTest, WhatAnotherLifeOfItHeldIsNotHere) {
  drain_->OnPlan(Plan(0, 0), kLife + 1);
  EXPECT_FALSE(Begin());
}

TEST_F(DrainTest, EndsWhenThePlansNameItNowhere) {
  drain_->OnPlan(Plan(0, 1), kLife);
  ASSERT_TRUE(Begin());
  EXPECT_THAT(asked_, ElementsAre(25 * kSecond));
  done_(absl::OkStatus());
  Pass(kSecond);
  drain_->OnPlan(Plan(1, 1), kLife);         // two copies are left
  Pass(kSecond);
  EXPECT_THAT(ended_, IsEmpty());
  drain_->OnPlan(Plan(1, 1, /*copies=*/false), kLife);
  Pass(0);
  EXPECT_THAT(ended_, IsEmpty());
  Pass(kDrainGrace);
  EXPECT_THAT(ended_, ElementsAre(HasSubstr("drained: it holds nothing")));
}

TEST_F(DrainTest, AShardThatComesBackIsWaitedForAgain) {
  drain_->OnPlan(Plan(0, 0, false), kLife);
  ASSERT_TRUE(Begin());
  drain_->OnPlan(Plan(1, 1, false), kLife);
  Pass(0);
  drain_->OnPlan(Plan(0, 1, false), kLife);
  Pass(kDrainGrace);
  drain_->OnPlan(Plan(1, 1, false), kLife);
  Pass(kDrainGrace - kMillisecond);
  Pass(kDrainGrace - kMillisecond);
  EXPECT_THAT(ended_, IsEmpty());
  Pass(kMillisecond);
  EXPECT_EQ(ended_.size(), 1u);
}

TEST_F(DrainTest, EndsWhenTheSchedulerRefuses) {
  drain_->OnPlan(Plan(0, 0), kLife);
  ASSERT_TRUE(Begin());
  done_(absl::FailedPreconditionError("nowhere to go"));
  EXPECT_THAT(ended_, ElementsAre(HasSubstr("nowhere to go")));
}

TEST_F(DrainTest, TheOnlyServerDoesNotAsk) {
  proto::Plan plan = Plan(0, 0, false);
  plan.mutable_servers(1)->set_alive(false);
  drain_->OnPlan(plan, kLife);
  EXPECT_FALSE(Begin());
  EXPECT_THAT(why_, HasSubstr("no other server"));
}

TEST_F(DrainTest, EndsWhenTheOtherServersAreLost) {
  proto::Plan plan = Plan(0, 1);
  drain_->OnPlan(plan, kLife);
  ASSERT_TRUE(Begin());
  plan.mutable_servers(1)->set_alive(false);
  drain_->OnPlan(plan, kLife);
  Pass(kMillisecond);
  EXPECT_THAT(ended_, ElementsAre(HasSubstr("no other server is left")));
}

TEST_F(DrainTest, EndsWithoutAScheduler) {
  drain_->OnPlan(Plan(0, 0), kLife);
  EXPECT_FALSE(Begin(/*connected=*/false));
  EXPECT_THAT(why_, HasSubstr("no stream to the scheduler"));
  ASSERT_TRUE(Begin());
  Pass(kSecond, /*connected=*/false);
  Pass(kSecond);                              // it is back
  Pass(kSecond, /*connected=*/false);
  Pass(kDrainAlone - kMillisecond, false);
  EXPECT_THAT(ended_, IsEmpty());
  Pass(kMillisecond, false);
  EXPECT_THAT(ended_, ElementsAre(HasSubstr("no stream to the scheduler")));
}

TEST_F(DrainTest, EndsAfterItsLimit) {
  drain_->OnPlan(Plan(0, 0), kLife);
  ASSERT_TRUE(Begin());
  Pass(25 * kSecond - kMillisecond);
  EXPECT_THAT(ended_, IsEmpty());
  Pass(kMillisecond);
  EXPECT_THAT(ended_, ElementsAre(HasSubstr("2 shards and 0 copies are left")));
}

TEST_F(NoDrainTest, EndsAtOnceWhereThatIsConfigured) {
  drain_->OnPlan(Plan(0, 0), kLife);
  EXPECT_FALSE(Begin());
  EXPECT_THAT(why_, HasSubstr("node.drain_ms is 0"));
}

}  // namespace
}  // namespace sluice::server
