#include "base/exchange_rules.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

template <typename Change>
std::string Why(const char* exchange, Change change) {
  proto::JobConfig job;
  job.set_exchange(exchange);
  change(job);
  return CheckExchange(job).ToString();
}

TEST(ExchangeRules, WhatDoesNotGoTogetherIsRefusedByKeyAndMend) {
  const auto why = [](auto change) {
    const std::string text = Why("allreduce", change);
    EXPECT_EQ(Why("auto", change), "OK");      // means servers then
    EXPECT_EQ(Why("servers", change), "OK");
    EXPECT_THAT(text, HasSubstr("use job.exchange=servers or drop it"));
    EXPECT_THAT(Why("sharded", change), HasSubstr("job.exchange=sharded does not go with"));
    return text;
  };
  EXPECT_THAT(why([](auto& job) { job.mutable_optimizer()->set_kind("lamb"); }), HasSubstr("job.optimizer.kind=lamb"));
  EXPECT_THAT(why([](auto& job) { job.mutable_optimizer()->set_clip_norm(1); }), HasSubstr("job.optimizer.clip_norm"));
  EXPECT_THAT(why([](auto& job) { job.set_reply(proto::REPLY_CHANGE); }), HasSubstr("REPLY_CHANGE"));
  EXPECT_THAT(why([](auto& job) { job.set_mode(proto::MODE_ASP); }), HasSubstr("MODE_ASP"));
  EXPECT_THAT(why([](auto& job) { job.set_mode(proto::MODE_SSP); }), HasSubstr("MODE_SSP"));
  EXPECT_THAT(why([](auto& job) { job.set_on_worker_loss(proto::LOSS_RESCALE); }), HasSubstr("LOSS_RESCALE"));
  EXPECT_THAT(why([](auto& job) { job.set_backup_workers(1); }), HasSubstr("backup_workers"));
  EXPECT_THAT(why([](auto& job) { job.set_round_deadline_ms(1); }), HasSubstr("round_deadline_ms"));
  EXPECT_THAT(why([](auto& job) { job.set_order(proto::ORDER_EXACT); }), HasSubstr("ORDER_EXACT"));
  EXPECT_THAT(why([](auto& job) { job.set_on_nonfinite(proto::NONFINITE_SKIP); }), HasSubstr("NONFINITE_SKIP"));
  EXPECT_THAT(why([](auto& job) { job.set_local_clip_norm(1); }), HasSubstr("local_clip_norm"));
  EXPECT_THAT(why([](auto& job) { job.set_momentum_correction(0.9); }), HasSubstr("momentum_correction"));
  EXPECT_THAT(why([](auto& job) { job.set_codec_warmup_rounds(5); }), HasSubstr("codec_warmup_rounds"));
  EXPECT_THAT(why([](auto& job) { job.set_codec("auto"); }), HasSubstr("codec auto"));
  EXPECT_THAT(why([](auto& job) { job.set_codec_rules("*bias=none;*=lowrank:4"); }), HasSubstr("codec lowrank"));
  EXPECT_THAT(why([](auto& job) {
                job.set_allow_biased(true);
                job.set_no_error_feedback(true);
              }),
              HasSubstr("job.allow_biased"));
}

TEST(ExchangeRules, OptimizersOfSingleElementsAndCodecsAreTaken) {
  for (const char* exchange : {"", "servers", "allreduce", "sharded", "auto"})
    for (const char* optimizer : {"", "none", "sgd", "momentum", "nesterov", "adagrad", "adam", "adamw"})
      EXPECT_EQ(Why(exchange,
                    [&](auto& job) {
                      job.mutable_optimizer()->set_kind(optimizer);
                      job.set_codec("topk:0.01+int8");
                      job.set_order(proto::ORDER_FAST);
                    }),
                "OK");
  EXPECT_THAT(Why("ring", [](auto&) {}), HasSubstr("servers, allreduce, sharded and auto"));
}

TEST(ExchangeRules, NobodyHasTheSumOfAShardedTensor) {
  const auto aggregates = [](auto& job) { job.set_reply(proto::REPLY_AGGREGATE); };
  EXPECT_EQ(Why("sharded", aggregates), "OK");
  const auto both = [](auto& job) {
    job.set_reply(proto::REPLY_AGGREGATE);
    job.mutable_optimizer()->set_kind("sgd");
  };
  EXPECT_EQ(Why("allreduce", both), "OK");
  EXPECT_THAT(Why("sharded", both), HasSubstr("no worker has the whole sum"));
}

}  // namespace
}  // namespace sluice
