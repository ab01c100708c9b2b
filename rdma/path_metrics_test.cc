#include "rdma/path_metrics.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::rdma {
namespace {

double ValueOf(const MetricSamples& samples, const std::string& name, const MetricLabels& labels = {}) {
  for (const MetricSample& sample : samples.samples) {
    if (sample.info.name == name && sample.labels == labels) return sample.value;
  }
  ADD_FAILURE() << "no sample " << name;
  return -1;
}

TEST(PathMetricsTest, SumsOfEndpointsBecomeSamples) {
  transport::PathTotals one, two;
  one.rails[{"rdma", "mlx5_0:1"}] = {.bytes_out = 10, .bytes_in = 1, .messages_out = 3, .messages_in = 2, .up = 2, .goodput = 5e9};
  one.rails[{"tcp", "base"}] = {.bytes_out = 7, .bytes_in = 0, .messages_out = 1, .messages_in = 0, .up = 1, .goodput = 0};
  one.broken = 1;
  one.credit_stall = 3 * kSecond / 2;
  one.completions = {{"success", 9}};
  one.latency = {0, 4, 5};
  one.latency_seconds = 1e-5;
  two.rails[{"rdma", "mlx5_0:1"}] = {.bytes_out = 100, .bytes_in = 0, .messages_out = 30, .messages_in = 0, .up = 1, .goodput = 1e9};
  two.completions = {{"success", 1}, {"flushed", 2}};
  two.latency = {1, 0, 0};
  one.Add(two);
  const ManualClock clock;
  PathMetrics metrics(&clock);
  MetricSamples samples;
  metrics.Sample(one, &samples);
  const MetricLabels rdma = {{"kind", "rdma"}, {"rail", "mlx5_0:1"}};
  EXPECT_EQ(ValueOf(samples, "sluice_path_bytes_out_total", rdma), 110);
  EXPECT_EQ(ValueOf(samples, "sluice_path_messages_out_total", rdma), 33);
  EXPECT_EQ(ValueOf(samples, "sluice_paths_up", rdma), 3);
  EXPECT_EQ(ValueOf(samples, "sluice_path_goodput_bytes_per_second", rdma), 6e9);
  EXPECT_EQ(ValueOf(samples, "sluice_path_bytes_out_total", {{"kind", "tcp"}, {"rail", "base"}}), 7);
  EXPECT_EQ(ValueOf(samples, "sluice_path_credit_stall_seconds_total"), 1.5);
  EXPECT_EQ(ValueOf(samples, "sluice_rdma_queue_pairs_broken_total"), 1);
  EXPECT_EQ(ValueOf(samples, "sluice_rdma_completions_total", {{"status", "success"}}), 10);
  EXPECT_EQ(ValueOf(samples, "sluice_rdma_completions_total", {{"status", "flushed"}}), 2);
  for (const MetricSample& sample : samples.samples) {
    if (sample.kind != MetricKind::kHistogram) continue;
    EXPECT_EQ(sample.info.name, "sluice_rdma_completion_seconds");
    EXPECT_THAT(sample.bounds, testing::ElementsAre(1e-6, 2e-6));
    EXPECT_THAT(sample.buckets, testing::ElementsAre(1, 4, 5));
  }
}

TEST(PathMetricsTest, PortsAreReadOnceASecondAtMost) {
  std::string root = testing::TempDir() + "/sluice-ports-XXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const std::filesystem::path folder = root + "/class/infiniband/rxe0/ports/1/hw_counters";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "out_of_sequence") << "3\n";
  ManualClock clock;
  clock.Set(kSecond);
  PathMetrics metrics(&clock, root);
  transport::PathTotals totals;
  totals.ports = {{"rxe0", 1}};
  const MetricLabels labels = {{"device", "rxe0"}, {"port", "1"}, {"counter", "out_of_sequence"}};
  const auto read = [&] {
    MetricSamples samples;
    metrics.Sample(totals, &samples);
    return ValueOf(samples, "sluice_rdma_port_total", labels);
  };
  EXPECT_EQ(read(), 3);
  std::ofstream(folder / "out_of_sequence") << "5\n";
  clock.Set(kSecond + kSecond / 2);
  EXPECT_EQ(read(), 3);
  clock.Set(2 * kSecond);
  EXPECT_EQ(read(), 5);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace sluice::rdma
