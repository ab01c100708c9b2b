#include "base/metrics_http.h"

#include <prometheus/client_metric.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <exception>
#include <limits>
#include <map>

#include "absl/strings/match.h"
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

class Collector : public prometheus::Collectable {
 public:
  explicit Collector(const MetricsRegistry* registry) : registry_(registry) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    std::map<std::string, size_t> index;  // samples of one name form one family
    for (const MetricSample& sample : registry_->Collect()) {
      const auto [it, fresh] = index.emplace(sample.info.name, families.size());
      if (fresh) {
        constexpr prometheus::MetricType kTypes[] = {prometheus::MetricType::Counter, prometheus::MetricType::Gauge,
                                                     prometheus::MetricType::Histogram};
        const std::string unit = sample.info.unit.empty() ? "" : absl::StrCat(" (", sample.info.unit, ")");
        families.push_back({sample.info.name, sample.info.help + unit, kTypes[static_cast<int>(sample.kind)], {}});
      }
      families[it->second].metric.push_back(ToClientMetric(sample));
    }
    return families;
  }

 private:
  const MetricsRegistry* const registry_;
};

}  // namespace

struct MetricsHttp::Impl {
  std::shared_ptr<Collector> collector;
  std::unique_ptr<prometheus::Exposer> exposer;  // destroyed first: ends the threads that collect
};

absl::StatusOr<std::unique_ptr<MetricsHttp>> MetricsHttp::Start(const std::string& host, int port,
                                                                const MetricsRegistry* registry) {
  const std::string address =
      absl::StrCat(absl::StrContains(host, ':') && host[0] != '[' ? absl::StrCat("[", host, "]") : host, ":", port);
  auto impl = std::make_unique<Impl>();
  impl->collector = std::make_shared<Collector>(registry);
  try {  // prometheus-cpp reports by exceptions; they end here
    impl->exposer = std::make_unique<prometheus::Exposer>(address, 1);
    impl->exposer->RegisterCollectable(impl->collector);
    const std::vector<int> ports = impl->exposer->GetListeningPorts();
    const int bound = ports.empty() ? port : ports[0];
    return std::unique_ptr<MetricsHttp>(new MetricsHttp(std::move(impl), bound));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("metrics cannot be served on ", address, ": ", error.what(),
                                               "; is the port in use (node.metrics_port)?"));
  }
}

MetricsHttp::MetricsHttp(std::unique_ptr<Impl> impl, int port) : impl_(std::move(impl)), port_(port) {}

MetricsHttp::~MetricsHttp() = default;

}  // namespace sluice
