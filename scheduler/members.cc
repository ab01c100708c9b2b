// Heartbeats, leases, streams that end.
//
// Leases detect, they never decide: a lost server or worker is handed to the rule of its job (jobs.cc). A member whose
// lease ran out while its stream was open (it stood still) finds the stream closed and registers again.
//
// A killed process ends its stream at once, seconds before its lease. So a server whose stream has ended and that has not
// come back within kStreamGrace (or two heartbeats, at most the lease) is taken for lost, if every running job can spare
// it: each shard of it has a copy in sync on a server that has a stream. One that lives and lost only its stream is back
// within a few hundred milliseconds, since a member's first attempts follow each other after 50, 100, 200, … ms; and if
// it is not, nothing is at stake: by docs/replication.md nothing is seen that a copy in sync lacks, so making one the owner
// is right whether the former owner is dead or not. It comes back as a server that holds nothing. Where somebody would
// lose by a wrong guess (no copies, or their servers have no stream either, as when this machine's network is down) the
// lease decides.
//
// For one lease after the start, and after this process itself stood still, no lease counts: members may have talked to
// nobody. Ended streams count as soon as everybody that the state file names has been heard. Till then somebody may know a
// newer term; then nothing is left to wait for, and a job that has just started, or a scheduler that was replaced, does
// not make the next loss cost a lease.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/core_impl.h"
#include "transport/control/link_report.h"

namespace sluice::scheduler {
namespace {

constexpr TimeNs kStreamGrace = kSecond;

}  // namespace

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
  if (heartbeat.has_links()) {
    const std::optional<proto::LinkReport> before = std::move(live->links);
    control::AddReport(heartbeat.links(), &live->links.emplace());
    if (state.role == proto::ROLE_SERVER) {
      const proto::ServerRecord& record = servers_.at(state.server).record;
      TakeLinks(record.host(), record.member(), before, *live->links);
    } else if (const auto job = jobs_.find(state.job); job != jobs_.end()) {
      const int rank = static_cast<int>(state.rank);
      TakeLinks(job->second.plan().workers(rank).host(), job->second.record.workers(rank).member(), before, *live->links);
    }
  }
  if (state.role == proto::ROLE_SERVER) {
    TakeTables(state.server, heartbeat);
    TakeReplicas(state.server, heartbeat);
    TakeProbes(state.server, heartbeat);
    servers_.at(state.server).meter.Take(heartbeat.cost(), clock_->Now(), Smoothing());
  } else if (const auto job = jobs_.find(state.job); job != jobs_.end()) {
    TakeCodecs(job->second, state.rank, heartbeat);
    job->second.steps.Take(state.rank, heartbeat.round(), heartbeat.round_at_us());
  }

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
  const bool leases_count = now >= no_loss_before_;
  if (!leases_count && !EverybodyHeard()) return;
  const auto expired = [&](const Live& live) { return leases_count && now - live.heard > lease(); };
  const TimeNs awake_since = no_loss_before_ - lease();   // what ended before may have come back unread
  const TimeNs grace = std::min(lease(), std::max(2 * TimeNs{config_.heartbeat_ms()} * kMillisecond, kStreamGrace));
  std::vector<std::string> lost;   // together: what lies on two of them has no copy there
  for (const auto& [id, server] : servers_) {
    const bool stayed_away = server.live.session == 0 && !server.live.unseen &&
                             now - std::max(server.live.gone, awake_since) >= grace;
    if (expired(server.live) || (stayed_away && CanSpare(id))) lost.push_back(id);
  }
  if (!lost.empty()) LoseSilentServers(lost);
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

bool CoreImpl::EverybodyHeard() const {
  for (const auto& [id, server] : servers_)
    if (server.live.unseen) return false;
  for (const auto& [number, job] : jobs_) {
    if (job.ended()) continue;
    for (size_t rank = 0; rank < job.workers.size(); ++rank)
      if (job.workers[rank].unseen && !job.plan().workers(static_cast<int>(rank)).finished()) return false;
  }
  return true;
}

std::string CoreImpl::SilenceOf(const ServerState& server) const {
  const TimeNs now = clock_->Now();
  const std::string who =
      absl::StrCat("server ", server.record.id(), " (", server.record.control(), ", ", server.record.peer(), ") was lost: ");
  if (now - server.live.heard > lease())
    return absl::StrCat(who, "nothing heard for ", Ago(now - server.live.heard), " (node.lease_ms ", config_.lease_ms(), ")");
  return absl::StrCat(who, "its stream ended, and it has not come back for ", Ago(now - server.live.gone));
}

void CoreImpl::LoseSilentServers(const std::vector<std::string>& ids) {
  // A stream that is still open ends first: from here on the server counts as one without (servers.cc).
  std::map<std::string, std::string> texts;
  for (const std::string& id : ids) {
    texts[id] = SilenceOf(servers_.at(id));
    if (const SessionId session = servers_.at(id).live.session; session != 0)
      Close(session, absl::UnavailableError("the lease ran out: register again"));
  }
  std::set<std::string> told;
  for (auto& [number, job] : jobs_) {
    if (job.plan().state() != proto::JOB_RUNNING) continue;
    LostServers lost;
    for (const proto::ServerInfo& info : job.plan().servers())
      if (info.alive() && texts.count(info.id()) > 0) lost[info.server()] = texts[info.id()];
    if (lost.empty()) continue;
    if (!UpdateServers(job, lost).ok()) return;   // the next tick comes here again
    if (job.ended()) continue;
    for (const auto& [index, text] : lost) told.insert(job.plan().servers(static_cast<int>(index)).id());
  }
  for (const auto& [id, text] : texts) {
    if (!Commit({{ServerKey(id), ""}}).ok()) return;
    if (told.count(id) == 0) Note("server_lost", "", text);
    servers_.erase(id);
  }
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
