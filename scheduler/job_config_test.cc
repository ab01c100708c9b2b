#include "scheduler/job_config.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::scheduler {
namespace {

using ::testing::HasSubstr;

proto::JobConfig Normal(void (*change)(proto::JobConfig&) = [](proto::JobConfig&) {}) {
  proto::JobConfig config;
  change(config);
  NormaliseJobConfig(&config);
  return config;
}

TEST(JobConfig, DefaultsAreFilledAndPass) {
  const proto::JobConfig config = Normal();
  EXPECT_TRUE(CheckJobConfig(config).ok()) << CheckJobConfig(config);
  EXPECT_EQ(config.name(), "default");
  EXPECT_EQ(config.workers(), 1u);
  EXPECT_EQ(config.partition_bytes(), 4u << 20);
  EXPECT_EQ(config.reply(), proto::REPLY_AGGREGATE);
  EXPECT_EQ(Normal([](auto& c) { c.mutable_optimizer()->set_kind("adam"); }).reply(), proto::REPLY_PARAMETERS);
  EXPECT_EQ(Normal([](auto& c) { c.set_mode(proto::MODE_SSP); }).staleness(), 4u);
  proto::JobConfig twice = config;
  NormaliseJobConfig(&twice);
  EXPECT_EQ(FirstDifference(config, twice), "");
}

TEST(JobConfig, RefusesContradictionsByKey) {
  const auto refused = [](const proto::JobConfig& config, const char* key) {
    const absl::Status status = CheckJobConfig(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_THAT(std::string(status.message()), HasSubstr(key));
  };
  refused(Normal([](auto& c) { c.set_name("with space"); }), "job.name");
  refused(Normal([](auto& c) { c.set_name(std::string(129, 'x')); }), "job.name");
  refused(Normal([](auto& c) { c.set_workers(65537); }), "job.workers");
  refused(Normal([](auto& c) { c.set_partition_bytes(12); }), "job.partition_bytes");
  refused(Normal([](auto& c) { c.set_partition_bytes(4097); }), "job.partition_bytes");
  refused(Normal([](auto& c) { c.set_mode(static_cast<proto::Mode>(9)); }), "job.mode");
  refused(Normal([](auto& c) { c.mutable_optimizer()->set_kind("sdg"); }), "job.optimizer.kind");
  refused(Normal([](auto& c) { c.mutable_optimizer()->set_rate(0.0 / 0.0); }), "job.optimizer.rate");
  refused(Normal([](auto& c) { c.mutable_optimizer()->set_momentum(-1); }), "job.optimizer.momentum");
  refused(Normal([](auto& c) { c.mutable_optimizer()->set_schedule("step"); }), "step_rounds");
  refused(Normal([](auto& c) { c.mutable_optimizer()->set_schedule("cosine"); }), "total_rounds");
  refused(Normal([](auto& c) { c.set_reply(proto::REPLY_CHANGE); }), "job.reply");
  refused(Normal([](auto& c) { c.set_codec("topk:0.01"), c.set_no_error_feedback(true); }), "topk");
  refused(Normal([](auto& c) { c.set_codec("int9"); }), "int8");
  for (proto::Mode mode : {proto::MODE_SSP, proto::MODE_ASP}) {
    proto::JobConfig base;
    base.set_mode(mode);
    base.mutable_optimizer()->set_kind("sgd");
    const auto with = [&](auto change) {
      proto::JobConfig c = base;
      change(c);
      NormaliseJobConfig(&c);
      return c;
    };
    EXPECT_TRUE(CheckJobConfig(with([](auto&) {})).ok());
    refused(with([](auto& c) { c.set_reply(proto::REPLY_CHANGE); }), "REPLY_CHANGE");
    refused(with([](auto& c) { c.set_order(proto::ORDER_EXACT); }), "ORDER_EXACT");
    refused(with([](auto& c) { c.set_on_nonfinite(proto::NONFINITE_SKIP); }), "NONFINITE_SKIP");
    refused(with([](auto& c) { c.mutable_optimizer()->set_clip_norm(1); }), "clip_norm");
    refused(with([](auto& c) { c.mutable_optimizer()->set_kind("lamb"); }), "lamb");
  }
}

TEST(JobConfig, NamesTheFirstDifferenceAlsoWhereNumbersPrintAlike) {
  proto::JobConfig a = Normal(), b = a;
  b.set_on_worker_loss(proto::LOSS_FAIL);
  EXPECT_EQ(FirstDifference(a, b), "job.on_worker_loss: LOSS_WAIT and LOSS_FAIL");
  b.mutable_optimizer()->set_rate(0.25);
  EXPECT_EQ(FirstDifference(a, b), "job.optimizer.rate: 0 and 0.25");
  a.mutable_optimizer()->set_rate(0.1);
  b.mutable_optimizer()->set_rate(0.1 + 1e-17 * 3);
  ASSERT_NE(a.optimizer().rate(), b.optimizer().rate());
  EXPECT_THAT(FirstDifference(a, b), HasSubstr("job.optimizer.rate: 0.1 ("));
  b.set_codec("int8");
  EXPECT_EQ(FirstDifference(a, b), "job.codec: \"none\" and \"int8\"");
}

}  // namespace
}  // namespace sluice::scheduler
