// The TCP transport: frames of docs/wire.md on byte streams, one socket a link.
//
// A link, step by step (connector C, acceptor A):
//   1. C: Connect resolves the name (a thread of its own; numbers at once), and tries each address without blocking.
//   2. C -> A: HELLO. A has bounded memory and handshake_timeout for a peer that has not said it; one that says anything
//      else, or another version, gets an ERROR frame with the reason and is closed.
//   3. A -> C: WELCOME, and both call OnUp. Frames that C sends before that travel behind its HELLO.
//   4. Frames both ways. A link that was silent for ping_every gets a PING; after ping_timeout of silence it is down.
//   5. Close tells the peer why (a private TRANSPORT frame, "bye"), unless a frame is cut in its middle.
//
// What it does not protect: the bytes travel in the clear, and anybody who reaches the port may say HELLO. It binds to
// loopback unless told otherwise. Payload hashes find corruption, not malice.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "transport/loop.h"
#include "transport/transport.h"

namespace sluice::transport {

inline constexpr uint32_t kFirstTransportAux = 16;   // below: this transport's own

struct TcpOptions {
  bool listen = true;
  std::string bind_host = "127.0.0.1";
  uint32_t port = 0;          // 0 = any free one, see port()
  bool reuse_address = true;  // a restarted process gets its port back at once (SO_REUSEADDR)
  Hello self;                 // what WELCOME says of this process
  bool hash = true;           // hash outgoing payloads; incoming hashes are always checked
  EndpointLimits limits;
  TimeNs connect_timeout = 5 * kSecond;    // of Connect: name, TCP and WELCOME together
  TimeNs handshake_timeout = 5 * kSecond;  // of an acceptor for HELLO
  TimeNs ping_every = 2 * kSecond;
  TimeNs ping_timeout = 10 * kSecond;
  size_t socket_buffer = 0;   // SO_SNDBUF and SO_RCVBUF; 0 = the kernel tunes them
  std::string congestion;     // TCP_CONGESTION; empty = the system's
  // Acceptor: refuses a peer by its HELLO. Default: everybody is let in.
  std::function<absl::Status(const Hello&)> admit;
  // Told of TRANSPORT frames whose aux is kFirstTransportAux or more: private talk of the layer that wraps this endpoint
  // (transport/multipath), which sends them by Send. Payloads as in Handler::OnFrame, slots too; one
  // for a slot that was closed is told of with an empty payload. Default: ignored.
  std::function<void(LinkId, const FrameHeader&, Payload)> transport_frame;
  // Told of each peer that was refused, for logs (never links that a Handler knows).
  std::function<void(const absl::Status&)> refused;
};

class TcpEndpoint : public Endpoint {
 public:
  // The loop and the clock outlive the endpoint. ALREADY_EXISTS: the port is in use. Destroying an endpoint closes its
  // sockets without a word, and calls nobody back.
  static absl::StatusOr<std::unique_ptr<TcpEndpoint>> Create(Loop* loop, const Clock* clock, TcpOptions options);

  virtual uint32_t port() const = 0;  // 0 if it does not listen
  // How often in a row the kernel has sent the same bytes again and heard nothing: 3 after about 1.5 s.
  virtual uint32_t UnansweredTimeouts(LinkId link) const = 0;
  // The payload that was lent with this cookie is not read any more when this returns, and OnSent does not follow (unless it
  // is under way already). The frame is sent all the same.
  virtual void TakeBack(LinkId link, uint64_t cookie) = 0;
};

}  // namespace sluice::transport
