// The owner's half of replication, for one job on one lane: the logs of its partitions and who follows them.
// Protocol: docs/replication.md; frames: docs/wire.md, "An owner's messages to a backup".
//
//   t=0  a partition has closed a round            Append: message n is queued for each follower, the first one is sent
//   t=1  APPLIED for n                             acknowledged; message n + 1, if there is one, is sent
//   t=2  nobody who counts owes an acknowledgement the partition is settled: TakeSettled names it, and it goes on
// A follower counts from the start if the plan has it in sync, else from the acknowledgement of its state on. Its first
// message is the state, made when it is first needed: by Append, or by Fill, which does a few at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "server/replica_channel.h"
#include "server/replica_message.h"

namespace sluice::server {

class Partition;

class Replication {
 public:
  using LinkId = transport::LinkId;
  using FrameHeader = transport::FrameHeader;
  using Place = std::pair<uint32_t, uint32_t>;   // server, lane

  struct Env {
    uint32_t job = 0;
    uint64_t uid = 0;
    uint32_t incarnation = 0;
    const Clock* clock = nullptr;
    std::function<std::unique_ptr<ReplicaChannel>()> make_channel;
    // Keeps a closed channel until it is idle.
    std::function<void(std::unique_ptr<ReplicaChannel>)> bury;
    std::function<LinkId(const proto::Address&)> link;   // to another server's lane, or 0: LinkUp follows
    std::function<void()> request_plan;
    uint64_t* acknowledged_bytes = nullptr; // a counter
    uint64_t fill_bytes_per_s = 0;          // pace of Fill; 0 = none
    size_t piece_bytes = 8 << 20;           // longer messages are cut
  };

  struct Owned {                            // a shard of this lane
    const proto::ShardInfo* info = nullptr;
    std::vector<Partition*> partitions;
  };

  explicit Replication(Env env) : env_(std::move(env)) {}

  // After each plan: all shards that this lane owns, and where others are. self: this server's index.
  void Update(uint32_t self, const proto::Plan& plan, const std::vector<Owned>& shards);
  void Forget(uint32_t partition);          // it is gone
  void Retire();                            // the job ends

  // Somebody follows this partition: closed rounds are to be appended.
  bool Follows(uint32_t partition) const;
  // Every follower that counts has everything.
  bool Settled(uint32_t partition) const;
  // One closed round. (A follower that has not begun gets the state instead, which has the round.)
  void Append(Partition* partition, const ReplicaMessage& message);

  // False: not about these.
  bool OnFrame(LinkId link, const FrameHeader& header, const std::string& text);   // text: of an ERROR
  void OnPeerUp();                          // some link to another server is up
  void LinkDown(LinkId link);
  void OnTick();

  // At the end of each event: begins what may begin. Partitions that were settled since the last call, or may be.
  std::vector<Partition*> TakeSettled();
  void Report(std::vector<proto::ReplicaState>* states);
  std::string WaitingFor() const;           // for people, or ""
  uint64_t queued_bytes() const { return queued_bytes_; }

 private:
  static constexpr size_t kFillBytes = 64 << 20;       // states under way at a time
  static constexpr size_t kBehindBytes = 256 << 20;    // a follower that is so far behind is waited for

  struct Piece {
    std::shared_ptr<const void> owner;
    ConstBytes bytes;
    bool more = false;
    bool state = false;
  };
  struct Follower {
    Place place;
    uint64_t since = 0;
    ReplicaChannel* channel = nullptr;
    bool started = false;                   // its state was queued
    bool counts = false;                    // rounds wait for it
    bool synced = false;                    // has had everything at some time since it counts
    bool sending = false;                   // the first of queue
    uint64_t next = 0;                      // number of the first of queue
    std::deque<Piece> queue;
    size_t bytes = 0;                       // in queue
    TimeNs retry_at = 0;                    // 0 = none
    TimeNs since_when = 0;                  // it owes an acknowledgement
    std::string trouble;                    // what it said last
  };
  struct Log {
    Partition* partition = nullptr;
    uint32_t shard = 0, term = 0;
    std::vector<Follower> followers;
  };
  struct Copy {                             // of a shard
    bool synced = false;                    // once so, for good
    uint64_t sent = 0;
  };
  struct Target {
    proto::Address address;
    std::unique_ptr<ReplicaChannel> channel;
    std::string name;                       // for people
  };

  void Queue(Log& log, Follower& follower, const ReplicaMessage& message, bool state);
  void QueueState(Log& log, Follower& follower);
  void Fill();                              // states for followers that need one, as far as memory allows
  void SendNext(Log& log, Follower& follower);
  void Acknowledged(Log& log, Follower& follower);
  void DropFollower(Log& log, Follower& follower);
  void BeginAnew(Log& log, Follower& follower);
  void Connect(Target& target);
  Target& TargetOf(const proto::Plan& plan, Place place);
  bool LogSettled(const Log& log) const;

  const Env env_;
  uint32_t self_ = 0;
  uint64_t plan_version_ = 0;
  std::map<uint32_t, Log> logs_;            // by partition
  std::map<Place, Target> targets_;
  using CopyKey = std::tuple<uint32_t, Place, uint64_t>;   // shard, place, since
  std::map<CopyKey, Copy> copies_;
  std::vector<proto::ShardInfo> shards_;
  std::vector<Partition*> settled_;
  size_t state_bytes_ = 0;                  // of states under way
  bool fill_due_ = false;
  double fill_credit_ = 0;                  // bytes that Fill may send; below 0 after a large state
  TimeNs fill_paced_ = 0;                   // when that was so
  uint64_t queued_bytes_ = 0;
};

}  // namespace sluice::server
