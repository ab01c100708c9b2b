// From an address to a connected socket: resolves the name, and tries each address that it has, without blocking.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/loop.h"
#include "transport/tcp/resolver.h"
#include "transport/tcp/socket.h"
#include "transport/transport.h"

namespace sluice::transport {

class Connector {
 public:
  struct Connected {
    UniqueFd fd;
    SocketAddress peer;
  };
  // Called once for each Start that is not cancelled, from the loop.
  using Done = std::function<void(absl::StatusOr<Connected>)>;

  explicit Connector(Loop* loop) : loop_(loop), resolver_(loop) {}
  ~Connector();

  void Start(LinkId id, const Address& address, Done done);
  void Cancel(LinkId id);
  // Why the addresses tried so far failed; OK if none has.
  absl::Status LastError(LinkId id) const;

 private:
  struct Attempt {
    std::vector<SocketAddress> left;  // last first
    uint64_t timer = 0;               // the first step waits for the loop
    UniqueFd fd;                      // under way
    SocketAddress peer;
    absl::Status last_error;
    Done done;
  };

  void OnAddresses(LinkId id, absl::StatusOr<std::vector<SocketAddress>> found);
  void TryNext(LinkId id);
  void OnWritable(LinkId id);
  void Finish(LinkId id, absl::StatusOr<Connected> result);

  Loop* const loop_;
  std::unordered_map<LinkId, Attempt> attempts_;
  Resolver resolver_;
};

}  // namespace sluice::transport
