#include "base/signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<Signals>> Signals::Create() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&set, signal);
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0)
    return absl::InternalError(absl::StrCat("blocking signals: ", std::strerror(error)));
  signal(SIGPIPE, SIG_IGN);
  const int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return absl::InternalError(absl::StrCat("signalfd: ", std::strerror(errno)));
  return std::unique_ptr<Signals>(new Signals(fd));
}

Signals::~Signals() { close(fd_); }

std::optional<int> Signals::Next() {
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

int Signals::Wait() {
  while (true) {
    if (const std::optional<int> signal = Next()) return *signal;
    pollfd event{fd_, POLLIN, 0};
    poll(&event, 1, -1);
  }
}

}  // namespace sluice
