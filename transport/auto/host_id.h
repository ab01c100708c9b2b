// Names what two processes must share to meet over shared memory.
#pragma once

#include <string>

namespace sluice::transport {

// Kernel (boot id), network namespace (abstract unix sockets live in it) and user: "8c4e…/net:4026531840/uid:0". Empty
// if the system does not tell; then shared memory is not used.
std::string HostId();

}  // namespace sluice::transport
