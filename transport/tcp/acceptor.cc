#include "transport/tcp/acceptor.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "base/status_macros.h"

namespace sluice::transport {
namespace {

constexpr int kAcceptsPerEvent = 16;
constexpr TimeNs kPause = 100 * kMillisecond;

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Create(Loop* loop, const std::string& host, uint32_t port,
                                                           bool reuse_address,
                                                           std::function<void(UniqueFd)> accepted) {
  SLUICE_ASSIGN_OR_RETURN(const auto addresses, LookUp(host, port, /*numeric_only=*/false));
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, ListenOn(addresses.front(), reuse_address));
  std::unique_ptr<Acceptor> acceptor(new Acceptor(loop, std::move(fd), std::move(accepted)));
  SLUICE_RETURN_IF_ERROR(
      loop->Watch(acceptor->fd_.get(), EPOLLIN, [self = acceptor.get()](uint32_t) { self->Accept(); }));
  return acceptor;
}

Acceptor::Acceptor(Loop* loop, UniqueFd fd, std::function<void(UniqueFd)> accepted)
    : loop_(loop), fd_(std::move(fd)), port_(PortOf(LocalAddress(fd_.get()))), accepted_(std::move(accepted)) {}

Acceptor::~Acceptor() {
  if (pause_timer_ != 0) loop_->CancelTimer(pause_timer_);
  loop_->Unwatch(fd_.get());
}

void Acceptor::Accept() {
  for (int i = 0; i < kAcceptsPerEvent; ++i) {
    UniqueFd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      accepted_(std::move(fd));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    // Out of descriptors or memory: the event would come again at once, so look away for a moment.
    if (errno != EAGAIN && errno != EWOULDBLOCK) Pause();
    return;
  }
}

void Acceptor::Pause() {
  loop_->Rewatch(fd_.get(), 0);
  pause_timer_ = loop_->After(kPause, [this] {
    pause_timer_ = 0;
    loop_->Rewatch(fd_.get(), EPOLLIN);
  });
}

}  // namespace sluice::transport
