#include "base/metrics_http.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

prometheus::ClientMetric ToClientMetric(const MetricSample& sample) {
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
  switch (sample.kind) {
    case MetricKind::kCounter: metric.counter.value = sample.value; break;
    case MetricKind::kGauge: metric.gauge.value = sample.value; break;
    case MetricKind::kHistogram: {
      uint64_t cumulative = 0;
      for (size_t i = 0; i < sample.buckets.size(); ++i) {
        cumulative += sample.buckets[i];
        const double bound = i < sample.bounds.size() ? sample.bounds[i] : std::numeric_limits<double>::infinity();
        metric.histogram.bucket.push_back({cumulative, bound});
      }
      metric.histogram.sample_count = cumulative;
      metric.histogram.sample_sum = sample.sum;
      break;
    }
  }
  return metric;
}

std::string Page(const MetricsRegistry& registry) {
  std::vector<prometheus::MetricFamily> families;
  std::map<std::string, size_t> index;  // samples of one name form one family
  for (const MetricSample& sample : registry.Collect()) {
    const auto [it, fresh] = index.emplace(sample.info.name, families.size());
    if (fresh) {
      constexpr prometheus::MetricType kTypes[] = {prometheus::MetricType::Counter, prometheus::MetricType::Gauge,
                                                   prometheus::MetricType::Histogram};
      const std::string unit = sample.info.unit.empty() ? "" : absl::StrCat(" (", sample.info.unit, ")");
      families.push_back({sample.info.name, sample.info.help + unit, kTypes[static_cast<int>(sample.kind)], {}});
    }
    families[it->second].metric.push_back(ToClientMetric(sample));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsHttp>> MetricsHttp::Start(const std::string& host, int port,
                                                                const MetricsRegistry* registry) {
  absl::StatusOr<std::unique_ptr<HttpPage>> page =
      HttpPage::Start({.host = host,
                       .port = port,
                       .path = "/metrics",
                       .content_type = "text/plain; version=0.0.4; charset=utf-8",
                       .body = [registry] { return Page(*registry); }});
  if (!page.ok())
    return absl::UnavailableError(absl::StrCat("metrics: ", page.status().message(), " (node.listen, node.metrics_port)"));
  return std::unique_ptr<MetricsHttp>(new MetricsHttp(*std::move(page)));
}

}  // namespace sluice
