#include "transport/tcp/socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::transport {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = other.Release();
  }
  return *this;
}

int UniqueFd::Release() { return std::exchange(fd_, -1); }

void UniqueFd::Reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

std::string SocketAddress::ToString() const {
  char host[NI_MAXHOST], service[NI_MAXSERV];
  if (bytes == 0 || getnameinfo(reinterpret_cast<const sockaddr*>(&storage), bytes, host, sizeof(host), service,
                                sizeof(service), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return storage.ss_family == AF_INET6 ? absl::StrCat("[", host, "]:", service) : absl::StrCat(host, ":", service);
}

absl::StatusOr<std::vector<SocketAddress>> LookUp(const std::string& host, uint32_t port, bool numeric_only) {
  if (port > 65535) return absl::InvalidArgumentError(absl::StrCat("port ", port, " is above 65535"));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric_only ? AI_NUMERICHOST : 0);
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::NotFoundError(absl::StrCat("cannot resolve \"", host, "\": ",
                                            error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error)));
  }
  std::vector<SocketAddress> found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress& address = found.emplace_back();
    memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.bytes = entry->ai_addrlen;
  }
  freeaddrinfo(list);
  if (found.empty()) return absl::NotFoundError(absl::StrCat("\"", host, "\" has no address"));
  return found;
}

absl::StatusOr<UniqueFd> ListenOn(const SocketAddress& address, bool reuse_address) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd.valid() && reuse_address) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    const std::string text = absl::StrCat("cannot listen on ", address.ToString(), ": ", strerror(error));
    if (error == EADDRINUSE) {
      return absl::AlreadyExistsError(absl::StrCat(text, "; choose another port (0 = any), or see who has it: ss -ltnp "
                                                         "'sport = :", PortOf(address), "'"));
    }
    if (error == EACCES) return absl::PermissionDeniedError(text);
    if (error == EADDRNOTAVAIL)
      return absl::InvalidArgumentError(
          absl::StrCat(text, "; node.listen must be an address of this machine (`ip address` shows them), or 0.0.0.0 for "
                             "all; others reach it by node.advertise"));
    return absl::UnavailableError(text);
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectTo(const SocketAddress& address) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::UnavailableError(absl::StrCat("cannot open a socket: ", strerror(errno)));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0 &&
      errno != EINPROGRESS && errno != EINTR)
    return absl::UnavailableError(strerror(errno));
  return fd;
}

absl::Status ConnectResult(int fd) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  if (error != 0) return absl::UnavailableError(strerror(error));
  // A connect to a free port of the ephemeral range of one's own host may be given that very port, and meets itself.
  const SocketAddress local = LocalAddress(fd), peer = PeerAddress(fd);
  if (local.bytes == peer.bytes && memcmp(&local.storage, &peer.storage, local.bytes) == 0)
    return absl::UnavailableError("nobody listens there (the connection met itself)");
  return absl::OkStatus();
}

SocketAddress LocalAddress(int fd) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) address.bytes = 0;
  return address;
}

SocketAddress PeerAddress(int fd) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) address.bytes = 0;
  return address;
}

uint32_t PortOf(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  if (address.storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  return 0;
}

void Tune(int fd, const SocketTuning& tuning) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (tuning.buffer_bytes > 0) {
    const int bytes = static_cast<int>(std::min<size_t>(tuning.buffer_bytes, 1 << 30));
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
  }
  if (tuning.user_timeout > 0) {
    const unsigned int ms = static_cast<unsigned int>(std::min<TimeNs>(tuning.user_timeout / kMillisecond, 1 << 30));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
  }
  if (!tuning.congestion.empty()) {
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, tuning.congestion.data(),
               static_cast<socklen_t>(tuning.congestion.size()));
  }
}

}  // namespace sluice::transport
