#include "bench/transport/raw_duplex.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace sluice::bench {
namespace {

constexpr size_t kChunk = 256 << 10;

[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

}  // namespace

RawDuplex::RawDuplex(size_t bytes) : out_(bytes, 1), in_(bytes, 2) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    Fail("raw sockets");
  child_ = fork();
  if (child_ == 0) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0) Fail("connect");
    char go;
    while (recv(fd_, &go, 1, MSG_WAITALL) == 1) Run(fd_, out_, in_);
    std::_Exit(0);
  }
  fd_ = accept(listener, nullptr, nullptr);
  close(listener);
  if (fd_ < 0) Fail("accept");
}

RawDuplex::~RawDuplex() {
  close(fd_);
  waitpid(child_, nullptr, 0);
}

double RawDuplex::Exchange() {
  const auto begin = std::chrono::steady_clock::now();
  const char go = 1;
  if (send(fd_, &go, 1, 0) != 1) Fail("send");
  Run(fd_, out_, in_);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void RawDuplex::Run(int fd, std::vector<char>& out, std::vector<char>& in) {
  size_t sent = 0, got = 0;
  while (sent < out.size() || got < in.size()) {
    pollfd event{fd, static_cast<short>((got < in.size() ? POLLIN : 0) | (sent < out.size() ? POLLOUT : 0)), 0};
    poll(&event, 1, -1);
    if ((event.revents & POLLOUT) != 0 && sent < out.size()) {
      const ssize_t n = send(fd, out.data() + sent, std::min(kChunk, out.size() - sent), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) Fail("send");
      sent += n > 0 ? static_cast<size_t>(n) : 0;
    }
    if ((event.revents & POLLIN) != 0 && got < in.size()) {
      const ssize_t n = recv(fd, in.data() + got, std::min(kChunk, in.size() - got), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) Fail("recv");
      got += n > 0 ? static_cast<size_t>(n) : 0;
    }
  }
}

}  // namespace sluice::bench
