#include "transport/tcp/connector.h"

#include <sys/epoll.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::transport {

Connector::~Connector() {
  while (!attempts_.empty()) Cancel(attempts_.begin()->first);
}

void Connector::Start(LinkId id, const Address& address, Done done) {
  Attempt& attempt = attempts_[id];
  attempt.done = std::move(done);
  absl::StatusOr<std::vector<SocketAddress>> found = absl::InvalidArgumentError("the peer has no TCP address");
  if (!address.host.empty()) {
    found = LookUp(address.host, address.port, /*numeric_only=*/true);
    if (absl::IsNotFound(found.status())) {
      resolver_.Resolve(address.host, address.port, [this, id](auto found) { OnAddresses(id, std::move(found)); });
      return;
    }
  }
  attempt.timer = loop_->After(0, [this, id, found = std::move(found)] {
    attempts_.at(id).timer = 0;
    OnAddresses(id, found);
  });
}

void Connector::Cancel(LinkId id) {
  const auto it = attempts_.find(id);
  if (it == attempts_.end()) return;
  if (it->second.timer != 0) loop_->CancelTimer(it->second.timer);
  if (it->second.fd.valid()) loop_->Unwatch(it->second.fd.get());
  attempts_.erase(it);
}

absl::Status Connector::LastError(LinkId id) const {
  const auto it = attempts_.find(id);
  return it == attempts_.end() ? absl::OkStatus() : it->second.last_error;
}

void Connector::OnAddresses(LinkId id, absl::StatusOr<std::vector<SocketAddress>> found) {
  const auto it = attempts_.find(id);
  if (it == attempts_.end()) return;
  if (!found.ok()) {
    if (!absl::IsNotFound(found.status())) return Finish(id, found.status());
    return Finish(id, absl::NotFoundError(absl::StrCat(found.status().message(),
                                                       "; check the name and this machine's name server")));
  }
  it->second.left.assign(found->rbegin(), found->rend());
  TryNext(id);
}

void Connector::TryNext(LinkId id) {
  Attempt& attempt = attempts_.at(id);
  while (!attempt.left.empty()) {
    attempt.peer = attempt.left.back();
    attempt.left.pop_back();
    auto fd = ConnectTo(attempt.peer);
    absl::Status status = fd.status();
    if (fd.ok()) {
      status = loop_->Watch(fd->get(), EPOLLOUT, [this, id](uint32_t) { OnWritable(id); });
      if (status.ok()) {
        attempt.fd = *std::move(fd);
        return;
      }
    }
    attempt.last_error = absl::UnavailableError(absl::StrCat(attempt.peer.ToString(), ": ", status.message()));
  }
  Finish(id, absl::UnavailableError(absl::StrCat("cannot connect: ", attempt.last_error.message(),
                                                 "; check that the peer runs and listens on this address")));
}

void Connector::OnWritable(LinkId id) {
  Attempt& attempt = attempts_.at(id);
  loop_->Unwatch(attempt.fd.get());
  UniqueFd fd = std::move(attempt.fd);
  if (const absl::Status result = ConnectResult(fd.get()); !result.ok()) {
    attempt.last_error = absl::UnavailableError(absl::StrCat(attempt.peer.ToString(), ": ", result.message()));
    return TryNext(id);
  }
  Finish(id, Connected{std::move(fd), attempt.peer});
}

void Connector::Finish(LinkId id, absl::StatusOr<Connected> result) {
  const auto it = attempts_.find(id);
  const Done done = std::move(it->second.done);
  attempts_.erase(it);
  done(std::move(result));
}

}  // namespace sluice::transport
