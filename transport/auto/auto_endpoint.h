// Shared memory between processes of one host, TCP else, which grows paths over RDMA devices and further networks where
// both ends have them (transport/multipath): behind one interface and one space of ids.
//
// Connect takes shared memory if the address names a socket for it and its host_id is this host's. If the peer cannot
// be met there (another container, user, or a process that has it switched off) the same link goes on over TCP, before
// its OnUp; frames that were sent before that travel over TCP too. Once up, a link keeps its transport. No slots before
// OnUp.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "transport/loop.h"
#include "transport/multipath/multipath_endpoint.h"
#include "transport/multipath/path_driver.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/tcp/tcp_endpoint.h"
#include "transport/transport.h"

namespace sluice::transport {

// kRdma: as kAuto, without shared memory, and not without a usable device. kTcp: no device is looked for.
enum class TransportChoice { kAuto, kRdma, kTcp, kShm };

struct AutoOptions {
  TransportChoice choice = TransportChoice::kAuto;
  TcpOptions tcp;                // not used by kShm
  ShmOptions shm;                // not used by kTcp
  std::string advertised_host;   // of local_address(); empty: tcp.bind_host
  // Of links over TCP (MultipathOptions).
  std::vector<std::string> rails;
  size_t chunk_bytes = 256 << 10;
  TimeNs reconnect = 500 * kMillisecond;
  // Looks for RDMA devices. NOT_FOUND: this host has none, which is nothing to talk about. Null: none is looked for.
  std::function<absl::StatusOr<std::unique_ptr<multipath::PathDriver>>(Loop*, const Clock*)> rdma;
  // For people: why shared memory or RDMA is not used, where it might have been; paths that come and go.
  std::function<void(const std::string&)> log;
};

// The usual options: who we are, limits and admission, the same on both transports, and HostId().
AutoOptions MakeAutoOptions(const Hello& self, const EndpointLimits& limits,
                            std::function<absl::Status(const Hello&)> admit = nullptr);

class AutoEndpoint : public Endpoint {
 public:
  // kAuto does without shared memory and RDMA where the system refuses them; an unusable TCP port is an error. Loop and clock
  // outlive the endpoint.
  static absl::StatusOr<std::unique_ptr<AutoEndpoint>> Create(Loop* loop, const Clock* clock, AutoOptions options);

  // Where peers reach it, over each transport that listens.
  virtual Address local_address() const = 0;
  // Of links over TCP and RDMA: what is up now.
  virtual std::vector<PathReport> Paths() const = 0;
  // The ways of one link, over whatever transport, for people; and what all of TCP and RDMA have carried.
  virtual std::vector<PathRow> Rows(LinkId link) const = 0;
  virtual PathTotals Totals() const = 0;
};

}  // namespace sluice::transport
