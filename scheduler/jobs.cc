// A job's life.
//   FORMING   its workers come; nothing is placed yet. A worker that is lost frees its rank.
//   RUNNING   from the moment when all workers and node.servers servers are there: servers and shards are fixed now.
//             A lost worker: by job.on_worker_loss. A lost or restarted server: its shards go to their copies (servers.cc);
//             if a shard has no copy in sync, FAILED.
//   FINISHED  every worker has left in order (or is out by rule "rescale").
//   FAILED    plan.why says whose fault it was and what to do. Also by an operator (AbortJob): the only end of a job
//             whose workers are gone for good under rule "wait".
// Settle comes here after every change; each step looks at the state and not at what happened, so that a step that
// could not be written is taken at the next tick.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/core_impl.h"
#include "scheduler/plan_builder.h"

namespace sluice::scheduler {
namespace {

constexpr size_t kNamedRanks = 8;

bool Leaving(const proto::JobRecord& record, uint32_t rank) {
  return std::find(record.leaving_ranks().begin(), record.leaving_ranks().end(), rank) != record.leaving_ranks().end();
}

std::string RanksText(const std::vector<uint32_t>& ranks) {
  std::vector<uint32_t> named(ranks.begin(), ranks.begin() + std::min(ranks.size(), kNamedRanks));
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(named, ", "),
                      ranks.size() > named.size() ? ", …" : "");
}

}  // namespace

bool JobState::Active(uint32_t rank) const {
  const proto::WorkerInfo& info = plan().workers(rank);
  return !info.finished() && (info.out_from_round_size() == 0 || info.joining() != 0) && !Leaving(record, rank);
}

JobState* CoreImpl::NewestJob(const std::string& name) {
  for (auto it = jobs_.rbegin(); it != jobs_.rend(); ++it)
    if (it->second.name() == name) return &it->second;
  return nullptr;
}

size_t CoreImpl::ReadyServers() const {
  return std::count_if(servers_.begin(), servers_.end(),
                       [](const auto& entry) { return entry.second.live.session != 0 && !entry.second.record.draining(); });
}

// plan.why while a job has not ended. Without times: those would make a new plan every moment (views.cc adds them).
std::string CoreImpl::Why(const proto::JobRecord& record) const {
  const proto::Plan& plan = record.plan();
  std::vector<std::string> parts;
  if (plan.state() == proto::JOB_FORMING) {
    std::vector<uint32_t> missing;
    for (int rank = 0; rank < record.workers_size(); ++rank)
      if (record.workers(rank).member() == 0) missing.push_back(rank);
    if (!missing.empty())
      parts.push_back(absl::StrCat("waiting for ", missing.size(), " of ", record.workers_size(), " workers (",
                                   RanksText(missing), ")"));
    if (const size_t servers = ReadyServers(); servers < config_.servers())
      parts.push_back(absl::StrCat("waiting for ", config_.servers() - servers, " of ", config_.servers(),
                                   " servers (node.servers)"));
    return absl::StrJoin(parts, "; ");
  }
  for (int rank = 0; rank < record.workers_size(); ++rank) {
    const proto::WorkerInfo& info = plan.workers(rank);
    const bool out = info.out_from_round_size() > 0 && info.joining() == 0;
    if (info.alive() || info.finished() || out) continue;
    const proto::WorkerRecord& worker = record.workers(rank);
    parts.push_back(Leaving(record, rank)
                        ? absl::StrCat("rank ", rank, " (", worker.id(), ", ", worker.peer(),
                                       ") was lost: collecting the partitions' states to go on without it")
                        : absl::StrCat("waiting for rank ", rank, " (", worker.id(), ", ", worker.peer(),
                                       "), which was lost: start it again with the same rank"));
    if (parts.size() == kNamedRanks) break;
  }
  return absl::StrJoin(parts, "; ");
}

void CoreImpl::SettleJob(JobState& job) {
  SettleLeaves(job);
  if (job.plan().state() == proto::JOB_FORMING) SettleForming(job);
  if (job.plan().state() == proto::JOB_RUNNING) SettleRunning(job);
  if (job.ended()) RejectPending(job);
  if (job.plan_unsent && job.plan().state() != proto::JOB_FORMING) SendPlanToAll(job);
}

void CoreImpl::SettleForming(JobState& job) {
  const auto& workers = job.record.workers();
  if (std::all_of(workers.begin(), workers.end(), [](const auto& worker) { return worker.member() == 0; })) {
    (void)EndJob(job, proto::JOB_FAILED, "all of its workers went before it started");
    return;
  }
  const bool complete =
      std::all_of(job.workers.begin(), job.workers.end(), [](const Live& l) { return l.session != 0; });
  if (!complete || ReadyServers() < config_.servers()) {
    if (Why(job.record) != job.plan().why()) (void)CommitJob(job, job.record);
    return;
  }
  proto::JobRecord next = job.record;
  proto::Plan* plan = next.mutable_plan();
  plan->set_state(proto::JOB_RUNNING);
  for (const auto& [id, server] : servers_) {
    if (server.live.session == 0 || server.record.draining()) continue;
    proto::ServerInfo* info = plan->add_servers();
    info->set_server(static_cast<uint32_t>(plan->servers_size() - 1));
    info->set_id(id);
    info->set_incarnation(server.record.incarnation());
    *info->mutable_lanes() = server.record.lanes();
    info->set_control(server.record.control());
    info->set_host(server.record.host());
    info->set_alive(true);
  }
  Locate(plan);
  PlaceShards(config_.shards(), meta_.term_floor() + 1, plan);
  plan->set_coordinator_server(0);
  const Tended copies = Tend(RulesFor(next), /*in_sync=*/true, plan);
  StartTrees(plan);
  if (!CommitJob(job, std::move(next)).ok()) return;
  Note("job_running", job.name(),
       absl::StrCat(job.workers.size(), " workers, ", job.plan().servers_size(), " servers, ", job.plan().shards_size(),
                    " shards, ", copies.named, " copies, plan version ", job.plan().version()));
}

void CoreImpl::SettleRunning(JobState& job) {
  SettleServers(job);
  if (job.ended()) return;
  if (!job.record.leaving_ranks().empty()) {
    if (job.report_request == 0) AskForReports(job);
    else if (job.reports_missing.empty()) CommitLeaving(job);
  }
  AddPendingTensors(job);
  if (job.plan_unsent) SendPlanToAll(job);
  AnswerTensors(job);
  ReleaseBarriers(job);

  size_t active = 0, finished = 0;
  for (uint32_t rank = 0; rank < job.workers.size(); ++rank) {
    active += job.Active(rank);
    finished += job.plan().workers(rank).finished();
  }
  if (active > 0) return;
  if (finished > 0) (void)EndJob(job, proto::JOB_FINISHED, absl::StrCat(finished, " workers finished"));
  else (void)EndJob(job, proto::JOB_FAILED, "every worker was lost (job.on_worker_loss=rescale)");
}

absl::Status CoreImpl::EndJob(JobState& job, proto::JobState state, const std::string& why) {
  proto::JobRecord next = job.record;
  next.mutable_plan()->set_state(state);
  next.mutable_plan()->set_why(why);
  next.clear_leaving_ranks();
  next.clear_moves();
  next.set_round(StatusOf(job).round());   // heartbeats do not outlive a restart
  if (absl::Status status = CommitJob(job, std::move(next)); !status.ok()) return status;
  job.counts_as_ended = true;
  Note(state == proto::JOB_FINISHED ? "job_finished" : "job_failed", job.name(), why);
  return absl::OkStatus();
}

absl::StatusOr<proto::JobStatus> CoreImpl::AbortJob(const std::string& name, const std::string& reason) {
  if (name.empty())
    return absl::InvalidArgumentError("which job is to be aborted? Give its name or number (sluicectl status)");
  if (reason.size() > kMaxReasonBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("the reason has ", reason.size(), " bytes; at most ", kMaxReasonBytes, " are kept"));
  JobState* job = NewestJob(name);
  if (uint32_t number = 0; job == nullptr && absl::SimpleAtoi(name, &number)) {
    if (auto it = jobs_.find(number); it != jobs_.end()) job = &it->second;
  }
  if (job == nullptr) return FindJob(name).status();   // names those that there are
  if (job->ended())
    return absl::FailedPreconditionError(absl::StrCat(
        "job \"", job->name(), "\" (number ", job->plan().job(), ") has ",
        job->plan().state() == proto::JOB_FAILED ? "failed" : "finished", " already: ", job->plan().why()));
  const absl::Status status =
      EndJob(*job, proto::JOB_FAILED,
             absl::StrCat("aborted by an operator", reason.empty() ? "" : ": ", reason));
  if (!status.ok())
    return absl::UnavailableError(absl::StrCat("job \"", job->name(), "\" goes on: its end could not be written: ",
                                               status.message(), "; try again when that is cured"));
  const proto::JobStatus ended = StatusOf(*job);   // Settle may forget old jobs
  Settle();                                        // tells everybody
  (void)Commit({});                                // the event is on record, too, when the operator is answered
  return ended;
}

// Nothing that a member waits for will come any more.
void CoreImpl::RejectPending(JobState& job) {
  const absl::Status status = absl::FailedPreconditionError(absl::StrCat(
      "job \"", job.name(), "\" has ", job.plan().state() == proto::JOB_FAILED ? "failed" : "finished", ": ",
      job.plan().why()));
  for (const PendingTensors& pending : job.tensors) Answer(pending.session, pending.message.request(), status);
  job.tensors.clear();
  for (const auto& [name, waits] : job.barriers)
    for (const auto& [rank, wait] : waits) Answer(wait.session, wait.request, status);
  job.barriers.clear();
}

void CoreImpl::ForgetOldJobs() {
  size_t ended = 0;
  for (const auto& [number, job] : jobs_) ended += job.ended();
  for (auto it = jobs_.begin(); it != jobs_.end() && ended >= kMaxEndedJobs;) {
    const JobState& job = it->second;
    const bool watched =
        std::any_of(job.workers.begin(), job.workers.end(), [](const Live& l) { return l.session != 0; });
    if (!job.ended() || watched) {
      ++it;
      continue;
    }
    Changes changes = {{JobKey(it->first), ""}};
    for (const auto& [name, released] : job.released) changes.emplace_back(BarrierKey(it->first, name), "");
    if (!Commit(std::move(changes)).ok()) return;
    for (auto& [id, server] : servers_) server.acked.erase(it->first);
    it = jobs_.erase(it);
    --ended;
  }
}

bool CoreImpl::AllJobsEnded() const {
  bool any = false;
  for (const auto& [number, job] : jobs_) {
    if (!job.ended()) return false;
    any |= job.counts_as_ended;
  }
  return any;
}

void CoreImpl::ShutDownServers() {
  shutdown_sent_ = true;
  proto::SchedulerMessage message;
  message.mutable_shutdown()->set_why("every job has ended (node.exit_when_done)");
  for (const auto& [id, server] : servers_) Send(server.live.session, message);
  Note("shutdown", "", "every job has ended (node.exit_when_done)");
}

}  // namespace sluice::scheduler
