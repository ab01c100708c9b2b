// What the conformance suite needs of a transport: nodes, and a way to let time pass. The suite itself (suite.h) knows
// neither sockets nor the simulator.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/transport.h"

namespace sluice::transport::conformance {

// One side: an endpoint that listens, and where it is reached. Destroying the endpoint kills it without a word.
struct Node {
  std::unique_ptr<Endpoint> endpoint;
  Address address;
  Address other;  // the same endpoint over another of its transports, if it has several; else as address
  // Has this link all that it will have? For transports whose links grow. Null: as soon as it is up.
  std::function<bool(LinkId)> grown;
};

// A stranger with a plain byte stream to a node, for transports that have one.
class RawPeer {
 public:
  virtual ~RawPeer() = default;  // closes
  virtual void Write(ConstBytes bytes) = 0;
  // All that the node has said so far.
  virtual std::vector<std::byte> Read() = 0;
  virtual bool Closed() = 0;     // by the node
};

class Environment {
 public:
  virtual ~Environment() = default;

  // self: what the node's WELCOME says.
  virtual Node NewNode(const std::string& name, const Hello& self, EndpointLimits limits) = 0;

  // Lets things happen until done() is true; false if it never is (bounded in turns or in real seconds).
  virtual bool StepUntil(const std::function<bool()>& done) = 0;
  // Lets everything that is under way come to an end. What then has not happened will not happen.
  virtual void Settle() = 0;
  // fn runs after each burst of events (the cores' OnTurnEnd and OnTick), until the environment is gone.
  virtual void AtStep(std::function<void()> fn) = 0;
  virtual const Clock* clock() const = 0;

  // False: a Close may overtake frames that were sent before it (the simulated network, where a close is a cut).
  virtual bool orderly_close() const { return true; }

  // Where the transport is a byte stream.
  virtual std::unique_ptr<RawPeer> ConnectRaw(const Address& to) {
    (void)to;
    return nullptr;
  }
};

// The parameter of the suite.
struct Transport {
  std::string name;
  std::function<std::unique_ptr<Environment>()> create;
};

inline std::ostream& operator<<(std::ostream& out, const Transport& transport) { return out << transport.name; }

}  // namespace sluice::transport::conformance
