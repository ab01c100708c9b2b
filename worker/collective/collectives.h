// A worker's collectives: calls in, messages out. The core of worker/collective: no I/O, no clock, no thread of its own.
//
//   1. Submit checks the call against this worker's own plan and gives it the next number of its channel: calls of one group
//      count in the order of submission, which is the same on all members; messages count by tag and pair; a tensor's by tensor.
//   2. It starts when fewer than kAtOnce of its group's run (messages and tensors at once). The schedule is made, links to its
//      peers are wanted (mesh.h), and the operation (operation.h) sends and expects by the courier (courier.h).
//   3. All steps are done, and each sent byte is acknowledged: the operation is closed, and done and released are called.
//   4. It fails: by deadline or Cancel, a value that a codec refuses, a member that is lost, has left or lives anew (OnPlan), a
//      peer's ERROR, or another call at a peer. done is called with who, where, how long and what next; all peers are told; released follows
//      when no link touches the buffers.
//   5. A new life of a member begins a new epoch of each of its groups: numbers begin at 0. Whoever has made calls, and has not
//      been told of the loss by one that failed, is told by its next call, which fails at once: so every member knows that the others may have
//      stopped in another place.
//
// done and released are called from OnTurnEnd and OnTick alone, never from inside another call.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/groups.h"
#include "proto/plan.pb.h"
#include "transport/stream/buffer_pool.h"
#include "transport/stream/link_queue.h"
#include "transport/transport.h"
#include "worker/collective/choose.h"
#include "worker/collective/courier.h"
#include "worker/collective/mesh.h"
#include "worker/collective/operation.h"
#include "worker/collective/request.h"
#include "worker/collective/schedule.h"

namespace sluice::collective {

struct CollectiveStats {
  uint64_t operations = 0, failed = 0, resent = 0, reconnects = 0;
  uint64_t bytes_in = 0, bytes_out = 0;   // of the links between workers
};

class Collectives final : public Courier::Owner {
 public:
  static constexpr size_t kAtOnce = 4;             // operations of one group
  static constexpr size_t kPoolBytes = 64 << 20;   // of buffers that are kept for the next operation

  struct Options {
    TimeNs resend = kSecond;
    std::function<void(const std::string&)> report;   // for people
    std::function<void()> request_plan;               // a peer knows a newer one
  };
  using DoneFn = std::function<void(const absl::Status&)>;

  Collectives(transport::Endpoint* endpoint, transport::LinkQueue* queue, const Clock* clock, Options options);
  ~Collectives() override;

  // The newest plan of our job, and who we are in it.
  void OnPlan(const proto::Plan& plan, uint32_t rank, uint32_t incarnation, const std::string& name);

  uint64_t Submit(Request request, DoneFn done, std::function<void()> released);
  bool Cancel(uint64_t op);           // false: not one of these, or it is over
  bool Cancel(uint64_t op, const absl::Status& why);   // it fails at all members, for this reason
  void Fail(const absl::Status& why);   // all, and whatever comes later
  void CloseLinks(const absl::Status& why) { mesh_.CloseAll(why); }

  // Events of the endpoint. True: the link is between workers.
  bool OnUp(transport::LinkId link, const transport::Hello& peer);
  bool OnDown(transport::LinkId link, const absl::Status& reason);   // before the queue is told
  bool OnFrame(transport::LinkId link, const transport::FrameHeader& header, transport::Payload& payload);
  void OnSlotClosed(transport::SlotId slot) { courier_.OnSlotClosed(slot); }
  void OnTick();
  void OnTurnEnd();
  bool has_work() const;

  // The network of a group by the plan, for the choice of an algorithm. NOT_FOUND: no such group.
  absl::StatusOr<Network> NetworkOf(const std::string& group) const;
  absl::StatusOr<RankGroup> FindGroup(const std::string& name) const { return groups_.Of(rank_, name); }
  size_t unfinished() const { return calls_.size(); }
  std::optional<TimeNs> oldest() const;   // when the oldest unfinished call was submitted
  std::string Waiting() const;            // of that one: who, where, how long, what to check; ""
  std::vector<PeerLink> Links() const { return mesh_.Links(); }
  CollectiveStats stats() const;
  const transport::BufferPool& pool() const { return *pool_; }
  const Courier& courier() const { return courier_; }
  uint32_t epoch(uint32_t group) const { return group < states_.size() ? states_[group].epoch : 0; }

  // Courier::Owner
  Courier::Place Where(const OpName& name, uint32_t peer, absl::Status* why) const override;
  void OnArrived(uint64_t op, uint32_t handle, uint16_t codec, ConstBytes bytes) override;
  void OnAcknowledged(uint64_t op, uint32_t handle) override;
  void OnFailed(uint64_t op, uint32_t peer, const absl::Status& why) override;
  void OnReleased(uint64_t op) override;
  void EndLink(transport::LinkId link, const absl::Status& why) override { endpoint_->Close(link, why); }

 private:
  struct Call {
    uint64_t id = 0;
    Request request;
    RankGroup group;
    OpName name;
    DoneFn done;
    std::function<void()> released;
    TimeNs submitted = 0;
    bool started = false, over = false;        // over: done is called or due
    std::unique_ptr<Operation> operation;
    std::shared_ptr<std::byte> work;           // a work buffer beside the caller's memory
    std::span<float> values;                   // that the operation works on
  };
  struct Channel {
    uint64_t next = 0;
    std::set<uint64_t> open;                   // numbers of calls that are not over
    std::map<uint64_t, absl::Status> failed;   // the last ones
  };
  struct GroupState {
    uint32_t epoch = 0;
    bool called = false;                       // in this epoch: else there is nothing that others could have gone beyond
    bool told = false;                         // of a loss in this epoch, by a call that failed
    std::string broken;                        // why the next call fails; empty = it does not
    std::deque<uint64_t> queue;                // calls that have not started, in order
    size_t running = 0;
  };

  absl::Status Check(const Request& request, const RankGroup& group) const;
  absl::Status MembersAreThere(const Request& request, const RankGroup& group) const;
  std::vector<uint32_t> Others(const Request& request, const RankGroup& group) const;   // whom the call concerns
  void StartDue(uint32_t group);
  void Start(Call& call);
  void Progress(Call& call);
  void FailCall(Call& call, const absl::Status& why, bool peers_know = false);
  void End(Call& call);                        // over: gives its place to the next
  std::string Describe(const Call& call) const;
  void RunDeferred();
  Call* Find(uint64_t id);
  static OpName ChannelOf(const OpName& name);

  transport::Endpoint* const endpoint_;
  const Clock* const clock_;
  const Options options_;
  Mesh mesh_;
  Courier courier_;
  const std::shared_ptr<transport::BufferPool> pool_;
  bool planned_ = false;
  proto::Plan plan_;
  Groups groups_;
  uint32_t rank_ = 0;
  absl::Status failed_;
  uint64_t next_call_ = 1;
  std::map<uint64_t, std::unique_ptr<Call>> calls_;   // until they are released
  std::map<OpName, Channel> channels_;                // by ChannelOf
  std::vector<GroupState> states_;                    // by the group's number
  std::set<uint32_t> absent_;                         // ranks that have left in order, or are lost
  std::deque<std::function<void()>> deferred_;
  uint64_t operations_ = 0, failures_ = 0;
};

}  // namespace sluice::collective
