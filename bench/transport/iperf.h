#pragma once

namespace sluice::bench {

struct IperfResult {
  double bytes_per_second = 0;   // goodput, both directions summed; 0 if iperf3 is not installed
  double cpu_seconds_per_gb = 0; // of client and server together
};

// iperf3 --bidir on loopback.
IperfResult IperfBidir(int seconds);

}  // namespace sluice::bench
