// What the network link behind an address carries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

// Bytes a second, each way, of the interface that has this address of this host (numeric, or a name that resolves to it).
// None for loopback, for an address of another host, and where the driver does not say (most virtual interfaces).
std::optional<uint64_t> LinkRateOf(const std::string& host);

}  // namespace sluice
