// Limits that both ends of the control plane agree on.
#pragma once

namespace sluice::control {

inline constexpr int kMaxMessageBytes = 64 << 20;  // a plan of a million partitions is about 16 MiB
inline constexpr int kKeepaliveMs = 10'000;        // HTTP/2 pings find half-open connections; leases are a matter of
inline constexpr int kKeepaliveTimeoutMs = 5'000;  // heartbeats and do not depend on these
inline constexpr int kMinPingIntervalMs = 5'000;   // what a server suffers before it calls a client abusive

}  // namespace sluice::control
