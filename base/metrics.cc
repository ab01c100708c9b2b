#include "base/metrics.h"

#include <algorithm>

namespace sluice {

void MetricSamples::Counter(const MetricInfo& info, double value, MetricLabels labels) {
  samples.push_back({.kind = MetricKind::kCounter, .info = info, .labels = std::move(labels), .value = value});
}

void MetricSamples::Gauge(const MetricInfo& info, double value, MetricLabels labels) {
  samples.push_back({.kind = MetricKind::kGauge, .info = info, .labels = std::move(labels), .value = value});
}

void Counter::Sample(MetricSamples* out) const { out->Counter(info(), static_cast<double>(value())); }

void Gauge::Sample(MetricSamples* out) const { out->Gauge(info(), value()); }

std::vector<double> ExponentialBuckets(double first, double factor, int count) {
  std::vector<double> bounds;
  for (double bound = first; count > 0; --count, bound *= factor) bounds.push_back(bound);
  return bounds;
}

Histogram::Histogram(MetricInfo info, std::vector<double> bounds)
    : Metric(std::move(info)), bounds_(std::move(bounds)), buckets_(bounds_.size() + 1) {}

void Histogram::Observe(double value) {
  const size_t bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

void Histogram::Sample(MetricSamples* out) const {
  MetricSample sample{.kind = MetricKind::kHistogram, .info = info(), .bounds = bounds_};
  for (const auto& bucket : buckets_) sample.buckets.push_back(bucket.load(std::memory_order_relaxed));
  sample.sum = sum_.load(std::memory_order_relaxed);
  out->samples.push_back(std::move(sample));
}

void MetricsRegistry::Add(std::vector<const Metric*> metrics) {
  std::lock_guard<std::mutex> lock(mutex_);
  metrics_.insert(metrics_.end(), metrics.begin(), metrics.end());
}

void MetricsRegistry::AddSampler(std::function<void(MetricSamples*)> sampler) {
  std::lock_guard<std::mutex> lock(mutex_);
  samplers_.push_back(std::move(sampler));
}

std::vector<MetricSample> MetricsRegistry::Collect() const {
  std::lock_guard<std::mutex> lock(mutex_);
  MetricSamples out;
  for (const Metric* metric : metrics_) metric->Sample(&out);
  for (const auto& sampler : samplers_) sampler(&out);
  for (MetricSample& sample : out.samples) sample.labels.insert(sample.labels.end(), common_.begin(), common_.end());
  return std::move(out.samples);
}

}  // namespace sluice
