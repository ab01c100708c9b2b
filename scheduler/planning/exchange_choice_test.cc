#include "scheduler/planning/exchange_choice.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/planning/plan_step.h"
#include "scheduler/planning/test_plans.h"

namespace sluice::planning {
namespace {

using testing::HasSubstr;

std::map<std::string, double> Steps(const proto::Choice& choice) {
  std::map<std::string, double> steps;
  double before = 0;
  for (const proto::Option& option : choice.options()) {
    steps[option.name()] = option.step_ms();
    EXPECT_GE(option.step_ms(), before);   // the cheapest first
    before = option.step_ms();
  }
  return steps;
}

struct Four {
  std::unique_ptr<network::Network> network = Racks(1, 8, 1e9);
  proto::Plan plan;
  explicit Four(const char* exchange, const std::vector<std::string>& servers = {"r0h4"}) {
    plan = PlanOf({"r0h0", "r0h1", "r0h2", "r0h3"}, servers, 40, network.get());
    plan.mutable_config()->set_exchange(exchange);
  }
  ExchangeChoice Choose() { return ChooseExchanges(plan, 0, *network); }
};

TEST(ExchangeChoice, AFlagForcesEitherAndAutoTakesTheQuicker) {
  // One server takes what four workers push; in a ring each link carries 6/4 of the model.
  for (const auto& [exchange, expected] : {std::pair{"servers", proto::EXCHANGE_SERVERS},
                                           {"allreduce", proto::EXCHANGE_ALLREDUCE},
                                           {"sharded", proto::EXCHANGE_SHARDED},
                                           {"auto", proto::EXCHANGE_ALLREDUCE}}) {
    const ExchangeChoice choice = Four(exchange).Choose();
    ASSERT_EQ(choice.exchanges.size(), 1u);
    EXPECT_EQ(choice.exchanges[0], expected) << exchange;
    EXPECT_EQ(choice.choice.what(), "exchange of tensors");
    EXPECT_EQ(choice.choice.chosen(), exchange == std::string("auto") ? "allreduce" : exchange);
    EXPECT_EQ(choice.note.empty(), exchange == std::string("servers"));
    auto steps = Steps(choice.choice);
    const double model = 1e3 * (40 << 20) / (100e6 * kTcpEfficiency * kTcpUtilization);
    EXPECT_NEAR(steps["servers"], 4 * model, 0.2 * model);
    EXPECT_NEAR(steps["allreduce"], 1.5 * model, 0.1 * model);
    EXPECT_NEAR(steps["sharded"], 1.5 * model, 0.1 * model);
  }
  // Four servers on hosts of their own carry half of what the ring does.
  EXPECT_EQ(Four("auto", {"r0h4", "r0h5", "r0h6", "r0h7"}).Choose().exchanges[0], proto::EXCHANGE_SERVERS);
}

TEST(ExchangeChoice, AutoUsesBothWaysAtOnce) {
  Four four("auto", {"r0h4", "r0h5"});
  const proto::TensorInfo whole = four.plan.tensors(0);
  four.plan.clear_tensors();
  for (int t = 0; t < 40; ++t) {
    proto::TensorInfo* tensor = four.plan.add_tensors();
    tensor->mutable_spec()->set_name(absl::StrCat("t", t));
    tensor->mutable_spec()->add_shape(1 << 18);
    tensor->add_partition_elements(1 << 18);
    tensor->add_partition_shard(whole.partition_shard(t));
  }
  const ExchangeChoice choice = four.Choose();
  const auto servers = std::ranges::count(choice.exchanges, proto::EXCHANGE_SERVERS);
  EXPECT_GT(servers, 5);
  EXPECT_LT(servers, 35);
  EXPECT_EQ(choice.choice.chosen(), "both");
  auto steps = Steps(choice.choice);
  EXPECT_LT(steps["both"], 0.95 * std::min(steps["servers"], steps["allreduce"]));
  EXPECT_THAT(choice.note, HasSubstr("of 40 tensors over servers"));
}

TEST(ExchangeChoice, AutoIsOfServersWhereTheJobAsksForWhatOnlyTheyHave) {
  Four four("auto");
  four.plan.mutable_config()->set_backup_workers(1);
  const ExchangeChoice choice = four.Choose();
  EXPECT_EQ(choice.exchanges[0], proto::EXCHANGE_SERVERS);
  EXPECT_THAT(choice.choice.why(), HasSubstr("auto means servers here: job.exchange=allreduce does not go with job.backup_workers"));
  EXPECT_THAT(choice.note, HasSubstr("job.backup_workers"));
}

TEST(ExchangeChoice, TablesAndWhatIsNotPushedInEveryStepStayOnServers) {
  Four four("auto");
  four.plan.mutable_tensors(0)->mutable_spec()->set_occasional(true);
  EXPECT_EQ(four.Choose().exchanges[0], proto::EXCHANGE_SERVERS);
  four = Four("allreduce");
  four.plan.mutable_tensors(0)->mutable_spec()->mutable_table()->set_dim(4);
  const ExchangeChoice choice = four.Choose();
  EXPECT_EQ(choice.exchanges[0], proto::EXCHANGE_SERVERS);
  EXPECT_EQ(choice.choice.what(), "");
}

TEST(ExchangeChoice, WithoutPlacesItGoesByNumbers) {
  Four four("auto");
  four.plan.mutable_workers(2)->set_host("");
  const ExchangeChoice few = four.Choose();
  EXPECT_EQ(few.exchanges[0], proto::EXCHANGE_ALLREDUCE);
  EXPECT_THAT(few.choice.why(), HasSubstr("it is not known where all members are"));
  Four many("auto", {"r0h4", "r0h5", "r0h6", "r0h7"});
  many.plan.mutable_workers(2)->set_host("");
  EXPECT_EQ(many.Choose().exchanges[0], proto::EXCHANGE_SERVERS);
}

TEST(ExchangeChoice, WhatCameBeforeCounts) {
  Four four("auto", {"r0h4", "r0h5"});
  proto::TensorInfo* before = four.plan.mutable_tensors(0);
  before->set_exchange(proto::EXCHANGE_ALLREDUCE);   // the ring is busy with it
  before->clear_partition_shard();
  before->clear_partition_elements();
  proto::TensorInfo* tensor = four.plan.add_tensors();
  tensor->mutable_spec()->add_shape(1 << 20);
  for (int p = 0; p < 4; ++p) {
    tensor->add_partition_elements(1 << 18);
    tensor->add_partition_shard(static_cast<uint32_t>(p));
  }
  const ExchangeChoice choice = ChooseExchanges(four.plan, 1, *four.network);
  ASSERT_EQ(choice.exchanges.size(), 1u);
  EXPECT_EQ(choice.exchanges[0], proto::EXCHANGE_SERVERS);
}

}  // namespace
}  // namespace sluice::planning
