// The worker's connections: data.connections links to each (server, lane) that it needs, made on demand, remade with a
// back-off for as long as somebody asks for them. Single-threaded, on the endpoint's loop.
//
//   t=0  Pick(0, 1, p) -> 0           Connect; the partition waits
//   t=1  OnUp(link)    -> lane (0, 1) the core routes the partitions that wait for this lane
//   t=5  OnDown(link)  -> lane (0, 1) the core takes its partitions off the link; the next try is due at t=5 + back-off
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "proto/plan.pb.h"
#include "transport/transport.h"
#include "worker/up_link.h"

namespace sluice::worker {

using LaneKey = std::pair<uint32_t, uint32_t>;  // server index in the plan, lane

class Links {
 public:
  Links(transport::Endpoint* endpoint, const Clock* clock, uint32_t connections);

  // Who we are; connection is filled in here. Before the first Pick.
  void SetIdentity(transport::Hello hello) { hello_ = std::move(hello); }
  // Takes the addresses of all lanes. Links to an address that is gone, or to an older life of a server, are closed.
  void UpdatePlan(const proto::Plan& plan);

  // An up link for this partition, or 0: a connection is being made then, and OnUp will name the lane.
  transport::LinkId Pick(LaneKey lane, uint32_t partition);

  std::optional<LaneKey> OnUp(transport::LinkId link);
  std::optional<LaneKey> OnDown(transport::LinkId link, const absl::Status& reason);
  bool Knows(transport::LinkId link) const { return by_link_.contains(link); }   // it leads to a server
  void OnTick();                              // tries again what is due, polls the counters
  void CloseAll(const absl::Status& reason);  // and makes no new ones

  // All that are up, with whom they lead to.
  std::vector<UpLink> Up() const;
  std::string Describe(LaneKey lane) const;  // "server s1 lane 0 at 10.0.0.2:7001"
  std::string Trouble(LaneKey lane) const;   // "" if a link is up; else since when it is not, and why
  uint64_t bytes_in() const;
  uint64_t bytes_out() const;
  uint64_t reconnects() const { return reconnects_; }
  // What the links that are up go over: "rdma", "tcp", "shm", "sim", joined by "+" where there are several; "" if none is.
  std::string Kinds() const;

 private:
  struct Connection {
    transport::LinkId link = 0;  // 0 = none
    bool up = false;
    bool was_up = false;  // ever: a later success counts as a reconnect
    TimeNs retry_at = 0;
    TimeNs backoff = 0;
    transport::LinkStats stats;  // of `link`, as last polled
  };
  struct Lane {
    transport::Address address;
    std::string server_id;
    uint32_t incarnation = 0;
    bool wanted = false;
    TimeNs down_since = 0;
    absl::Status last_error;
    std::vector<Connection> connections;
  };

  void Connect(LaneKey key, Lane& lane, size_t index);
  void Poll(Connection& connection);

  transport::Endpoint* const endpoint_;
  const Clock* const clock_;
  const uint32_t connections_;
  transport::Hello hello_;
  bool closed_ = false;
  std::map<LaneKey, Lane> lanes_;
  std::unordered_map<transport::LinkId, std::pair<LaneKey, size_t>> by_link_;
  uint64_t gone_in_ = 0, gone_out_ = 0;  // of links that are gone
  uint64_t reconnects_ = 0;
};

}  // namespace sluice::worker
