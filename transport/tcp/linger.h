// Sockets that were closed with a reason, kept for the peer to read it.
//
// Closing a socket with unread input resets the connection, and the reset may overtake the reason on its way. So: no more
// output, throw input away, until the peer closes or a second has passed.
#pragma once

#include <cstddef>
#include <map>

#include "base/clock.h"
#include "transport/loop.h"
#include "transport/tcp/socket.h"

namespace sluice::transport {

class Lingerer {
 public:
  explicit Lingerer(Loop* loop) : loop_(loop) {}
  ~Lingerer();

  void Add(UniqueFd fd, TimeNs now);
  void Tick(TimeNs now);
  bool empty() const { return sockets_.empty(); }

 private:
  static constexpr TimeNs kFor = kSecond;
  static constexpr size_t kMaxSockets = 64;  // further ones are closed at once

  struct Socket {
    UniqueFd fd;
    TimeNs until;
  };

  void Drain(int fd);

  Loop* const loop_;
  std::map<int, Socket> sockets_;
};

}  // namespace sluice::transport
