// Names to addresses without blocking the loop.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/loop.h"
#include "transport/tcp/socket.h"

namespace sluice::transport {

class Resolver {
 public:
  using Done = std::function<void(absl::StatusOr<std::vector<SocketAddress>>)>;

  explicit Resolver(Loop* loop);
  // Nothing is called back after this; a look-up that hangs in the name server is left behind without holding anyone.
  ~Resolver();

  // done is called on the loop, never from inside.
  void Resolve(const std::string& host, uint32_t port, Done done);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace sluice::transport
