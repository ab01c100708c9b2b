#include "transport/multipath/path_totals.h"

#include <algorithm>

namespace sluice::transport {

void PathTotals::Add(const PathTotals& other) {
  for (const auto& [name, more] : other.rails) {
    RailTotals& rail = rails[name];
    rail.bytes_out += more.bytes_out;
    rail.bytes_in += more.bytes_in;
    rail.messages_out += more.messages_out;
    rail.messages_in += more.messages_in;
    rail.up += more.up;
    rail.goodput += more.goodput;
  }
  reconnects += other.reconnects;
  chunks_resent += other.chunks_resent;
  duplicates += other.duplicates;
  credit_stall += other.credit_stall;
  broken += other.broken;
  registered_bytes += other.registered_bytes;
  refused_regions += other.refused_regions;
  for (const auto& [status, count] : other.completions) completions[status] += count;
  latency.resize(std::max(latency.size(), other.latency.size()));
  for (size_t i = 0; i < other.latency.size(); ++i) latency[i] += other.latency[i];
  latency_seconds += other.latency_seconds;
  for (const auto& port : other.ports) {
    if (std::find(ports.begin(), ports.end(), port) == ports.end()) ports.push_back(port);
  }
}

}  // namespace sluice::transport
