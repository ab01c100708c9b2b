// Heartbeats, leases, streams that end.
//
// Leases detect, they never decide: a lost server or worker is handed to the rule of its job (jobs.cc). A member whose
// lease ran out while its stream was open (it stood still) finds the stream closed and registers again.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/core_impl.h"

namespace sluice::scheduler {

Live* CoreImpl::LiveOf(const SessionState& session) {
  if (session.role == proto::ROLE_SERVER) {
    auto it = servers_.find(session.server);
    return it == servers_.end() ? nullptr : &it->second.live;
  }
  if (session.role == proto::ROLE_WORKER) {
    auto it = jobs_.find(session.job);
    return it == jobs_.end() || session.rank >= it->second.workers.size() ? nullptr : &it->second.workers[session.rank];
  }
  return nullptr;
}

void CoreImpl::OnHeartbeat(SessionId session, const proto::Heartbeat& heartbeat) {
  const SessionState& state = sessions_.at(session);
  Live* live = LiveOf(state);
  if (live == nullptr) return;
  // Not the whole: it may carry anything.
  live->heartbeat.set_round(heartbeat.round());
  live->heartbeat.set_wire_bytes_in(heartbeat.wire_bytes_in());
  live->heartbeat.set_wire_bytes_out(heartbeat.wire_bytes_out());
  live->heartbeat.set_waiting_for(Clip(heartbeat.waiting_for()));
  if (state.role == proto::ROLE_SERVER) TakeTables(state.server, heartbeat);

  proto::SchedulerMessage message;
  message.mutable_heartbeat_ack()->set_sequence(heartbeat.sequence());
  Send(session, message);

  for (const SessionId parked : parked_) {
    SessionState& newcomer = sessions_.at(parked);
    const bool holder = state.role == proto::ROLE_SERVER
                            ? newcomer.parked_for_server == state.server
                            : newcomer.parked_for_job == state.job &&
                                  newcomer.parked_for_rank == static_cast<int32_t>(state.rank);
    if (!holder) continue;
    ++newcomer.holder_spoke;
    unsettled_ = true;
  }
  if (state.role == proto::ROLE_SERVER && heartbeat.report_request() != 0) {
    for (auto& [number, job] : jobs_)
      if (job.report_request == heartbeat.report_request()) TakeReport(job, state.server, heartbeat);
  }
}

void CoreImpl::OnPlanAck(SessionId session, const proto::PlanAck& ack) {
  const SessionState& state = sessions_.at(session);
  if (state.role != proto::ROLE_SERVER || jobs_.find(ack.job()) == jobs_.end()) return;
  uint64_t& acked = servers_.at(state.server).acked[ack.job()];
  acked = std::max(acked, ack.version());
}

void CoreImpl::CheckLeases() {
  const TimeNs now = clock_->Now();
  if (now < no_loss_before_) return;
  const auto expired = [&](const Live& live) { return now - live.heard > lease(); };
  std::vector<std::string> lost;
  for (const auto& [id, server] : servers_)
    if (expired(server.live)) lost.push_back(id);
  for (const std::string& id : lost) LoseServer(id);
  for (auto& [number, job] : jobs_) {
    if (job.ended()) continue;
    for (uint32_t rank = 0; rank < job.workers.size() && !job.ended(); ++rank) {
      const proto::WorkerInfo& info = job.plan().workers(rank);
      if (!info.alive() || info.finished() || job.leaves.count(rank) > 0 || !expired(job.workers[rank])) continue;
      const proto::WorkerRecord& worker = job.record.workers(rank);
      LoseWorker(job, rank,
                 absl::StrCat("rank ", rank, " (", worker.id(), ", ", worker.peer(), ") was lost: nothing heard for ",
                              Ago(now - job.workers[rank].heard), " (node.lease_ms ", config_.lease_ms(), ")"));
    }
  }
}

void CoreImpl::LoseServer(const std::string& id) {
  const ServerState& server = servers_.at(id);
  const std::string text = absl::StrCat("server ", id, " (", server.record.control(), ", ", server.record.peer(),
                                        ") was lost: nothing heard for ", Ago(clock_->Now() - server.live.heard),
                                        " (node.lease_ms ", config_.lease_ms(), ")");
  for (auto& [number, job] : jobs_) {
    if (job.plan().state() != proto::JOB_RUNNING) continue;
    bool owner = false;
    for (const proto::ServerInfo& info : job.plan().servers()) owner |= info.id() == id;
    if (!owner) continue;
    const absl::Status status = EndJob(
        job, proto::JOB_FAILED,
        absl::StrCat(text, "; its shards are gone (no replicas in this version): start the server and the job again"));
    if (!status.ok()) return;  // the next tick comes here again
  }
  const SessionId session = server.live.session;
  if (!Commit({{ServerKey(id), ""}}).ok()) return;
  Note("server_lost", "", text);
  if (session != 0) Close(session, absl::UnavailableError("the lease ran out: register again"));
  servers_.erase(id);
  unsettled_ = true;
}

void CoreImpl::LoseWorker(JobState& job, uint32_t rank, const std::string& why) {
  const SessionId session = job.workers[rank].session;
  absl::Status status;
  if (job.plan().state() == proto::JOB_FORMING) {
    proto::JobRecord next = job.record;
    next.mutable_workers(rank)->Clear();
    next.mutable_plan()->mutable_workers(rank)->Clear();
    next.mutable_plan()->mutable_workers(rank)->set_rank(rank);
    status = CommitJob(job, std::move(next));
  } else if (job.plan().config().on_worker_loss() == proto::LOSS_FAIL) {
    status = EndJob(job, proto::JOB_FAILED, absl::StrCat(why, "; job.on_worker_loss is fail"));
  } else if (job.plan().config().on_worker_loss() == proto::LOSS_RESCALE) {
    status = BeginLeaving(job, rank, why);
  } else {
    proto::JobRecord next = job.record;
    next.mutable_plan()->mutable_workers(rank)->set_alive(false);
    status = CommitJob(job, std::move(next));
  }
  if (!status.ok()) return;  // the next tick comes here again
  Note("worker_lost", job.name(), why);
  job.workers[rank].unseen = false;
  if (session != 0) Close(session, absl::UnavailableError("the lease ran out: register again"));
}

}  // namespace sluice::scheduler
