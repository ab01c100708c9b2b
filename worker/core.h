// The worker's half of the protocol: partitions, encodes with error feedback, pushes, receives, completes operations.
//
// No I/O, no thread, no clock of its own. The client library (worker/client.h) runs one on its loop; the simulator runs
// many in one thread. Operations on one tensor run in the order of submission; each takes the tensor's next round.
// Restart: Snapshot() between steps, and Restore() before the first operation of the next life, give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/groups.h"
#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "transport/control/member_core.h"
#include "transport/transport.h"
#include "worker/collective/request.h"
#include "worker/up_link.h"

namespace sluice::worker {

enum class OpKind { kPush, kPull, kPushPull, kBroadcast, kPushRows };

class Calibration;       // worker/calibration.h
class CodecStats;        // worker/codec_stats.h
struct DeviceBuffers;    // worker/device.h
struct RowPush;          // worker/rows.h
struct TableShape;
struct RowPullRequest;   // worker/row_pulls.h

struct OpRequest {
  OpKind kind = OpKind::kPushPull;
  uint32_t tensor = 0;
  std::span<const float> input;   // kPush, kPushPull, kBroadcast at the root: untouched until done
  std::span<float> output;        // kPull, kPushPull, kBroadcast: written until done; may be the input
  uint32_t root = 0;              // kBroadcast
  std::shared_ptr<const RowPush> rows;   // kPushRows: to a table, prepared (worker/rows.h); input and output are empty
  std::shared_ptr<const DeviceBuffers> device;   // kPush, kPushPull from GPU memory: input and output are empty
  int32_t priority = INT32_MIN;   // INT32_MIN = the tensor's own; smaller goes first
  TimeNs deadline = 0;            // absolute; 0 = none. Passing it only ends the wait (see released)
};

struct OpResult {
  absl::Status status;
  uint64_t round = 0;             // the round that was applied
  // Nothing of this push was applied. A skipped step keeps the residual of before; where this worker's push alone was
  // dropped, what was sent goes back into the residual.
  bool skipped = false;
  // This push came too late for its round in some partition (job.backup_workers, or a worker that joins): that part of it was
  // dropped. The output is what the round's owners have by now, which may be of later rounds.
  bool rejected = false;
  uint32_t contributors = 0;
  float next_rate = 0;            // learning rate of the next round; 0 without an optimizer
};

struct WorkerStats {
  uint64_t bytes_out_push = 0;    // payload and headers of pushes, by the transport's count
  uint64_t bytes_in_pull = 0;
  uint64_t raw_bytes = 0;         // fp32 bytes that the pushes stand for
  uint64_t ops = 0, replays = 0, reconnects = 0, refused_nonfinite = 0;
  uint64_t collectives = 0, collectives_failed = 0;
  uint64_t peer_bytes_in = 0, peer_bytes_out = 0;   // of links between workers, by the transport's count
  uint64_t max_round = 0;
  TimeNs max_round_at = 0;        // when it was finished
  std::string transport;          // kinds of the links that are up, as Links::Kinds
};

// Events of the way of each partition, for traces and for the simulator's history. Spans are valid during the call.
class WorkerObserver {
 public:
  virtual ~WorkerObserver() = default;
  // kQueue: from Submit until the partition's turn; kFuse: a small push waits in a batch for company; kWait: from the
  // hand-over to the sender until the answer is whole; kSend: the part of it from the first byte that is handed
  // to the transport (after the owner's grant, if one is needed) until the transport has let go of the payload, once for
  // each attempt; a payload that goes by reference is let go of when the owner has read it. So kWait before kSend is the
  // encoding and the wait for the grant and the link, and kWait after it belongs to the owner and the other workers.
  enum class Stage { kFuse, kEncode, kQueue, kSend, kWait, kDecode };
  virtual void OnStage(Stage stage, uint32_t tensor, uint32_t partition, uint64_t round, TimeNs begin, TimeNs end) {
    (void)stage, (void)tensor, (void)partition, (void)round, (void)begin, (void)end;
  }
  virtual void OnEncoded(uint32_t partition, uint64_t round, uint16_t codec, std::span<const float> gradient,
                         ConstBytes payload) {
    (void)partition, (void)round, (void)codec, (void)gradient, (void)payload;
  }
  virtual void OnResult(uint32_t partition, uint64_t round, uint16_t flags, std::span<const float> value) {
    (void)partition, (void)round, (void)flags, (void)value;
  }
};

struct WorkerCoreOptions {
  proto::Config config;           // job and data sections, node.scheduler, node.connect_timeout_ms
  int32_t rank = -1;
  std::string id;                 // host and pid
  std::string host;               // its name in the topology
  std::vector<proto::Address> listeners;         // where other workers reach the endpoint; empty: nowhere
  uint32_t incarnation = 0;       // rises from life to life (start time)
  WorkerObserver* observer = nullptr;
  std::shared_ptr<Calibration> calibration;      // null: not wanted
  std::vector<proto::CodecSpeed> codec_speeds;   // as measured on this machine, for job.codec = auto
  std::function<void(proto::Heartbeat*)> add_to_heartbeat;   // what the shell knows and the core does not; null: nothing
  // Called on problems that a person should see (a wait that is long, a peer that went); rate-limited by the core.
  std::function<void(const std::string&)> report;
};

class WorkerCore : public transport::Handler, public control::MemberCore::Listener {
 public:
  // Makes itself the endpoint's handler.
  static std::unique_ptr<WorkerCore> Create(WorkerCoreOptions options, transport::Endpoint* endpoint,
                                            const Clock* clock, control::MemberCore::Output control);

  virtual control::MemberCore& member() = 0;      // the shell feeds it the control stream
  virtual void Start(std::function<void(absl::Status)> ready) = 0;  // ready: registered, and the job runs
  virtual void OnTick() = 0;                       // every 5 to 100 ms
  // After each burst of events: encodes and sends a bounded amount, flushes fused frames, calls what is done.
  virtual void OnTurnEnd() = 0;
  virtual bool HasWork() const = 0;               // OnTurnEnd would go on at once: give it another turn
  virtual TimeNs NextDeadline() const = 0;        // OnTurnEnd is wanted then (fused frames wait); or INT64_MAX

  virtual uint32_t rank() const = 0;
  virtual uint32_t world_size() const = 0;
  virtual uint32_t servers() const = 0;           // of the job
  virtual uint64_t job_uid() const = 0;
  virtual float rate() const = 0;                 // learning rate of the next round

  // All workers register the same tensors (any order, any split into calls); done when the plan has them.
  // After Restore or in a second life this also admits the worker: see Admit in docs/wire.md.
  virtual void RegisterTensors(std::vector<proto::TensorSpec> specs,
                               std::function<void(absl::StatusOr<std::vector<uint32_t>>)> done) = 0;

  // The round that the tensor's next operation takes; 0 = nothing was pushed or broadcast yet. After RegisterTensors.
  virtual uint64_t NextRound(uint32_t tensor) const = 0;

  // NOT_FOUND if this is no table that was registered.
  virtual absl::StatusOr<TableShape> DescribeTable(uint32_t tensor) const = 0;

  // done is called once, on the core's thread, never from inside Submit. released: neither input nor output is touched
  // any more (with done, unless the deadline passed or it was cancelled).
  virtual uint64_t Submit(const OpRequest& request, std::function<void(const OpResult&)> done,
                          std::function<void()> released) = 0;
  // Rows of a table, as they are when this worker's pushes that were submitted before have been applied. (round of the
  // request is set here.) Pulls run beside pushes and each other. Otherwise as Submit.
  virtual uint64_t PullRows(RowPullRequest request, std::function<void(const OpResult&)> done,
                            std::function<void()> released) = 0;
  // Otherwise as Submit; of the result, the status alone. docs/topology/collectives.md
  virtual uint64_t SubmitCollective(collective::Request request, std::function<void(const OpResult&)> done,
                                    std::function<void()> released) = 0;
  // This worker's group of that name ("" = world). NOT_FOUND lists those that there are.
  virtual absl::StatusOr<RankGroup> FindGroup(const std::string& name) const = 0;
  virtual void Cancel(uint64_t op) = 0;           // stops waiting: done(CANCELLED) comes at once, the push goes on
  virtual void Barrier(std::string name, std::function<void(absl::Status)> done) = 0;
  // Not failed: in order, for a worker that has done all. After an error that ended this core it leaves as failed
  // nonetheless, with that error as the reason, and done gets it.
  virtual void Leave(bool failed, std::string why, std::function<void(absl::Status)> done) = 0;

  // State of this worker between steps (no operation unfinished, else FAILED_PRECONDITION): rounds, residuals,
  // replicas, barrier counts. Format: docs/snapshots.md; it carries a version, the job's uid and a hash.
  // Residuals that live in GPU memory are fetched, and waited for.
  virtual absl::StatusOr<std::vector<std::byte>> Snapshot() const = 0;
  // After RegisterTensors and before the first Submit. FAILED_PRECONDITION if it is of another job or too old: its next
  // round must be the owners' open round, or the one before (which is replayed, and answered from the last reply).
  virtual absl::Status Restore(ConstBytes snapshot) = 0;

  virtual WorkerStats stats() const = 0;
  // Links to servers that are up, and to whom.
  virtual std::vector<UpLink> links() const = 0;
  virtual const CodecStats& codec_stats() const = 0;
  // Rules with the calibrated ranges of all tensors that the policy compresses, one a line; "" without a calibration.
  virtual std::string CalibratedRules() const = 0;
  virtual std::string TensorName(uint32_t tensor) const = 0;   // for people
  // The trainer's loss of a step, for whoever chooses codecs. NaN and infinity count: something departs.
  virtual void ReportLoss(double loss) = 0;
  virtual std::string Waiting() const = 0;        // the longest wait: who, where, how long, what to check; or ""
};

}  // namespace sluice::worker
