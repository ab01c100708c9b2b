#include "worker/train/stop.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace sluice::worker {

absl::StatusOr<std::unique_ptr<StopSignal>> StopSignal::Create() {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Signals> signals, Signals::Create());
  int wake[2];
  if (pipe2(wake, O_CLOEXEC) != 0) return absl::UnavailableError(absl::StrCat("pipe: ", std::strerror(errno)));
  return std::unique_ptr<StopSignal>(new StopSignal(std::move(signals), wake[0], wake[1]));
}

StopSignal::StopSignal(std::unique_ptr<Signals> signals, int wake_read, int wake_write)
    : signals_(std::move(signals)), wake_read_(wake_read), wake_write_(wake_write), thread_([this] { Watch(); }) {}

StopSignal::~StopSignal() {
  close(wake_write_);
  thread_.join();
  close(wake_read_);
}

void StopSignal::Watch() {
  const Logger log("worker");
  while (true) {
    pollfd fds[2] = {{signals_->fd(), POLLIN, 0}, {wake_read_, POLLIN, 0}};
    const int ready = poll(fds, 2, stopped() ? kGraceMs : -1);
    if (ready < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    if (ready == 0) {
      log.Warn("the step did not end within ", kGraceMs / 1000, " s; ends without it");
      std::_Exit(kStoppedExitCode);
    }
    const std::optional<int> signal = signals_->Next();
    if (!signal.has_value() || (*signal != SIGTERM && *signal != SIGINT)) continue;
    log.Info("ends: ", *signal == SIGTERM ? "SIGTERM" : "SIGINT");
    if (exit_at_once_.load() || stopped()) std::_Exit(kStoppedExitCode);
    stopped_.store(true);
  }
}

}  // namespace sluice::worker
