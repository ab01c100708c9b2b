#include "scheduler/core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "scheduler/core_impl.h"
#include "scheduler/trees.h"

namespace sluice::scheduler {
namespace {

constexpr TimeNs kFormingPlanEvery = 200 * kMillisecond;
constexpr TimeNs kStoreErrorEvery = 10 * kSecond;
constexpr uint32_t kDefaultLeaseMs = 5000;
constexpr uint32_t kDefaultHeartbeatMs = 500;
constexpr uint32_t kDefaultOverPercent = 30;
constexpr uint32_t kDefaultCooldownMs = 60000;

proto::NodeConfig WithDefaults(proto::NodeConfig config) {
  if (config.lease_ms() == 0) config.set_lease_ms(kDefaultLeaseMs);
  if (config.heartbeat_ms() == 0) config.set_heartbeat_ms(kDefaultHeartbeatMs);
  if (config.servers() == 0) config.set_servers(1);
  if (config.rebalance_over_percent() == 0) config.set_rebalance_over_percent(kDefaultOverPercent);
  if (config.rebalance_cooldown_ms() == 0) config.set_rebalance_cooldown_ms(kDefaultCooldownMs);
  if (config.moves_at_once() == 0) config.set_moves_at_once(kMovesAtOnce);
  return config;
}

proto::TopologyConfig DefaultTopology() {
  proto::TopologyConfig config;
  config.set_link_bytes(12'500'000'000);
  config.set_oversubscription(1);
  config.set_trees("off");
  return config;
}

}  // namespace

std::string Ago(TimeNs elapsed) { return absl::StrFormat("%.1f s", static_cast<double>(elapsed) / kSecond); }

std::string Clip(const std::string& text) {
  return text.size() <= kMaxTextBytes ? text : text.substr(0, kMaxTextBytes) + " …";
}

absl::StatusOr<std::unique_ptr<SchedulerCore>> SchedulerCore::Create(proto::NodeConfig config, Store* store,
                                                                     const Clock* clock,
                                                                     std::function<int64_t()> wall_ms, uint64_t random,
                                                                     SchedulerOutput output,
                                                                     std::unique_ptr<network::Network> network) {
  SLUICE_ASSIGN_OR_RETURN(SavedState saved, ReadState(store));
  if (network == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(network, network::Network::Create(topology::Graph(), DefaultTopology()));
  }
  auto core = std::make_unique<CoreImpl>(WithDefaults(std::move(config)), store, clock, std::move(wall_ms), random,
                                         std::move(output), std::move(saved), std::move(network));
  SLUICE_RETURN_IF_ERROR(core->WriteFirst());
  return core;
}

CoreImpl::CoreImpl(proto::NodeConfig config, Store* store, const Clock* clock, std::function<int64_t()> wall_ms,
                   uint64_t random, SchedulerOutput output, SavedState saved, std::unique_ptr<network::Network> network)
    : config_(std::move(config)),
      store_(store),
      clock_(clock),
      wall_ms_(std::move(wall_ms)),
      random_(random),
      output_(std::move(output)),
      network_(std::move(network)),
      started_(clock->Now()),
      meta_(std::move(saved.meta)),
      events_(std::move(saved.events)),
      last_tick_(started_),
      no_loss_before_(started_ + lease()) {
  meta_.set_format(kStateFormat);
  const Live restored{.session = 0, .heard = started_, .unseen = true, .restored = true, .heartbeat = {}};
  for (auto& [id, record] : saved.servers) {
    ServerState& server = servers_[id];
    server.record = std::move(record);
    server.live = restored;
  }
  for (auto& [number, record] : saved.jobs) {
    JobState& job = jobs_[number];
    job.record = std::move(record);
    job.watch.Moves(started_);   // perhaps
    job.workers.resize(job.record.workers_size());
    for (int rank = 0; rank < job.record.workers_size(); ++rank) {
      if (job.record.workers(rank).member() == 0) continue;
      job.workers[rank] = restored;
      // One that was lost before has no lease that could run out: its place is free at once.
      job.workers[rank].unseen = job.plan().workers(rank).alive();
    }
    for (const proto::TensorInfo& tensor : job.plan().tensors()) job.tensor_ids[tensor.spec().name()] = tensor.tensor();
  }
  for (const proto::BarrierRecord& barrier : saved.barriers)
    jobs_[barrier.job()].released[barrier.name()] = barrier.released();
  Note("scheduler_started", "",
       absl::StrCat("release ", kVersion, ", ", jobs_.size(), " jobs and ", servers_.size(), " servers known",
                    jobs_.empty() ? "" : absl::StrCat("; nobody is declared lost for ", Ago(lease()), ", or until all of them are back")));
}

void CoreImpl::OnSessionOpen(SessionId session, const std::string& peer) { sessions_[session].peer = Clip(peer); }

void CoreImpl::OnMessage(SessionId session, const proto::MemberMessage& message) {
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return;  // closed by us a moment ago
  if (it->second.role == proto::ROLE_UNKNOWN && !message.has_register_()) {
    if (!it->second.parked) Close(session, absl::FailedPreconditionError("the first message must be Register"));
    return;
  }
  if (Live* live = LiveOf(it->second)) live->heard = clock_->Now();
  if (message.kind_case() != proto::MemberMessage::kHeartbeat) unsettled_ = true;
  switch (message.kind_case()) {
    case proto::MemberMessage::kRegister:
      if (it->second.role != proto::ROLE_UNKNOWN || it->second.parked) {
        Close(session, absl::FailedPreconditionError("Register came twice on one stream"));
        break;
      }
      OnRegister(session, message.register_());
      break;
    case proto::MemberMessage::kHeartbeat:
      OnHeartbeat(session, message.heartbeat());
      break;
    case proto::MemberMessage::kTensors:
      OnRegisterTensors(session, message.tensors());
      break;
    case proto::MemberMessage::kBarrier:
      OnBarrier(session, message.barrier());
      break;
    case proto::MemberMessage::kLeave:
      OnLeave(session, message.leave());
      break;
    case proto::MemberMessage::kPlanAck:
      OnPlanAck(session, message.plan_ack());
      break;
    case proto::MemberMessage::KIND_NOT_SET:
      Close(session, absl::InvalidArgumentError("a message of a kind that this release does not know"));
      break;
  }
  if (unsettled_) Settle();
}

void CoreImpl::OnSessionClosed(SessionId session) {
  if (sessions_.find(session) == sessions_.end()) return;
  Detach(session);
  unsettled_ = true;
  Settle();
}

void CoreImpl::OnTick() {
  const TimeNs now = clock_->Now();
  // If this process stood still (suspended, swapped out), heartbeats wait unread in its queues: they get a lease's
  // time.
  if (now - last_tick_ > lease() / 2) no_loss_before_ = std::max(no_loss_before_, now + lease());
  last_tick_ = now;
  for (auto& [number, job] : jobs_) SettleLeaves(job);  // first: who has said that it leaves is not lost
  CheckLeases();
  WatchNetwork();
  TendProbes();
  for (auto& [number, job] : jobs_) {
    WatchBottleneck(job);
    Replan(job);
    if (job.plan().state() == proto::JOB_RUNNING) ChooseCodecs(job);
  }
  unsettled_ = true;
  Settle();
  for (auto& [number, job] : jobs_)
    if (job.plan_unsent && now - job.plan_sent >= kFormingPlanEvery) SendPlanToAll(job);
  NoteDrained();
  if (events_.unwritten()) (void)Commit({});  // noted inside; the next tick tries again
}

absl::Status CoreImpl::Commit(Changes changes) {
  changes.emplace_back(kMetaKey, meta_.SerializeAsString());
  events_.AppendChanges(&changes);
  const absl::Status status = store_->Write(changes);
  store_status_ = status;
  if (status.ok()) {
    events_.Written();
    if (std::exchange(store_error_open_, false)) Note("state_recovered", "", "the state file can be written again");
    return status;
  }
  const TimeNs now = clock_->Now();
  if (store_error_noted_ == 0 || now - store_error_noted_ >= kStoreErrorEvery) {
    store_error_noted_ = now;
    store_error_open_ = true;
    Note("state_error", "", absl::StrCat(status.message(), "; membership cannot change until this is cured, the data "
                                         "plane goes on, requests wait, writing is tried again"));
  }
  return status;
}

absl::Status CoreImpl::CommitJob(JobState& job, proto::JobRecord next) {
  proto::Plan* plan = next.mutable_plan();
  if (!job.ended() && plan->state() != proto::JOB_FINISHED && plan->state() != proto::JOB_FAILED)
    plan->set_why(Why(next));
  KeepProtection(job, &next);
  PruneTrees(plan);
  meta_.set_plan_version(meta_.plan_version() + 1);
  plan->set_version(meta_.plan_version());
  if (absl::Status status = Commit({{JobKey(plan->job()), next.SerializeAsString()}}); !status.ok()) {
    meta_.set_plan_version(meta_.plan_version() - 1);
    return status;
  }
  std::swap(job.record, next);
  if (OwnersDiffer(next.plan(), job.plan())) {
    job.report_request = 0;   // rescale.cc asks those that own now
    job.watch.Moves(clock_->Now());
  }
  NoteProtection(next, job.record);
  ForgetProgress(job);
  job.plan_unsent = true;
  unsettled_ = true;
  return absl::OkStatus();
}

void CoreImpl::Note(const std::string& kind, const std::string& job, const std::string& text) {
  events_.Note(wall_ms_(), kind, job, text);
}

void CoreImpl::Send(SessionId session, const proto::SchedulerMessage& message) {
  if (session != 0) output_.send(session, message);
}

void CoreImpl::Answer(SessionId session, uint64_t request, const absl::Status& status,
                      const std::vector<uint32_t>& tensors) {
  proto::SchedulerMessage message;
  proto::RequestDone* done = message.mutable_done();
  done->set_request(request);
  done->set_code(static_cast<int32_t>(status.code()));
  done->set_message(std::string(status.message()));
  done->mutable_tensors()->Assign(tensors.begin(), tensors.end());
  Send(session, message);
}

void CoreImpl::SendPlan(const JobState& job, SessionId session) {
  proto::SchedulerMessage message;
  *message.mutable_plan() = job.plan();
  Send(session, message);
}

void CoreImpl::SendPlanToAll(JobState& job) {
  job.plan_unsent = false;
  job.plan_sent = clock_->Now();
  proto::SchedulerMessage message;
  *message.mutable_plan() = job.plan();
  // Servers first: a worker that hears of a tensor finds owners that know it.
  for (const proto::ServerInfo& info : job.plan().servers()) {
    auto it = servers_.find(info.id());
    if (it != servers_.end() && it->second.record.incarnation() == info.incarnation())
      Send(it->second.live.session, message);
  }
  for (const Live& live : job.workers) Send(live.session, message);
}

void CoreImpl::Close(SessionId session, const absl::Status& status) {
  if (sessions_.find(session) == sessions_.end()) return;
  Detach(session);
  output_.close(session, status);
}

void CoreImpl::Detach(SessionId session) {
  auto it = sessions_.find(session);
  if (Live* live = LiveOf(it->second); live != nullptr && live->session == session) {
    live->session = 0;
    live->gone = clock_->Now();
  }
  if (it->second.role == proto::ROLE_WORKER) {
    JobState& job = jobs_.at(it->second.job);
    std::erase_if(job.tensors, [&](const PendingTensors& pending) { return pending.session == session; });
    for (auto& [name, waits] : job.barriers)
      std::erase_if(waits, [&](const auto& wait) { return wait.second.session == session; });
    for (auto& [rank, leave] : job.leaves)
      if (leave.session == session) leave.session = 0;
  }
  parked_.erase(session);
  sessions_.erase(it);
}

void CoreImpl::Settle() {
  // Each pass may start or end jobs, which opens places and answers requests. Passes only ever advance states, so this
  // ends; the bound is there for a store that fails in the middle.
  for (int pass = 0; pass < 8 && unsettled_; ++pass) {
    unsettled_ = false;
    RetryParked();
    for (auto& [number, job] : jobs_) SettleJob(job);
  }
  if (config_.exit_when_done() && !shutdown_sent_ && AllJobsEnded()) ShutDownServers();
}

}  // namespace sluice::scheduler
