#include "bench/transport/iperf.h"

#include <cstdio>
#include <string>

#include "nlohmann/json.hpp"

namespace sluice::bench {

IperfResult IperfBidir(int seconds) {
  static int port = 25201;
  const std::string p = std::to_string(++port);
  const std::string command = "command -v iperf3 >/dev/null && { iperf3 -s -1 -p " + p +
                              " >/dev/null 2>&1 & sleep 0.2; iperf3 -c 127.0.0.1 -p " + p + " --bidir -J -t " +
                              std::to_string(seconds) + " 2>/dev/null; wait; }";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string text;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) text.append(buffer, n);
  pclose(pipe);
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.contains("end")) return {};
  const auto& end = json["end"];
  IperfResult result;
  double bits = 0;
  for (const char* key : {"sum_received", "sum_received_bidir_reverse"})
    if (end.contains(key)) bits += end[key].value("bits_per_second", 0.0);
  result.bytes_per_second = bits / 8;
  // Per cent of one core during the run, here and at the other end.
  const auto& cpu = end["cpu_utilization_percent"];
  const double cores = (cpu.value("host_total", 0.0) + cpu.value("remote_total", 0.0)) / 100;
  if (bits > 0) result.cpu_seconds_per_gb = cores / (result.bytes_per_second / 1e9);
  return result;
}

}  // namespace sluice::bench
