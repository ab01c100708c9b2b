// Shared memory between processes of one host, TCP else: two transports behind one interface and one space of ids.
//
// Connect takes shared memory if the address names a socket for it and its host_id is this host's. If the peer cannot
// be met there (another container, user, or a process that has it switched off) the same link goes on over TCP, before
// its OnUp; frames that were sent before that travel over TCP too. Once up, a link keeps its transport. No slots before
// OnUp.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "transport/loop.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/tcp/tcp_endpoint.h"
#include "transport/transport.h"

namespace sluice::transport {

enum class TransportChoice { kAuto, kTcp, kShm };

struct AutoOptions {
  TransportChoice choice = TransportChoice::kAuto;
  TcpOptions tcp;                // not used by kShm
  ShmOptions shm;                // not used by kTcp
  std::string advertised_host;   // of local_address(); empty: tcp.bind_host
  // For people: why shared memory is not used, where it might have been.
  std::function<void(const std::string&)> log;
};

// The usual options: who we are, limits and admission, the same on both transports, and HostId().
AutoOptions MakeAutoOptions(const Hello& self, const EndpointLimits& limits,
                            std::function<absl::Status(const Hello&)> admit = nullptr);

class AutoEndpoint : public Endpoint {
 public:
  // kAuto does without shared memory where the system refuses it; an unusable TCP port is an error. Loop and clock
  // outlive the endpoint.
  static absl::StatusOr<std::unique_ptr<AutoEndpoint>> Create(Loop* loop, const Clock* clock, AutoOptions options);

  // Where peers reach it, over each transport that listens.
  virtual Address local_address() const = 0;
};

}  // namespace sluice::transport
