// How much of a raw socket's speed the TCP transport keeps: 64 MiB each way at the same time over one connection between
// two processes, against (a) two processes that do nothing but send and recv, and (b) iperf3 --bidir, where it is
// installed. Repetitions are interleaved and medians compared, so that other load on the machine hits all alike.
//
//   bazel run -c opt //bench/transport -- --mib=64 --reps=9 --hash=1 --stripe_kib=1024
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/transport/iperf.h"
#include "bench/transport/raw_duplex.h"
#include "bench/transport/tcp_duplex.h"

namespace sluice::bench {
namespace {

long Flag(int argc, char** argv, const char* name, long fallback) {
  const std::string prefix = std::string("--") + name + "=";
  for (int i = 1; i < argc; ++i)
    if (std::strncmp(argv[i], prefix.c_str(), prefix.size()) == 0) return std::atol(argv[i] + prefix.size());
  return fallback;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double CpuSeconds(pid_t pid) {
  clockid_t clock;
  timespec time{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

int Main(int argc, char** argv) {
  const size_t bytes = static_cast<size_t>(Flag(argc, argv, "mib", 64)) << 20;
  const long reps = Flag(argc, argv, "reps", 9);
  const bool hash = Flag(argc, argv, "hash", 1) != 0;
  const size_t stripe = static_cast<size_t>(Flag(argc, argv, "stripe_kib", 1024)) << 10;
  const bool with_iperf = Flag(argc, argv, "iperf", 1) != 0;
  const double total = 2.0 * static_cast<double>(bytes) / 1e9;

  const size_t socket_buffer = static_cast<size_t>(Flag(argc, argv, "socket_kib", 0)) << 10;  // 0: the kernel's tuning
  TcpDuplex tcp(bytes, stripe, hash, socket_buffer);
  RawDuplex raw(bytes);
  std::vector<double> tcp_rates, raw_rates, iperf_rates, tcp_cpu, raw_cpu, iperf_cpu;
  const auto measure = [&](auto& duplex, std::vector<double>& rates, std::vector<double>& cpu) {
    const double before = CpuSeconds(getpid()) + CpuSeconds(duplex.child());
    rates.push_back(total / duplex.Exchange());
    cpu.push_back((CpuSeconds(getpid()) + CpuSeconds(duplex.child()) - before) / total);
  };
  tcp.Exchange();  // warms pages and windows
  raw.Exchange();
  for (long i = 0; i < reps; ++i) {
    measure(raw, raw_rates, raw_cpu);
    measure(tcp, tcp_rates, tcp_cpu);
    if (!with_iperf) continue;
    const IperfResult iperf = IperfBidir(/*seconds=*/1);
    if (iperf.bytes_per_second == 0) continue;
    iperf_rates.push_back(iperf.bytes_per_second / 1e9);
    iperf_cpu.push_back(iperf.cpu_seconds_per_gb);
  }
  const double tcp_rate = Median(tcp_rates);
  const auto line = [&](const char* what, std::vector<double>& rates, std::vector<double>& cpu) {
    const double rate = Median(rates);
    if (rates.empty()) return;
    std::printf("%-26s %8.2f %13.2f %14.2f\n", what, rate, tcp_rate / rate, Median(cpu));
  };
  std::printf("%-26s %8s %13s %14s\n", "both ways summed", "GB/s", "tcp's part", "CPU s per GB");
  line(hash ? "tcp transport, hashed" : "tcp transport", tcp_rates, tcp_cpu);
  line("raw sockets, same bytes", raw_rates, raw_cpu);
  line("iperf3 --bidir", iperf_rates, iperf_cpu);
  if (with_iperf && iperf_rates.empty()) std::printf("iperf3 is not installed: apt install iperf3\n");
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
