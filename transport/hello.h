// The payload of HELLO and WELCOME (docs/wire.md). What the fields must be (role, job, name for this listener) is the
// acceptor's business; this checks only the form.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/transport.h"

namespace sluice::transport {

inline constexpr size_t kMaxHelloNameBytes = 255;
inline constexpr size_t kHelloFixedBytes = 36;
inline constexpr size_t kMaxHelloBytes = kHelloFixedBytes + kMaxHelloNameBytes;

// A longer name is cut to kMaxHelloNameBytes.
std::vector<std::byte> EncodeHello(const Hello& hello);

// Refuses another length than the fields say, a role that is neither worker nor server, and a name that is too long.
absl::StatusOr<Hello> DecodeHello(ConstBytes payload);

// "worker 3 (host-a:4711)": for messages to people.
std::string DebugString(const Hello& hello);

}  // namespace sluice::transport
