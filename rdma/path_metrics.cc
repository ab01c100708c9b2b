#include "rdma/path_metrics.h"

#include "rdma/port_counters.h"

namespace sluice::rdma {
namespace {

constexpr TimeNs kReadAgain = kSecond;
constexpr size_t kMostPorts = 64, kMostCounters = 128;   // of the kernel's; devices have some 40 names

MetricSample LatencySample(const transport::PathTotals& totals) {
  MetricSample sample{.kind = MetricKind::kHistogram,
                      .info = {"sluice_rdma_completion_seconds", "From posting to completion", "seconds"},
                      .labels = {},
                      .bounds = {},
                      .buckets = totals.latency};
  for (size_t i = 0; i + 1 < totals.latency.size(); ++i) sample.bounds.push_back(static_cast<double>(uint64_t{1} << i) / 1e6);
  sample.sum = totals.latency_seconds;
  return sample;
}

}  // namespace

void PathMetrics::Sample(const transport::PathTotals& totals, MetricSamples* out) {
  for (const auto& [name, rail] : totals.rails) {
    const MetricLabels labels = {{"kind", name.first}, {"rail", name.second}};
    const auto counter = [&](const char* metric, const char* help, const char* unit, uint64_t value) {
      out->Counter({metric, help, unit}, static_cast<double>(value), labels);
    };
    counter("sluice_path_bytes_out_total", "Sent over paths of this kind and rail", "bytes", rail.bytes_out);
    counter("sluice_path_bytes_in_total", "Received over them", "bytes", rail.bytes_in);
    counter("sluice_path_messages_out_total", "Packets and chunks sent", "messages", rail.messages_out);
    counter("sluice_path_messages_in_total", "Packets and chunks received", "messages", rail.messages_in);
    out->Gauge({"sluice_paths_up", "Paths that are up: of kind rdma, queue pairs", "paths"}, static_cast<double>(rail.up), labels);
    out->Gauge({"sluice_path_goodput_bytes_per_second", "Of large payloads, as measured last, summed over paths", "bytes/second"},
               rail.goodput, labels);
  }
  const auto counter = [&](const char* metric, const char* help, const char* unit, uint64_t value) {
    out->Counter({metric, help, unit}, static_cast<double>(value));
  };
  counter("sluice_path_reconnects_total", "Paths that were made again after a loss", "paths", totals.reconnects);
  counter("sluice_path_chunks_resent_total", "Sent again because a path was lost", "chunks", totals.chunks_resent);
  counter("sluice_path_duplicates_total", "Packets that came twice because a path was lost", "packets", totals.duplicates);
  out->Counter({"sluice_path_credit_stall_seconds_total", "Waits of paths for receives of the peer", "seconds"},
               static_cast<double>(totals.credit_stall) / kSecond);
  counter("sluice_rdma_queue_pairs_broken_total", "Queue pairs given up", "queue pairs", totals.broken);
  for (const auto& [status, count] : totals.completions) {
    out->Counter({"sluice_rdma_completions_total", "Completions by status", "completions"}, static_cast<double>(count),
                 {{"status", status}});
  }
  if (totals.latency.size() > 1) out->samples.push_back(LatencySample(totals));
  out->Gauge({"sluice_rdma_registered_bytes", "Memory registered with devices", "bytes"},
             static_cast<double>(totals.registered_bytes));
  out->Gauge({"sluice_rdma_unregistered_regions", "Regions that devices refused: they go over TCP", "regions"},
             static_cast<double>(totals.refused_regions));

  const std::lock_guard<std::mutex> lock(mutex_);
  const TimeNs now = clock_->Now();
  for (const auto& name : totals.ports) {
    if (ports_.size() >= kMostPorts && !ports_.contains(name)) continue;
    Port& port = ports_[name];
    if (port.at == 0 || now - port.at >= kReadAgain) {
      port.at = now;
      port.counters = ReadPortCounters(name.first, static_cast<uint8_t>(name.second), sysfs_);
    }
    size_t count = 0;
    for (const auto& [counter_name, value] : port.counters) {
      if (++count > kMostCounters) break;
      out->Counter({"sluice_rdma_port_total", "What the port counts, by the kernel's name", "events"}, static_cast<double>(value),
                   {{"device", name.first}, {"port", std::to_string(name.second)}, {"counter", counter_name}});
    }
  }
}

}  // namespace sluice::rdma
