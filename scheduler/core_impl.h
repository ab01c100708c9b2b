// The scheduler's state and the order of its decisions. One .cc a concern:
//   core.cc       creation, dispatch, writing, sending
//   register.cc   who may be which member: skew, names, ranks, lives, fences
//   members.cc    heartbeats, leases, streams that end
//   jobs.cc       a job's life: formed, running, ended; losses of workers under each rule
//   servers.cc    the servers of a running job: lost, restarted, joined; the copies of its shards
//   move_requests.cc  what operators ask for: moves, drains
//   tree_requests.cc  aggregation trees: asked for, and at a job's start
//   rebalancing.cc    what servers and shards cost, rebalancing on request and by itself
//   rescale.cc    collecting the partitions' states, "rank out from round R(p)"
//   requests.cc   RegisterTensors, BarrierEnter, Leave
//   tables.cc     statistics of tables: what servers say with heartbeats, and their sums
//   probing.cc    probes of links: asked for, round after round, and what they measured
//   views.cc      what the admin service shows
//
// How a change is made:
//   1. a handler copies the job's record and changes the copy;
//   2. CommitJob gives the copy's plan the next version and writes it (with new events) in one transaction;
//   3. only then the copy becomes the state, and messages that depend on it are sent.
// If the write fails nothing has changed, and no number is used up: a registration is refused for now (the member comes
// again), a request stays pending, and the tick comes to the same decision again until it can be written.
//
// What a restart forgets (streams, heartbeats, acknowledgements, who waits at a barrier) comes back by itself: members
// register again and repeat their unanswered requests.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/balance.h"
#include "scheduler/codec_choice.h"
#include "scheduler/core.h"
#include "scheduler/event_log.h"
#include "scheduler/loads.h"
#include "scheduler/moves.h"
#include "scheduler/records.h"
#include "scheduler/replicas.h"
#include "scheduler/step_meter.h"

namespace sluice::scheduler {

inline constexpr uint32_t kMaxOpenJobs = 64;         // forming or running
inline constexpr uint32_t kMaxEndedJobs = 32;        // kept for people; the oldest goes
inline constexpr uint32_t kMaxServers = 4096;
inline constexpr int kMaxLanes = 64;
inline constexpr int kMaxFenced = 16;                // past lives kept for each rank
inline constexpr size_t kMaxIdBytes = 255;
inline constexpr size_t kMaxBarriers = 1024;         // names for each job
inline constexpr size_t kMaxPendingTensors = 65536;  // requests for each job that wait for the servers
inline constexpr int kMaxTextBytes = 2000;           // of a member's words that go into events and plans
inline constexpr int kMaxReportedTables = 256;       // of a heartbeat
inline constexpr int kMaxHotIds = 8;                 // of a table
inline constexpr size_t kMaxReasonBytes = 1000;      // of an operator's
inline constexpr size_t kMaxEstimates = 1024;        // links of the topology that an answer names
inline constexpr TimeNs kWatchNetworkEvery = kSecond;
inline constexpr uint64_t kProbeBytes = 8 << 20, kLeastProbeBytes = 64 << 10, kMostProbeBytes = 256 << 20;   // of a pair
inline constexpr size_t kMaxProbePairs = 512;        // of one request
inline constexpr size_t kMaxProbeFailuresNoted = 20;

// The end of a member that this process knows of.
struct Live {
  SessionId session = 0;        // 0: no stream
  TimeNs heard = 0;             // last message, or when it was admitted, or when the scheduler started
  bool unseen = false;          // from the state file, not heard yet: may be alive
  bool restored = false;        // from the state file, and not heard since this process started
  TimeNs gone = 0;              // session is 0: when its stream ended
  proto::Heartbeat heartbeat;   // of the last one: round, bytes, what it waits for
  std::optional<proto::LinkReport> links = std::nullopt;   // as it said last, within the bounds of transport/control/link_report.h

  bool Alive() const { return session != 0 || unseen; }
};

struct ServerState {
  proto::ServerRecord record;
  Live live;
  std::map<uint32_t, uint64_t> acked;   // by job: the newest plan it acts on
  bool drain_noted = false;             // that it holds nothing any more
  LoadMeter meter;
};

struct PendingTensors {
  SessionId session = 0;
  uint32_t rank = 0;
  proto::RegisterTensors message;
  uint64_t version = 0;                 // plan that has them all; 0: not in the plan yet
  std::vector<uint32_t> ids;
};

// How far a copy has been filled, as its owner said with heartbeats.
struct CopyProgress {
  uint64_t since = 0;                   // BackupInfo.since
  uint64_t sent = 0;
  uint64_t left = 0;
  TimeNs at = 0;                        // when it said so
  double rate = 0;                      // bytes a second, smoothed
};

struct BarrierWait {
  SessionId session = 0;
  uint64_t request = 0;
  uint64_t sequence = 0;
};

// Of a stream that has ended meanwhile (session 0) too: what it said still holds, and nobody would say it again.
struct PendingLeave {
  SessionId session = 0;
  proto::Leave message;
};

struct TensorCodec {
  uint32_t rank = 0;
  proto::TensorCodecState state;
};

struct JobState {
  proto::JobRecord record;
  std::vector<Live> workers;                                          // by rank
  std::vector<PendingTensors> tensors;                                // in order of arrival
  std::map<std::string, std::map<uint32_t, BarrierWait>> barriers;    // name, rank
  std::map<uint32_t, PendingLeave> leaves;                            // by rank; not written yet
  std::map<std::string, uint64_t> released;                           // barrier name: all sequences below
  std::map<std::string, uint32_t> tensor_ids;                         // by name, of record.plan
  std::map<std::string, std::map<uint32_t, proto::TableState>> tables;   // by server id, tensor: as it said last
  std::map<std::pair<uint32_t, uint32_t>, CopyProgress> progress;     // by shard, server of the copy
  std::map<uint32_t, TensorCodec> codecs;                             // by tensor: codecs.cc
  std::optional<CodecChooser> chooser;                                // of a running job that has tensors in "auto"
  bool chooser_unwanted = false;
  uint64_t chooser_plan = 0;                                          // version that it has seen
  int chooser_tensors = 0;                                            // of the plan's, those that it has seen
  proto::Choice owners, exchange;                                     // of the last tensors, as this process made them
  BottleneckWatch watch;
  StepMeter steps;
  TimeNs better_since = 0;                                            // another plan of trees has been better for so long; 0 = none is
  TimeNs replan_looked = 0;
  uint64_t replan_network = 0, replan_plan = 0;                       // versions that were looked at
  TimeNs replanned = 0;                                               // when trees changed last
  TimeNs watched = 0;                                                 // when it looked last
  bool plan_unsent = false;                                           // FORMING: sent by the tick
  TimeNs plan_sent = 0;
  bool counts_as_ended = false;  // not for a job that had ended before this process started and that nobody asks for
  // Rule "rescale", while record.leaving_ranks is not empty.
  uint32_t report_request = 0;
  std::set<std::string> reports_missing;                              // server ids
  std::map<uint32_t, proto::PartitionState> reports;                  // by partition

  const proto::Plan& plan() const { return record.plan(); }
  const std::string& name() const { return record.plan().config().name(); }
  bool ended() const { return plan().state() == proto::JOB_FINISHED || plan().state() == proto::JOB_FAILED; }
  // Counts in barriers and in the job's end.
  bool Active(uint32_t rank) const;
};

// A probing that goes on. Pairs of a round run at the same time.
struct ProbeRun {
  struct Pair {
    std::string from, to;                   // server ids
    std::string from_host, to_host;
    uint32_t from_incarnation = 0;
    bool ended = false;
    std::string error;
    double goodput = 0;                     // bytes a second; 0 = not measured
  };
  uint64_t request = 0;
  uint64_t bytes = 0;
  TimeNs limit = 0;                         // of a pair
  TimeNs began = 0;
  std::vector<std::vector<Pair>> rounds;
  size_t round = 0;                         // that runs now
  uint64_t round_request = 0;               // Probe.request of it
  TimeNs round_began = 0;
};

struct SessionState {
  std::string peer;
  proto::Role role = proto::ROLE_UNKNOWN;   // unknown: not admitted
  std::string server;
  uint32_t job = 0;
  uint32_t rank = 0;
  // A registration whose place is held by a life that may be about to end. See register.cc.
  std::optional<proto::Register> parked;
  TimeNs parked_since = 0;
  std::string parked_for_server;
  uint32_t parked_for_job = 0;
  int32_t parked_for_rank = -1;
  int holder_spoke = 0;                     // heartbeats of the holder since
};

class CoreImpl final : public SchedulerCore {
 public:
  CoreImpl(proto::NodeConfig config, Store* store, const Clock* clock, std::function<int64_t()> wall_ms,
           uint64_t random, SchedulerOutput output, SavedState saved, std::unique_ptr<network::Network> network);

  void OnSessionOpen(SessionId session, const std::string& peer) override;
  void OnMessage(SessionId session, const proto::MemberMessage& message) override;
  void OnSessionClosed(SessionId session) override;
  void OnTick() override;

  absl::StatusOr<proto::JobStatus> AbortJob(const std::string& job, const std::string& reason) override;
  absl::StatusOr<proto::MoveList> MoveShard(const std::string& job, uint32_t shard,
                                            const std::string& server) override;
  absl::StatusOr<proto::RebalanceAnswer> Rebalance(const std::string& job, bool dry_run) override;
  absl::StatusOr<proto::MoveList> SetMovesPaused(const std::string& job, bool paused) override;
  absl::StatusOr<proto::MoveList> CancelMoves(const std::string& job) override;
  absl::StatusOr<proto::MoveList> ListMoves(const std::string& job) const override;
  absl::StatusOr<proto::DrainStatus> SetDraining(const std::string& server, bool draining) override;
  absl::StatusOr<proto::DrainStatus> GetDrain(const std::string& server) const override;
  absl::Status SetTrees(const std::string& job, const TreeChoice& choice) override;
  void set_rack_trees(bool on) override { rack_trees_ = on; }
  absl::StatusOr<proto::ProbeLinksAnswer> ProbeLinks(const proto::ProbeLinksRequest& request) override;
  proto::Cluster GetCluster() const override;
  absl::StatusOr<proto::ShardList> ListShards(const std::string& job) const override;
  absl::StatusOr<proto::WorkerList> ListWorkers(const std::string& job) const override;
  absl::StatusOr<proto::TableList> ListTables(const std::string& job) const override;
  absl::StatusOr<proto::TensorList> ListTensors(const std::string& job) const override;
  proto::LinkList ListLinks() const override;
  absl::StatusOr<proto::Explanation> ExplainPlan(const std::string& job) const override;
  absl::StatusOr<proto::Plan> GetPlan(const std::string& job) const override;
  absl::StatusOr<proto::Plan> GetPlanByNumber(uint32_t job) const override;
  absl::StatusOr<proto::JobConfig> GetJobConfig(const std::string& job) const override;
  proto::EventList ListEvents(uint64_t after, uint32_t limit) const override { return events_.List(after, limit); }
  bool AllJobsEnded() const override;

  // Writes what the constructor noted: a store that cannot be written is found at start.
  absl::Status WriteFirst() { return Commit({}); }

 private:
  using Changes = std::vector<std::pair<std::string, std::string>>;
  struct Place {   // the answer to a worker's Register
    uint32_t rank = 0;
    bool same_life = false;
    bool park = false;
  };

  // core.cc
  absl::Status Commit(Changes changes);
  absl::Status CommitJob(JobState& job, proto::JobRecord next);   // with a new plan version, sent by Settle
  void Note(const std::string& kind, const std::string& job, const std::string& text);
  void Send(SessionId session, const proto::SchedulerMessage& message);
  void Answer(SessionId session, uint64_t request, const absl::Status& status,
              const std::vector<uint32_t>& tensors = {});
  void SendPlan(const JobState& job, SessionId session);
  void SendPlanToAll(JobState& job);
  void Close(SessionId session, const absl::Status& status);
  void Detach(SessionId session);
  void Settle();
  TimeNs lease() const { return TimeNs{config_.lease_ms()} * kMillisecond; }

  // register.cc
  void OnRegister(SessionId session, const proto::Register& reg);
  void Refuse(SessionId session, const proto::Register& reg, const absl::Status& status);
  absl::Status CheckRegister(const proto::Register& reg) const;
  void RegisterServer(SessionId session, const proto::Register& reg);
  absl::Status AdmitServer(SessionId session, const proto::Register& reg);
  void RegisterWorker(SessionId session, const proto::Register& reg);
  absl::StatusOr<JobState*> JobFor(const proto::Register& reg);
  absl::StatusOr<JobState*> CreateJob(const proto::JobConfig& config, const proto::Register& reg);
  std::optional<uint32_t> FirstRank(const JobState& job, const std::string& host) const;
  absl::StatusOr<Place> PlaceFor(const JobState& job, const proto::Register& reg) const;
  absl::Status AdmitWorker(SessionId session, const proto::Register& reg, JobState& job, const Place& place);
  absl::Status CatchUp(const proto::Register& reg);
  void Park(SessionId session, const proto::Register& reg);
  void RetryParked();

  // members.cc
  void OnHeartbeat(SessionId session, const proto::Heartbeat& heartbeat);
  void OnPlanAck(SessionId session, const proto::PlanAck& ack);
  Live* LiveOf(const SessionState& session);
  void CheckLeases();
  bool EverybodyHeard() const;   // whom the state file names, since this process started
  std::string SilenceOf(const ServerState& server) const;
  void LoseSilentServers(const std::vector<std::string>& ids);
  void LoseWorker(JobState& job, uint32_t rank, const std::string& why);

  // jobs.cc
  JobState* NewestJob(const std::string& name);
  std::string Why(const proto::JobRecord& record) const;
  size_t ReadyServers() const;
  void SettleJob(JobState& job);
  void SettleForming(JobState& job);
  void SettleRunning(JobState& job);
  absl::Status EndJob(JobState& job, proto::JobState state, const std::string& why);
  void RejectPending(JobState& job);
  void ForgetOldJobs();
  void ShutDownServers();

  // servers.cc
  using LostServers = std::map<uint32_t, std::string>;   // index in the plan, what happened
  CopyRules RulesFor(const proto::JobRecord& record) const;
  bool CanSpare(const std::string& server) const;
  void SettleServers(JobState& job);
  absl::Status UpdateServers(JobState& job, const LostServers& lost);
  std::vector<std::string> JoinServers(proto::Plan* plan) const;
  void TakeReplicas(const std::string& server, const proto::Heartbeat& heartbeat);
  void ForgetProgress(JobState& job) const;
  void TakeProgress(const proto::ReplicaState& state, CopyProgress* progress) const;
  void NoteMoved(const JobState& job, const Tended& tended);
  std::string ProtectionText(const JobState& job) const;
  void KeepProtection(const JobState& job, proto::JobRecord* next) const;
  void NoteProtection(const proto::JobRecord& before, const proto::JobRecord& now);

  // move_requests.cc
  absl::StatusOr<JobState*> RunningJob(const std::string& name);
  absl::Status UnknownServer(const std::string& id) const;
  absl::Status BeginAtOnce(JobState& job, proto::JobRecord next);   // commits it, with the moves that can begin
  absl::StatusOr<proto::MoveList> AfterRequest(JobState& job);
  proto::DrainStatus DrainOf(const std::string& id) const;
  void NoteDrained();
  proto::MoveStatus MoveStatusOf(const JobState& job, const proto::MoveRecord& move) const;
  proto::MoveList MovesOf(const JobState& job) const;

  // tree_requests.cc
  void StartTrees(proto::Plan* plan) const;

  // rebalancing.cc
  TimeNs Smoothing() const;
  std::map<uint32_t, uint64_t> TableBytes(const JobState& job) const;
  using Meters = std::map<uint32_t, const LoadMeter*>;   // by server in the plan
  std::optional<Meters> MetersOf(const JobState& job, const CopyRules& rules) const;
  Loads LoadsOf(const JobState& job, const Meters& meters) const;
  void WatchBottleneck(JobState& job);   // and rebalances by itself

  // rescale.cc
  absl::Status BeginLeaving(JobState& job, uint32_t rank, const std::string& why);
  void AskForReports(JobState& job);
  void AskForReport(const JobState& job, const std::string& server);
  void TakeReport(JobState& job, const std::string& server, const proto::Heartbeat& heartbeat);
  void CommitLeaving(JobState& job);

  // requests.cc
  void OnRegisterTensors(SessionId session, const proto::RegisterTensors& message);
  void OnBarrier(SessionId session, const proto::BarrierEnter& message);
  void OnLeave(SessionId session, const proto::Leave& message);
  void SettleLeaves(JobState& job);
  absl::Status LeaveJob(JobState& job, uint32_t rank, const proto::Leave& message);
  // exchanges: of new tensors, by name; those that it lacks are of servers.
  using ExchangeOf = std::map<std::string, proto::Exchange>;
  absl::Status AddTensorsOf(const PendingTensors& pending, const JobState& job, const std::vector<double>& weights,
                            const ExchangeOf& exchanges, proto::JobRecord* next, std::map<std::string, uint32_t>* ids) const;
  void AddPendingTensors(JobState& job);
  bool ServersHave(const JobState& job, uint64_t version) const;
  void AnswerTensors(JobState& job);
  void ReleaseBarriers(JobState& job);

  // codecs.cc
  void TakeCodecs(JobState& job, uint32_t rank, const proto::Heartbeat& heartbeat);
  void ChooseCodecs(JobState& job);

  // networks.cc
  void Locate(proto::Plan* plan);
  void TakeLinks(const std::string& host, uint32_t member, const std::optional<proto::LinkReport>& before, const proto::LinkReport& now);
  const std::string& HostOfMember(const std::string& id) const;   // "" if it is not known
  void WatchNetwork();
  // probing.cc
  std::vector<const ServerState*> ProbeServers() const;   // one a host
  void BeginProbeRound();
  void TakeProbes(const std::string& server, const proto::Heartbeat& heartbeat);
  void TendProbes();             // at each tick
  void AdvanceProbes();          // to the next round, or the end, if this one has ended
  void EndProbes();
  // planning.cc
  std::string PlanTrees(proto::Plan* plan) const;
  struct Tensors {                 // what AddTensorsOf made of all that wait
    proto::JobRecord next;
    std::map<std::string, uint32_t> added;
    std::map<const PendingTensors*, absl::Status> refused;
    std::string trees;             // what was chosen, for the events
    std::string exchange;          // likewise
  };
  Tensors TensorsWith(const JobState& job, const std::vector<double>& weights, const ExchangeOf& exchanges) const;
  ExchangeOf ChooseExchanges(JobState& job, const Tensors& by_servers, std::string* note) const;
  Tensors PlanTensors(JobState& job);
  void Replan(JobState& job);

  // tables.cc
  void TakeTables(const std::string& server, const proto::Heartbeat& heartbeat);

  // views.cc
  absl::StatusOr<const JobState*> FindJob(const std::string& name) const;
  proto::JobStatus StatusOf(const JobState& job) const;
  void FillWorkerStatus(const JobState& job, uint32_t rank, proto::MemberStatus* status) const;

  const proto::NodeConfig config_;
  Store* const store_;
  const Clock* const clock_;
  const std::function<int64_t()> wall_ms_;
  const uint64_t random_;
  const SchedulerOutput output_;
  const std::unique_ptr<network::Network> network_;

  const TimeNs started_;
  proto::MetaRecord meta_;
  EventLog events_;
  std::map<std::string, ServerState> servers_;   // by id
  std::map<uint32_t, JobState> jobs_;            // by number
  std::map<SessionId, SessionState> sessions_;
  std::set<SessionId> parked_;
  std::map<std::string, std::string> worker_hosts_;   // of open jobs, by id: out of the plans, by WatchNetwork
  TimeNs network_watched_ = 0;
  std::optional<ProbeRun> probe_run_;
  uint64_t probe_requests_ = 0;                  // the last one; beyond any of an earlier life of this process

  bool rack_trees_ = false;
  bool unsettled_ = false;                       // something changed that Settle should look at
  TimeNs last_tick_;
  TimeNs no_loss_before_;                        // no lease counts till then: one after the start, or after this
                                                 // process itself stood still (members.cc)
  absl::Status store_status_;                    // of the last write
  TimeNs store_error_noted_ = 0;                 // when; 0: never
  bool store_error_open_ = false;                // noted, and not cured since
  uint32_t reports_ = 0;                         // numbers of ReportState
  bool shutdown_sent_ = false;
};

absl::Status NotWritten(const absl::Status& status);                  // what an operator is told
std::string NameOf(const proto::Plan& plan, uint32_t server);         // its id, or "?"
std::string Ago(TimeNs elapsed);                 // "1.5 s"
std::string Clip(const std::string& text);       // at most kMaxTextBytes, for text that members send

}  // namespace sluice::scheduler
