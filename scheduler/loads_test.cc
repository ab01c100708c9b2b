#include "scheduler/loads.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::scheduler {
namespace {

constexpr TimeNs kSmoothing = 5 * kSecond;

class Meter : public ::testing::Test {
 protected:
  // Time passes in heartbeats; per second: CPU seconds, bytes over the network each way, bytes of two shards in (and twice
  // as many out).
  void Pass(TimeNs time, double cpu, double net, double first, double second) {
    for (TimeNs t = 0; t < time; t += kSecond / 2) {
      now_ += kSecond / 2;
      cpu_ += cpu * 1e6 / 2;
      net_ += net / 2;
      first_ += first / 2;
      second_ += second / 2;
      Say();
    }
  }
  void Say() { meter_.Take(Said(), now_, kSmoothing); }
  proto::ServerCost Said() const {
    proto::ServerCost cost;
    cost.add_loop_cpu_us(static_cast<uint64_t>(cpu_ / 2));
    cost.add_loop_cpu_us(static_cast<uint64_t>(cpu_ / 2));
    cost.set_link_bytes(1000000);
    cost.set_net_bytes_in(static_cast<uint64_t>(net_));
    cost.set_net_bytes_out(static_cast<uint64_t>(net_));
    for (const double bytes : {first_, second_}) {
      proto::ShardCost* shard = cost.add_shards();
      shard->set_job(1);
      shard->set_shard(static_cast<uint32_t>(cost.shards_size()));
      shard->set_bytes_in(static_cast<uint64_t>(bytes));
      shard->set_bytes_out(static_cast<uint64_t>(2 * bytes));
    }
    return cost;
  }

  LoadMeter meter_;
  TimeNs now_ = 100 * kSecond;
  double cpu_ = 5e6, net_ = 1e6, first_ = 1e6, second_ = 0;   // counters; the server has lived for a while
};

TEST_F(Meter, CpuTimeIsSharedOutByBytes) {
  EXPECT_FALSE(meter_.Knows(now_, kSmoothing, 3 * kSecond));
  Pass(10 * kSecond, 1.2, 0, 3000, 1000);
  ASSERT_TRUE(meter_.Knows(now_, kSmoothing, 3 * kSecond));
  EXPECT_NEAR(meter_.total().cpu, 1.2, 0.01);
  EXPECT_NEAR(meter_.Of(1, 1).cpu, 0.9, 0.01);
  EXPECT_NEAR(meter_.Of(1, 2).cpu, 0.3, 0.01);
  EXPECT_NEAR(meter_.Of(1, 1).in, 3000, 10);
  EXPECT_NEAR(meter_.Of(1, 1).out, 6000, 20);
  EXPECT_EQ(meter_.Of(1, 3).cpu, 0);
  EXPECT_EQ(meter_.Of(2, 1).cpu, 0);
  EXPECT_EQ(meter_.capacity().cpu, 2);
  EXPECT_NEAR(LoadOf(meter_.total(), meter_.capacity()), 0.6, 0.01);   // all in shared memory: no link
}

TEST_F(Meter, TheLinkCountsWhatGoesOverIt) {
  Pass(10 * kSecond, 0.1, 400000, 200000, 0);   // headers, resends: twice the payload in; out: as much as the payload
  EXPECT_NEAR(meter_.capacity().in, 500000, 5000);
  EXPECT_NEAR(meter_.capacity().out, 1000000, 10000);
  EXPECT_NEAR(LoadOf(meter_.total(), meter_.capacity()), 0.4, 0.01);
}

TEST_F(Meter, ABurstIsSmoothed) {
  Pass(20 * kSecond, 0.2, 0, 1000, 1000);
  Pass(kSecond, 2, 0, 1000, 1000);
  EXPECT_LT(meter_.total().cpu, 0.6);
  Pass(30 * kSecond, 2, 0, 1000, 1000);
  EXPECT_NEAR(meter_.total().cpu, 2, 0.02);
}

TEST_F(Meter, CountersThatBeginAnewAreNoRate) {
  Pass(10 * kSecond, 1, 0, 1000, 1000);
  cpu_ = first_ = second_ = net_ = 0;   // another life
  Pass(kSecond / 2, 1, 0, 1000, 1000);
  EXPECT_EQ(meter_.total().cpu, 0);
  Pass(kSecond / 2, 1, 0, 1000, 1000);
  EXPECT_NEAR(meter_.total().cpu, 1, 0.01);
}

TEST_F(Meter, SamplesTooCloseToEachOtherAndDoubleEntriesAreLeftOut) {
  Pass(10 * kSecond, 1, 0, 1000, 1000);
  now_ += kMillisecond;
  cpu_ += 1e6;
  Say();
  EXPECT_NEAR(meter_.total().cpu, 1, 0.01);
  proto::ServerCost twice = Said();
  *twice.add_shards() = twice.shards(0);
  twice.mutable_shards(2)->set_bytes_in(UINT64_MAX);
  now_ += kSecond;
  meter_.Take(twice, now_, kSmoothing);
  EXPECT_LT(meter_.Of(1, 1).in, 2000);
}

TEST_F(Meter, AServerThatIsSilentIsNotKnown) {
  Pass(10 * kSecond, 1, 0, 1000, 1000);
  EXPECT_TRUE(meter_.Knows(now_ + 2 * kSecond, kSmoothing, 2 * kSecond));
  EXPECT_FALSE(meter_.Knows(now_ + 3 * kSecond, kSmoothing, 2 * kSecond));
}

TEST_F(Meter, ALoopThatSpinsBoundsNothing) {
  proto::ServerCost cost = Said();
  cost.clear_loop_cpu_us();
  cost.set_link_bytes(0);
  meter_.Take(cost, now_, kSmoothing);
  meter_.Take(cost, now_ + kSecond, kSmoothing);
  EXPECT_EQ(LoadOf(meter_.total(), meter_.capacity()), 0);
}

}  // namespace
}  // namespace sluice::scheduler
