// The transport between processes of one host: shared memory, and a unix socket to meet and to wake each other.
//
// Payloads in memory from Allocate arrive by reference; slots in such memory are written by the sender itself; all
// other payloads are copied twice, through a ring of bytes. No hash: nothing leaves the machine's memory. The header's
// check is always on. Nothing polls: a side that has nothing to read sleeps in its loop.
//
// Protects against peers that crash, garble and lie (docs/wire.md and layout.h are checked throughout). Does not
// protect a payload against a peer of the same user that rewrites it after it was sent: whoever reads a payload must
// bear that its bytes change, and slots and slabs are open to the peer as long as it lives.
//
// Payloads are dropped on the loop's thread. Wake-ups go through the socket, not through an eventfd or a futex: sending
// there never blocks, whatever the peer does to its end.
//
// Destroying an endpoint makes no callbacks; a peer may still be reading what was lent to it, so close the links and
// wait for OnDown before memory is used for something else. A process that forks without exec keeps its links open in
// the child: its death is noticed when the child is gone, too.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/loop.h"
#include "transport/shm/layout.h"
#include "transport/shm/slab.h"
#include "transport/transport.h"

namespace sluice::transport {

struct ShmOptions {
  Hello self;                    // what an acceptor answers with (WELCOME); the role must be set to listen
  EndpointLimits limits;
  bool listen = true;
  std::string name;              // abstract socket; empty: a fresh one
  std::string host_id;           // this host's (transport/auto/host_id.h); other hosts are refused. Empty: not checked
  OutboxShape shape;             // memory of one direction of a link: about 1.5 MiB, as far as it is used
  size_t min_reference_bytes = 4096;            // smaller payloads are copied, which is cheaper than giving them back
  TimeNs handshake_timeout = 10 * kSecond;
  std::shared_ptr<SlabAllocator> slabs;         // null: one of its own
  // Acceptor: refuses a peer by its HELLO. Default: everybody of this user is let in.
  std::function<absl::Status(const Hello&)> admit;
  // Told of each peer that was refused, for logs (never links that a Handler knows).
  std::function<void(const absl::Status&)> refused;
};

class ShmEndpoint : public Endpoint {
 public:
  // ALREADY_EXISTS if the name is taken. The loop outlives the endpoint; destroy it on the loop's thread.
  static absl::StatusOr<std::unique_ptr<ShmEndpoint>> Create(Loop* loop, ShmOptions options);

  // Where peers reach it: unix_socket (empty if it does not listen) and host_id.
  virtual Address local_address() const = 0;
};

}  // namespace sluice::transport
