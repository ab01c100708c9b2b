// Metrics: declared in one struct a component, registered in one place, read when somebody scrapes.
//
//   struct ServerMetrics {
//     Counter refused{{"sluice_server_refused_total", "Pushes that were refused", "pushes"}};
//     Histogram step{{"sluice_server_round_seconds", "First contribution to applied", "seconds"},
//                    ExponentialBuckets(1e-4, 4, 10)};
//   };
//   registry.Add({&metrics.refused, &metrics.step});
//   registry.AddSampler([&](MetricSamples* out) { out->Counter(kRoundsApplied, published.Get().rounds_applied); });
//
// Updates are single relaxed atomic operations and never wait, so loop threads may make them. What a loop keeps in
// plain structs (ServerCoreStats…) it hands over by Published<T>, and a sampler turns it into metrics on the scrape's
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

// Names are Prometheus': snake case, the unit as a suffix, _total for counters.
struct MetricInfo {
  std::string name;
  std::string help;
  std::string unit;  // for people: "bytes", "seconds", "rounds"
};

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

enum class MetricKind { kCounter, kGauge, kHistogram };

struct MetricSample {
  MetricKind kind = MetricKind::kGauge;
  MetricInfo info;
  MetricLabels labels;
  double value = 0;               // counters and gauges
  std::vector<double> bounds;     // histograms: upper bounds, rising; one more bucket lies above the last
  std::vector<uint64_t> buckets;  // not cumulative; bounds.size() + 1
  double sum = 0;
};

class MetricSamples {
 public:
  void Counter(const MetricInfo& info, double value, MetricLabels labels = {});
  void Gauge(const MetricInfo& info, double value, MetricLabels labels = {});
  std::vector<MetricSample> samples;
};

class Metric {
 public:
  explicit Metric(MetricInfo info) : info_(std::move(info)) {}
  virtual ~Metric() = default;
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;
  virtual void Sample(MetricSamples* out) const = 0;
  const MetricInfo& info() const { return info_; }

 private:
  const MetricInfo info_;
};

class Counter final : public Metric {
 public:
  using Metric::Metric;
  void Add(uint64_t by = 1) { value_.fetch_add(by, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }
  void Sample(MetricSamples* out) const override;

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge final : public Metric {
 public:
  using Metric::Metric;
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }
  void Sample(MetricSamples* out) const override;

 private:
  std::atomic<double> value_{0};
};

// first, first * factor, …: `count` bounds.
std::vector<double> ExponentialBuckets(double first, double factor, int count);

class Histogram final : public Metric {
 public:
  Histogram(MetricInfo info, std::vector<double> bounds);  // bounds must rise
  void Observe(double value);
  void Sample(MetricSamples* out) const override;

 private:
  const std::vector<double> bounds_;
  std::vector<std::atomic<uint64_t>> buckets_;
  std::atomic<double> sum_{0};
};

// Everything that one process exposes. Thread-safe. What is added must outlive the registry's last Collect.
class MetricsRegistry {
 public:
  // Labels that all samples of this process carry, e.g. {"role", "server"}.
  explicit MetricsRegistry(MetricLabels common = {}) : common_(std::move(common)) {}

  void Add(std::vector<const Metric*> metrics);
  void AddSampler(std::function<void(MetricSamples*)> sampler);
  std::vector<MetricSample> Collect() const;

 private:
  const MetricLabels common_;
  mutable std::mutex mutex_;
  std::vector<const Metric*> metrics_;                         // guarded by mutex_
  std::vector<std::function<void(MetricSamples*)>> samplers_;  // guarded by mutex_
};

// A copy of a loop's plain statistics for other threads. Set it now and then (each tick), not per message.
template <typename T>
class Published {
 public:
  void Set(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    value_ = std::move(value);
  }
  T Get() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return value_;
  }

 private:
  mutable std::mutex mutex_;
  T value_{};  // guarded by mutex_
};

}  // namespace sluice
