// The links between this worker and others, made on first use and remade with a back-off: the lower rank connects.
//
//   t=0  Want(3) at rank 1        Connect to what the plan names as rank 3's listener
//   t=0  Want(1) at rank 3        waits for rank 1, which wants it for the same operation
//   t=1  OnUp at both             rank 3 has checked the HELLO against its plan -> their couriers go on
//   t=5  OnDown                   rank 1 tries again at t=5 + back-off
//
// Single-threaded, on the endpoint's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/plan.pb.h"
#include "transport/transport.h"

namespace sluice::collective {

struct PeerLink {
  transport::LinkId link = 0;
  uint32_t rank = 0;
  std::string id;   // its Register.id
};

class Mesh {
 public:
  Mesh(transport::Endpoint* endpoint, const Clock* clock) : endpoint_(endpoint), clock_(clock) {}

  void SetIdentity(const transport::Hello& hello) { hello_ = hello; }
  // Links to other lives than the plan's are closed.
  void UpdatePlan(const proto::Plan& plan);

  void Want(uint32_t rank);
  // The peer's rank, if this link is (now) the one to it. An incoming link of somebody else is closed with the reason.
  // *newer: the peer is of a later life than the plan's, so a newer plan is wanted.
  struct Up {
    bool ours = false;   // it is between workers, whatever became of it
    bool usable = false;
    uint32_t rank = 0;
    bool newer = false;
  };
  Up OnUp(transport::LinkId link, const transport::Hello& peer);
  struct Down {
    bool ours = false;
    bool was_up = false;
    uint32_t rank = 0;
  };
  Down OnDown(transport::LinkId link, const absl::Status& reason);
  const uint32_t* RankOf(transport::LinkId link) const;   // of a link that is up; null: none
  void OnTick();
  void CloseAll(const absl::Status& reason);              // and makes no new ones

  std::string Describe(uint32_t rank) const;              // "rank 3 (host:4711)"
  std::string Trouble(uint32_t rank) const;               // "" if a link is up or none is wanted
  std::vector<PeerLink> Links() const;   // that are up
  uint64_t bytes_in() const { return gone_in_ + Sum(true); }
  uint64_t bytes_out() const { return gone_out_ + Sum(false); }
  uint64_t reconnects() const { return reconnects_; }

 private:
  struct Peer {
    transport::Address address;
    bool listens = false;
    uint32_t incarnation = 0;
    std::string name;
    bool reachable = true;        // the plan says that it runs
    bool wanted = false;
    transport::LinkId link = 0;   // up, or being made; 0 = none
    bool up = false, was_up = false;
    TimeNs down_since = 0, retry_at = 0, backoff = 0;
    absl::Status last_error;
  };

  void Connect(uint32_t rank, Peer& peer);
  void Forget(Peer& peer, const absl::Status& why);
  uint64_t Sum(bool in) const;

  transport::Endpoint* const endpoint_;
  const Clock* const clock_;
  transport::Hello hello_;
  bool closed_ = false;
  std::map<uint32_t, Peer> peers_;
  std::unordered_map<transport::LinkId, uint32_t> by_link_;   // all that live, also those that are no longer a peer's
  uint64_t gone_in_ = 0, gone_out_ = 0, reconnects_ = 0;
};

}  // namespace sluice::collective
