// Sockets without surprises: owned descriptors, errors as statuses, nothing blocks.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace sluice::transport {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release();
  void Reset();

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  std::string ToString() const;  // "127.0.0.1:7000", "[::1]:7000"
};

// All addresses of a host. numeric_only: never asks a name server, so it never blocks; names are NOT_FOUND then.
absl::StatusOr<std::vector<SocketAddress>> LookUp(const std::string& host, uint32_t port, bool numeric_only);

// A listening, non-blocking socket. ALREADY_EXISTS: in use by somebody else.
absl::StatusOr<UniqueFd> ListenOn(const SocketAddress& address, bool reuse_address);

// A non-blocking socket whose connection is under way (or there already).
absl::StatusOr<UniqueFd> ConnectTo(const SocketAddress& address);
// What became of it, once it is writable.
absl::Status ConnectResult(int fd);

SocketAddress LocalAddress(int fd);
SocketAddress PeerAddress(int fd);
uint32_t PortOf(const SocketAddress& address);

struct SocketTuning {
  size_t buffer_bytes = 0;     // 0 = the kernel's own tuning
  TimeNs user_timeout = 0;     // unacknowledged data this old breaks the connection
  std::string congestion;      // empty = the system's
};
// TCP_NODELAY and the above; what the system refuses is left as it is.
void Tune(int fd, const SocketTuning& tuning);

}  // namespace sluice::transport
