// Bandwidths and latencies as people write them: "25Gb/s", "12.5GB/s", "5us".
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::topology {

// Bits (b) or bytes (B) a second, with k, M, G or T (powers of 1000). INVALID_ARGUMENT: none, or not above 0.
absl::StatusOr<double> ParseBandwidth(absl::string_view text);
// ns, us, ms or s.
absl::StatusOr<double> ParseLatency(absl::string_view text);
// A positive number with nothing behind it.
absl::StatusOr<double> ParsePositive(absl::string_view text);

// What the parsers give back to the last bit: "25Gb/s" where that is exact.
std::string BandwidthText(double bytes_per_second);
std::string LatencyText(double seconds);
// For people, three digits: "25 Gb/s".
std::string ShortBandwidth(double bytes_per_second);
std::string ShortLatency(double seconds);

}  // namespace sluice::topology
