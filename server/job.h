// One job on one lane: its plan as this lane sees it, its partitions, and its part in step-wide decisions.
//
// Answers steps 2a to 2d of docs/wire.md (what must be refused before a partition is asked), and carries records and
// verdicts between partitions and coordinator:
//   partition sums -> Submit -> VerdictClient (those of the lane) -> PARTIAL -> Coordinator (all of the plan)
//   -> VERDICT -> VerdictClient -> every partition of the lane
// Where coordinator and owner are one lane, messages go through a queue that Drain empties at the end of each event, so
// no partition is called from inside its own call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "server/coordinator.h"
#include "server/forward/forwarding.h"
#include "server/partition.h"
#include "server/replication.h"
#include "server/round_reducer.h"
#include "server/verdict_client.h"
#include "transport/stream/stream_receiver.h"

namespace sluice::server {

// What a job needs of its lane.
class JobHost {
 public:
  virtual ~JobHost() = default;
  // Somebody knows a newer plan than ours.
  virtual void RequestPlan(uint32_t job) = 0;
  // Tells the peer and ends the link: it sent what no correct peer sends.
  virtual void EndLink(transport::LinkId link, const transport::FrameHeader& about, const absl::Status& why) = 0;
  // The link to another server's lane, if it is up; else 0, and it is being connected (Job::OnPeerUp follows).
  virtual transport::LinkId PeerLink(const proto::Address& address) = 0;
  virtual std::unique_ptr<ReplicaChannel> MakeChannel() = 0;
  virtual void Bury(std::unique_ptr<ReplicaChannel> channel) = 0;   // closed: kept until it is idle
  // A slot is being closed while its peer writes there: its memory is kept until that is over.
  virtual void KeepUntilClosed(transport::LinkId link, transport::SlotId slot, BlockPtr memory) = 0;
};

struct JobEnvironment {
  std::string id;                   // this server's
  uint32_t lane = 0;
  uint32_t incarnation = 0;
  const Clock* clock = nullptr;
  TimeNs resend = kSecond;
  size_t max_message_bytes = 0;     // larger partitions cannot be pushed
  uint64_t fill_bytes_per_s = 0;    // pace of filling copies; 0 = none
  size_t max_row_push_bytes = 0;    // larger pushes to a segment of a table neither
  size_t max_slotless_bytes = 0;
  Replier* replier = nullptr;
  BlockPool* values = nullptr;
  BlockPool* scratch = nullptr;
  ExactPool* exact = nullptr;
  transport::StreamReceiver* receiver = nullptr;
  transport::Endpoint* endpoint = nullptr;
  ServerObserver* observer = nullptr;
  ServerCoreStats* counters = nullptr;
  JobHost* host = nullptr;
};

class Job {
 public:
  using LinkId = transport::LinkId;
  using FrameHeader = transport::FrameHeader;

  Job(uint32_t number, uint64_t uid, const JobEnvironment& environment);

  // The job ends here: the receiver forgets its pushes. (Not in the destructor: the endpoint may be gone by then.)
  void Retire();

  uint64_t uid() const { return uid_; }
  uint64_t version() const { return context_.plan_version; }
  uint32_t server_index() const { return server_index_; }

  void OnPlan(const proto::Plan& plan);   // a newer one

  // Whether whoever connects as a worker is one of this job's: of this job's uid, and a rank of it.
  absl::Status CheckWorker(const transport::Hello& hello) const;

  // StreamReceiver::Owner, for frames of this job.
  transport::StreamReceiver::Admission Admit(LinkId link, const FrameHeader& push);
  bool Urgent(const FrameHeader& push) const;
  // A round closes when the parts of all ranks are there. Where rounds leave workers out it does not wait for the last: a part of a round
  // that is closed already must hold nobody back.
  bool joint() const {
    return context_.semantics != nullptr && !context_.semantics->async() && !context_.semantics->leaves_out();
  }
  absl::Status Contribute(LinkId link, const FrameHeader& push, transport::Payload payload);

  void OnPull(LinkId link, const FrameHeader& pull, ConstBytes payload);
  void OnPartial(LinkId link, const FrameHeader& partial, ConstBytes payload);
  void OnVerdict(const FrameHeader& header, ConstBytes payload);
  // GRANT, STATE, APPLIED, RETRY, ERROR of a backup.
  void OnReplicaAnswer(LinkId link, const FrameHeader& header, ConstBytes payload);
  // GRANT, STATE, REPLY, APPLIED, RETRY, ERROR of the parent of what is forwarded here.
  void OnForwardAnswer(LinkId link, const FrameHeader& header, const transport::Payload& payload);
  void OnPeerUp(LinkId link);
  void LinkDown(LinkId link);
  void OnTick();
  void Drain();

  void Report(proto::Heartbeat* heartbeat) const;
  std::string WaitingFor() const;         // for people, or ""
  uint64_t OldestOpenRound() const;
  uint64_t state_bytes() const;           // besides blocks
  void ReplicaStates(std::vector<proto::ReplicaState>* states) { replication_.Report(states); }
  // Of each shard that is here: what its partitions have had since they are.
  void AddCosts(std::vector<proto::ShardCost>* costs) const;
  void CountOut(uint32_t partition, size_t bytes);
  size_t copies() const { return incoming_.size(); }
  uint64_t queued_bytes() const { return replication_.queued_bytes(); }   // for copies
  void AddTableStats(std::vector<TableStats>* tables) const;   // by tensor

 private:
  // One that this lane owns.
  Partition* Find(uint32_t partition) const;
  // Steps a to c. False: answered.
  bool Recognise(LinkId link, const FrameHeader& request, Partition** partition);
  // Parts of them. False: answered.
  bool KnowsLife(LinkId link, const FrameHeader& request, uint32_t term);
  bool KnowsForwarder(LinkId link, const FrameHeader& push, uint32_t term);
  bool IsOfThisWay(LinkId link, const FrameHeader& push, uint64_t stamp, uint32_t term);
  void Fail(const absl::Status& why);
  void CountIn(uint32_t partition, size_t bytes);

  absl::Status TakePlan(const proto::Plan& plan);
  absl::Status TakeWorkers(const proto::Plan& plan);
  absl::Status TakePartitions(const proto::Plan& plan);
  absl::Status TakeCoordinator(const proto::Plan& plan);
  void TakeCopy(const proto::ShardInfo& shard, const proto::BackupInfo& backup, uint32_t index);
  void Own(uint32_t index, uint32_t term);
  absl::Status Demote(const proto::TensorInfo& tensor, int position, uint32_t index);
  absl::StatusOr<std::unique_ptr<Partition>> MakePartition(const proto::TensorInfo& tensor, int position);
  absl::StatusOr<std::unique_ptr<Partition>> MakeSegment(const proto::TensorInfo& tensor, PartitionShape shape);
  void DropPartition(uint32_t index);
  void Resubmit();                        // to a coordinator that is another

  // What this lane forwards (job_forward.cc).
  bool RecogniseMember(LinkId link, const FrameHeader& push, const ForwardedPartition& partition);
  transport::StreamReceiver::Admission AdmitForwarded(LinkId link, const FrameHeader& push, ForwardedPartition* partition);
  absl::Status ContributeForwarded(LinkId link, const FrameHeader& push, transport::Payload payload,
                                   ForwardedPartition* partition);
  ForwardedPartition* FindForwarded(uint32_t partition) const { return forwarding_.Find(partition); }

  // The backup's half of docs/replication.md: one for each partition of which this lane has a copy.
  struct Incoming {
    uint32_t owner = 0;                  // server
    uint32_t term = 0;
    uint64_t since = 0;
    uint64_t next = 0;                   // number of the next message
    std::vector<std::byte> gathered;     // of one that comes in pieces
  };
  transport::StreamReceiver::Admission AdmitReplica(LinkId link, const FrameHeader& message);
  absl::Status TakeReplica(LinkId link, const FrameHeader& message, ConstBytes payload);
  absl::Status ApplyReplica(uint32_t index, ConstBytes bytes);
  void Acknowledge(LinkId link, const FrameHeader& message);

  struct LocalRecords {
    uint64_t step;
    uint32_t phase;
    std::vector<StepRecord> records;
  };
  struct LocalVerdict {
    uint64_t step;
    uint32_t phase;
    Verdict verdict;
  };
  void SendRecords(uint64_t step, uint32_t phase, const std::vector<StepRecord>& records);
  void Coordinate(Coordinator::Sender sender, uint64_t step, uint32_t phase, std::span<const StepRecord> records);
  void SendVerdict(Coordinator::Sender to, uint64_t step, uint32_t phase);
  void TakeVerdict(uint64_t step, uint32_t phase, const Verdict& verdict);

  const uint32_t number_;
  const uint64_t uid_;
  const JobEnvironment env_;
  JobContext context_;
  absl::Status error_;                                  // why this job cannot run here
  uint32_t server_index_ = 0;
  std::vector<std::unique_ptr<Partition>> partitions_;  // by job-wide index; null: another lane's
  struct Traffic {
    uint32_t shard = 0;
    uint64_t in = 0, out = 0;            // bytes of payload, as owner and as copy
  };
  std::vector<Traffic> traffic_;                        // by partition
  std::map<uint32_t, Incoming> incoming_;               // by partition
  Replication replication_;
  Forwarding forwarding_;
  std::optional<proto::Plan> plan_;                     // the newest, for copies that are made anew
  size_t servers_ = 1;
  std::vector<proto::TensorKind> tensor_kinds_;         // by tensor

  VerdictClient verdicts_;
  std::optional<proto::Address> coordinator_address_;   // null: this lane is it
  std::optional<std::pair<uint32_t, uint32_t>> coordinator_life_;   // server and incarnation
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<LocalRecords> local_records_;
  std::vector<LocalVerdict> local_verdicts_;
};

}  // namespace sluice::server
