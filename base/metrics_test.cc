#include "base/metrics.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "base/metrics_http.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Metrics, CountersAddUpOverThreads) {
  Counter counter{{"c_total", "", ""}};
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) counter.Add(2);
  });
  for (int i = 0; i < 1000; ++i) counter.Add();
  other.join();
  EXPECT_EQ(counter.value(), 3000u);
}

TEST(Metrics, HistogramBucketsIncludeTheirUpperBound) {
  Histogram histogram({"h", "", ""}, {1, 2, 4});
  for (double v : {0.5, 1.0, 1.5, 2.0, 4.0, 5.0}) histogram.Observe(v);
  MetricSamples out;
  histogram.Sample(&out);
  ASSERT_EQ(out.samples.size(), 1u);
  EXPECT_THAT(out.samples[0].buckets, ElementsAre(2, 2, 1, 1));
  EXPECT_EQ(out.samples[0].sum, 14.0);
  EXPECT_THAT(ExponentialBuckets(1, 10, 3), ElementsAre(1, 10, 100));
}

TEST(Metrics, RegistryCollectsMetricsAndSamplersWithCommonLabels) {
  MetricsRegistry registry(MetricLabels{{"role", "server"}});
  Gauge gauge{{"g", "", ""}};
  gauge.Set(2.5);
  Published<int> published;
  published.Set(7);
  registry.Add({&gauge});
  registry.AddSampler([&](MetricSamples* out) { out->Counter({"s_total", "", ""}, published.Get(), {{"lane", "0"}}); });
  const auto samples = registry.Collect();
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].value, 2.5);
  EXPECT_EQ(samples[1].value, 7);
  EXPECT_THAT(samples[1].labels, ElementsAre(std::make_pair("lane", "0"), std::make_pair("role", "server")));
}

std::string HttpGet(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    (void)!write(fd, request.data(), request.size());
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return answer;
}

TEST(MetricsHttp, ServesWhatIsRegisteredAndRefusesAPortInUse) {
  MetricsRegistry registry(MetricLabels{{"role", "worker"}});
  Counter bytes{{"sluice_wire_bytes_total", "Bytes on the wire", "bytes"}};
  Histogram step({"sluice_step_seconds", "A step", "seconds"}, {1, 2});
  bytes.Add(42);
  step.Observe(1.5);
  registry.Add({&bytes, &step});
  registry.AddSampler([](MetricSamples* out) {
    for (const char* lane : {"0", "1"}) out->Gauge({"sluice_lane_pool_bytes", "Pool", "bytes"}, 1, {{"lane", lane}});
  });
  auto http = MetricsHttp::Start("127.0.0.1", 0, &registry);
  ASSERT_TRUE(http.ok()) << http.status();
  const std::string page = HttpGet((*http)->port(), "/metrics");
  EXPECT_THAT(page, HasSubstr("# HELP sluice_wire_bytes_total Bytes on the wire (bytes)"));
  EXPECT_THAT(page, HasSubstr("sluice_wire_bytes_total{role=\"worker\"} 42"));
  EXPECT_THAT(page, HasSubstr("sluice_step_seconds_bucket{role=\"worker\",le=\"2\"} 1"));
  EXPECT_THAT(page, HasSubstr("sluice_step_seconds_bucket{role=\"worker\",le=\"+Inf\"} 1"));
  EXPECT_THAT(page, HasSubstr("sluice_lane_pool_bytes{lane=\"1\",role=\"worker\"} 1"));

  const auto second = MetricsHttp::Start("127.0.0.1", (*http)->port(), &registry);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("node.metrics_port"));
}

}  // namespace
}  // namespace sluice
