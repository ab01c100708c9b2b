// Links to other servers' lanes (the step coordinator): made when first asked for, kept, made again with a back-off.
#pragma once

#include <map>
#include <string>

#include "base/clock.h"
#include "proto/plan.pb.h"
#include "transport/transport.h"

namespace sluice::server {

class Peers {
 public:
  Peers(transport::Endpoint* endpoint, const Clock* clock, transport::Hello self)
      : endpoint_(endpoint), clock_(clock), self_(std::move(self)) {}

  // 0: not up (it is being connected, or will be at OnTick).
  transport::LinkId Link(const proto::Address& address);
  bool OnUp(transport::LinkId link);   // true: one of ours
  void OnDown(transport::LinkId link);
  void OnTick();

 private:
  struct Peer {
    transport::Address address;
    transport::LinkId link = 0;
    bool up = false;
    TimeNs next_try = 0;
    TimeNs backoff = 0;
  };
  void Connect(Peer& peer);

  transport::Endpoint* const endpoint_;
  const Clock* const clock_;
  const transport::Hello self_;
  std::map<std::string, Peer> peers_;   // by address
};

}  // namespace sluice::server
