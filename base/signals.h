// SIGTERM and SIGINT as something to read from a descriptor, so that an event loop ends a daemon in order.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"

namespace sluice {

class Signals {
 public:
  // Blocks SIGTERM, SIGINT and SIGUSR1 (by convention: write the trace now) in the calling thread and in all that it
  // starts later, and ignores SIGPIPE: call it in main() before the first thread.
  static absl::StatusOr<std::unique_ptr<Signals>> Create();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Readable when a signal is waiting.
  int fd() const { return fd_; }
  // The next waiting signal's number; never blocks.
  std::optional<int> Next();
  // Blocks until a signal comes; for programs without a loop.
  int Wait();

 private:
  explicit Signals(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace sluice
