// TCP links that grow further paths: queue pairs of RDMA devices, and TCP connections over other networks of the peer.
// A link is its first TCP connection (the base) with everything that this says (transport/tcp); a link to a peer that
// has nothing more to offer stays exactly that.
//
// How a link grows (connector C, acceptor A; all messages are TRANSPORT frames of the base):
//   1. A -> C: PATHS, if A has an RDMA rail that can be used or further addresses. C may ignore it.
//   2. C speaks in packets from now on (link.h), the first one over the base, so that nothing overtakes what went before;
//      A does the same when the first of C's messages comes.
//   3. TCP: C connects to each further address, with a HELLO that names the link by the token of PATHS.
//   4. RDMA: C -> A OFFER, A -> C PROPOSAL, C -> A ACCEPTANCE, A -> C READY (proto/rails.proto).
//   5. A path that breaks is given up on both sides (link.h, 5). C offers again after a while that doubles, or at once when
//      either side's device says that it is back (A: PATHS again).
//   6. A base whose network is gone while a further connection's is there takes its link down after about 1.5 s. The next
//      link to that peer is made to another of the addresses that it has named; the first one is a further one then. So it
//      is after a connection that failed.
// Frames go over the base until a better path is up, and again when the last one is lost: in the middle of a message, if
// need be. A link goes down only with its base.
//
// The exchange is not a gRPC call through the scheduler, since paths must be made again while the scheduler is away, and
// since the base's end is at once the end of all: who holds a key of our memory is who is connected.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "transport/loop.h"
#include "transport/multipath/link.h"
#include "transport/multipath/path_driver.h"
#include "transport/multipath/path_totals.h"
#include "transport/tcp/tcp_endpoint.h"

namespace sluice::transport {

struct MultipathOptions {
  TcpOptions tcp;
  std::vector<std::string> rails;   // acceptor: its addresses on further networks
  std::unique_ptr<multipath::PathDriver> driver;   // null: TCP only
  std::string why_no_driver;        // for people
  size_t chunk_bytes = 256 << 10;
  TimeNs reconnect = 500 * kMillisecond;           // doubles, up to 16 times
  // For people: paths that come and go, and why there is none.
  std::function<void(const std::string&)> log;
};

struct PathReport {
  LinkId link = 0;
  multipath::PathState state;
  std::string kind;   // "tcp", "rdma"
  std::string rail, peer;
};

class MultipathEndpoint : public TcpEndpoint {
 public:
  static absl::StatusOr<std::unique_ptr<MultipathEndpoint>> Create(Loop* loop, const Clock* clock, MultipathOptions options);

  // Memory of another allocator (shared memory) that may travel by paths without a copy, until the handle is dropped.
  // Null if nothing here needs to know of memory.
  virtual std::shared_ptr<void> Register(MutableBytes memory) = 0;
  // What is up now.
  virtual std::vector<PathReport> Paths() const = 0;
  // The same for people, and of links that have not grown; their base is the first row.
  virtual std::vector<PathRow> Rows(LinkId link) const = 0;
  virtual PathTotals Totals() const = 0;
};

}  // namespace sluice::transport
