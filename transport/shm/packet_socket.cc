#include "transport/shm/packet_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::transport {
namespace {

absl::StatusOr<socklen_t> MakeAddress(const std::string& name, sockaddr_un* address) {
  if (name.empty() || name.size() > kMaxSocketNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the name of a shared-memory socket must have 1 to ",
                                                   kMaxSocketNameBytes, " bytes, not ", name.size()));
  }
  std::memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());  // a leading zero byte makes it abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

absl::StatusOr<UniqueFd> NewSocket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "socket(AF_UNIX) failed; check the limit of open files");
  return fd;
}

}  // namespace

absl::StatusOr<UniqueFd> ListenPackets(const std::string& name) {
  sockaddr_un address;
  SLUICE_ASSIGN_OR_RETURN(const socklen_t length, MakeAddress(name, &address));
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EADDRINUSE) {
      return absl::AlreadyExistsError(absl::StrCat("another process listens on the shared-memory socket @", name));
    }
    return absl::ErrnoToStatus(errno, absl::StrCat("bind to the shared-memory socket @", name));
  }
  if (::listen(fd.get(), 256) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("listen on @", name));
  return fd;
}

absl::StatusOr<UniqueFd> ConnectPackets(const std::string& name) {
  sockaddr_un address;
  SLUICE_ASSIGN_OR_RETURN(const socklen_t length, MakeAddress(name, &address));
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return fd;
  if (errno == EAGAIN) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue of the shared-memory socket @", name, " is full"));
  }
  if (errno == ECONNREFUSED) {
    return absl::UnavailableError(
        absl::StrCat("nobody listens on the shared-memory socket @", name,
                     " in this network namespace; is the process running, and in the same container?"));
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("connect to the shared-memory socket @", name));
}

absl::StatusOr<UniqueFd> AcceptPackets(int listener) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid() || errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return fd;
  return absl::ResourceExhaustedError(
      absl::StrCat("accepting a shared-memory peer: ", std::strerror(errno), "; check the limit of open files"));
}

absl::StatusOr<PeerProcess> CheckPeerProcess(int fd) {
  ucred peer;
  socklen_t length = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return absl::ErrnoToStatus(errno, "asking who is at the other end of a shared-memory socket");
  }
  if (peer.uid != ::geteuid() && peer.uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat("shared memory is shared only with the same user or root: process ",
                                                    peer.pid, " runs as user ", peer.uid, ", this one as ",
                                                    ::geteuid()));
  }
  return PeerProcess{.pid = peer.pid, .uid = peer.uid};
}

absl::Status SendPacket(int fd, ConstBytes packet, int file) {
  iovec data{const_cast<std::byte*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (file >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return absl::OkStatus();
  // ETOOMANYREFS: more files under way than this user may have; they go down as the peer takes them.
  if (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS) {
    return absl::ResourceExhaustedError("the shared-memory socket is full");
  }
  return absl::UnavailableError(absl::StrCat("sending on a shared-memory socket: ", std::strerror(errno)));
}

absl::StatusOr<Packet> ReceivePacket(int fd) {
  constexpr size_t kMaxFiles = 4;
  std::array<std::byte, kMaxPacketBytes> buffer;
  iovec data{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFiles)> control;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got;
  do {
    got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // ECONNRESET, once: the peer closed with packets of ours unread. What it sent before is still there.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  Packet packet;
  if (got < 0) {
    if (errno == EAGAIN) return packet;
    return absl::UnavailableError(absl::StrCat("receiving on a shared-memory socket: ", std::strerror(errno)));
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int file;
      std::memcpy(&file, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      packet.files.emplace_back(file);
    }
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError("a packet on a shared-memory socket is too long or carries too many files");
  }
  packet.kind = got == 0 ? Packet::Kind::kEnd : Packet::Kind::kData;
  packet.bytes.assign(buffer.data(), buffer.data() + got);
  return packet;
}

}  // namespace sluice::transport
