// The listening socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/loop.h"
#include "transport/tcp/socket.h"

namespace sluice::transport {

class Acceptor {
 public:
  // accepted gets each new connection, non-blocking. Name resolution of the host may block (it is done once, at start).
  static absl::StatusOr<std::unique_ptr<Acceptor>> Create(Loop* loop, const std::string& host, uint32_t port,
                                                          bool reuse_address, std::function<void(UniqueFd)> accepted);
  ~Acceptor();

  uint32_t port() const { return port_; }

 private:
  Acceptor(Loop* loop, UniqueFd fd, std::function<void(UniqueFd)> accepted);
  void Accept();
  void Pause();

  Loop* const loop_;
  const UniqueFd fd_;
  const uint32_t port_;
  const std::function<void(UniqueFd)> accepted_;
  uint64_t pause_timer_ = 0;
};

}  // namespace sluice::transport
