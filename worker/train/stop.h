// SIGTERM and SIGINT for a program whose main thread is deep in a step: the step that runs may end, then the program
// ends in order. If it does not end soon (it waits for another worker, say), or a second signal comes, the process ends
// at once: that is what snapshots are for, and a wait must not be broken off while the cluster still reads the step's
// gradients.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "base/signals.h"

namespace sluice::worker {

// Exit code of a worker that was told to end before its training was complete (128 + SIGTERM): not a success.
inline constexpr int kStoppedExitCode = 143;

class StopSignal {
 public:
  static constexpr int kGraceMs = 5000;

  // Before the first thread of the program.
  static absl::StatusOr<std::unique_ptr<StopSignal>> Create();
  ~StopSignal();

  bool stopped() const { return stopped_.load(); }
  // While set, the first signal ends the process at once: nothing is under way yet that could be lost.
  void set_exit_at_once(bool on) { exit_at_once_.store(on); }

 private:
  StopSignal(std::unique_ptr<Signals> signals, int wake_read, int wake_write);
  void Watch();

  const std::unique_ptr<Signals> signals_;
  const int wake_read_, wake_write_;  // a pipe that ends the thread
  std::atomic<bool> stopped_{false}, exit_at_once_{false};
  std::thread thread_;
};

}  // namespace sluice::worker
