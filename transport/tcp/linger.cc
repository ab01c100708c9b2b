#include "transport/tcp/linger.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstddef>
#include <utility>

namespace sluice::transport {

Lingerer::~Lingerer() {
  for (const auto& [fd, socket] : sockets_) loop_->Unwatch(fd);
}

void Lingerer::Add(UniqueFd fd, TimeNs now) {
  if (sockets_.size() >= kMaxSockets) return;
  const int raw = fd.get();
  shutdown(raw, SHUT_WR);
  if (!loop_->Watch(raw, EPOLLIN, [this, raw](uint32_t) { Drain(raw); }).ok()) return;
  sockets_.emplace(raw, Socket{std::move(fd), now + kFor});
}

void Lingerer::Tick(TimeNs now) {
  for (auto it = sockets_.begin(); it != sockets_.end();) {
    if (now < it->second.until) {
      ++it;
      continue;
    }
    loop_->Unwatch(it->first);
    it = sockets_.erase(it);
  }
}

void Lingerer::Drain(int fd) {
  // Into memory that nobody reads: with MSG_TRUNC the kernel could throw it away by itself, but ThreadSanitizer takes that
  // for a write to the null pointer.
  std::byte scratch[16 << 10];
  const ssize_t got = recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT);
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return;
  loop_->Unwatch(fd);
  sockets_.erase(fd);
}

}  // namespace sluice::transport
