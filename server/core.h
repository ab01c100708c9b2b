// One event loop of a server ("lane"): owns its partitions outright, drives their rounds, answers workers.
//
// No I/O, no thread, no clock of its own: events come in by the Handler calls, OnPlan and OnTick, frames go out through
// the Endpoint. A process runs one ServerCore a loop; the simulator runs many in one thread.
//
// States of a round: OPEN (contributions come) -> SUMMED (complete and reduced) -> VERDICT (asked the coordinator; only
// where clipping, skipping or a layer-wise optimizer is configured) -> APPLIED (parameters, optimizer state, reply and
// open round change in one act; replies are sent). docs/wire.md has the messages, docs/design.md the invariants.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "transport/stream/link_queue.h"
#include "transport/transport.h"

namespace sluice::server {

class TableSegment;
struct TableStats;

// What happened, for the history that tests/sim replays, and for traces. Spans are valid during the call only.
struct ContributionRecord {
  uint32_t job, rank, incarnation, tensor, partition;
  uint64_t round;
  uint16_t codec;
  uint16_t flags;       // of the push: kFlagAssign, kFlagEmpty, kFlagNonfinite
  uint32_t elements;
  ConstBytes payload;   // as received
};

// RoundRecord::nesting: the end of a forwarded sum.
inline constexpr int32_t kNestingEnd = INT32_MIN;

struct RoundRecord {
  uint32_t job, tensor, partition, term;
  uint64_t round;                      // the one that was applied; SSP and ASP: the rank's own round
  std::vector<uint32_t> contributors;  // in the order of reduction (SSP, ASP: one)
  // Where some came through a tree, how the sum was put together: ranks, and for each forwarded sum -1 - its server, its parts in
  // their order, kNestingEnd. Empty: contributors were added one by one.
  std::vector<int32_t> nesting;
  bool skipped = false;
  bool assigned = false;               // a broadcast
  bool backup = false;                 // applied by a copy, from its owner's message
  double scale = 1.0;                  // the verdict's
  uint32_t rate_bits = 0;              // of this round
  double trust = 1.0;                  // layer-wise optimizers
  std::span<const float> value;        // parameters after it, or the aggregate
  ConstBytes reply;                    // payload that every contributor gets (empty if it is `value` in fp32)
  TableSegment* segment = nullptr;     // a table's round: the segment after it, and the rows that were pushed
  std::span<const uint64_t> rows;
};

class ServerObserver {
 public:
  virtual ~ServerObserver() = default;
  virtual void OnContribution(const ContributionRecord& record) { (void)record; }
  virtual void OnRound(const RoundRecord& record) { (void)record; }
  // A REPLY or VALUE with a payload, once the transport has let go of it.
  virtual void OnAnswered(const transport::FrameHeader& header, const transport::SendTimes& times) {
    (void)header, (void)times;
  }
};

struct ServerCoreOptions {
  std::string id;                 // NodeConfig.id: finds itself in the plan
  uint32_t lane = 0;
  uint32_t incarnation = 0;       // plans that name another life of this server are of no use; 0 = the shell sees to it
  proto::DataConfig data;         // zero fields mean the documented defaults
  std::function<void(uint32_t job)> request_plan;   // somebody named a plan or term that is newer than ours
  std::function<void(const proto::ProbeResult&)> probed;   // what came of one peer of a Probe; null: nobody asks for probes
  ServerObserver* observer = nullptr;
};

struct ServerCoreStats {
  uint64_t rounds_applied = 0, contributions = 0, rounds_skipped = 0, refused = 0, duplicates = 0, rejected = 0;
  uint64_t payload_in = 0, payload_out = 0;
  uint64_t state_bytes = 0;       // parameters, optimizer state, replicas, cached replies
  uint64_t pool_used = 0, pool_peak = 0, waiting = 0;
  uint64_t oversize_used = 0, oversize_peak = 0;   // pushes of rows beyond a quarter of the pool
  uint64_t max_round = 0;
  uint64_t copies_that_differed = 0;   // from their owners, found by a digest
  uint64_t promoted = 0;          // partitions of which a copy here became the owner's
  uint64_t copied_out = 0;        // bytes of messages for copies that were acknowledged
  uint64_t forwarded = 0;         // payload of sums that were sent on, in forward mode, and that the owner has answered
  uint64_t forwards = 0;          // how many of them
  uint64_t partials_discarded = 0;   // open rounds that were dropped because the tree or the owner changed
  uint64_t copies = 0;            // partitions of other owners of which this lane has a copy
  uint64_t queued_bytes = 0;      // messages for copies that were not acknowledged yet
  std::string waiting_for;        // for people: the oldest open round and whom it waits for
};

class ServerCore : public transport::Handler {
 public:
  static std::unique_ptr<ServerCore> Create(ServerCoreOptions options, transport::Endpoint* endpoint, const Clock* clock);

  // A newer plan of a job (older ones are ignored). Creates partitions that this lane owns (zeros), drops jobs that ended.
  virtual void OnPlan(const proto::Plan& plan) = 0;
  // Sends to other servers to learn what links carry (server/prober.h); `probed` is told what came of each.
  virtual void OnProbe(const proto::Probe& probe) = 0;
  virtual void OnTick() = 0;      // every 10 to 100 ms
  virtual void OnTurnEnd() = 0;   // after each burst of events: flushes fused replies, grants
  virtual void ReportState(uint32_t job, proto::Heartbeat* heartbeat) const = 0;
  virtual ServerCoreStats stats() const = 0;
  // Of the copies that the plans have not in sync: for the next heartbeat. What is in sync once stays so.
  virtual std::vector<proto::ReplicaState> ReplicaStates() = 0;
  // Of the tables with segments on this lane, by job and tensor (server/table_stats.h). It looks at every segment and sorts its
  // hot ids: for now and then.
  virtual std::vector<TableStats> table_stats() const = 0;
  // The link was made to probe with: what it carries is no work, and is told by `probed`.
  virtual bool Probing(transport::LinkId link) const = 0;
  // What the shards here cost, as owned and as copies, by job and shard.
  virtual std::vector<proto::ShardCost> costs() const = 0;
};

}  // namespace sluice::server
