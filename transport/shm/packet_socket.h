// The socket beside the shared memory: abstract unix addresses, SOCK_SEQPACKET, files passed along. Never blocks.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/shm/unique_fd.h"

namespace sluice::transport {

inline constexpr size_t kMaxPacketBytes = 2048;
inline constexpr size_t kMaxSocketNameBytes = 100;

// ALREADY_EXISTS if another process of this network namespace listens there.
absl::StatusOr<UniqueFd> ListenPackets(const std::string& name);
// UNAVAILABLE if nobody listens; RESOURCE_EXHAUSTED if the listener's queue is full (try again).
absl::StatusOr<UniqueFd> ConnectPackets(const std::string& name);
// nullopt-like: an invalid fd if nobody waits. RESOURCE_EXHAUSTED: out of files.
absl::StatusOr<UniqueFd> AcceptPackets(int listener);

struct PeerProcess {
  int pid = 0;
  uint32_t uid = 0;
};
// Who is at the other end. PERMISSION_DENIED unless it is this process's user or root.
absl::StatusOr<PeerProcess> CheckPeerProcess(int fd);

// RESOURCE_EXHAUSTED: the socket's buffer is full, nothing was sent. file: passed along unless -1.
absl::Status SendPacket(int fd, ConstBytes packet, int file = -1);

struct Packet {
  enum class Kind { kNone, kData, kEnd };  // nothing there now; a packet; the peer has closed or died
  Kind kind = Kind::kNone;
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> files;
};
// INVALID_ARGUMENT: longer than kMaxPacketBytes, or more files than a packet may have.
absl::StatusOr<Packet> ReceivePacket(int fd);

}  // namespace sluice::transport
