// What operators ask for about shards: move, drain, pause, cancel (rebalance: rebalancing.cc). Each request is written before it is
// answered; what it leads to happens by and by (moves.h, servers.cc) and can be watched by ListMoves and GetDrain.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "scheduler/core_impl.h"
#include "scheduler/moves.h"

namespace sluice::scheduler {
absl::Status NotWritten(const absl::Status& status) {
  return absl::UnavailableError(absl::StrCat("nothing has changed, it could not be written: ", status.message(),
                                             "; try again when that is cured"));
}

std::string NameOf(const proto::Plan& plan, uint32_t server) {
  return static_cast<int>(server) < plan.servers_size() ? plan.servers(static_cast<int>(server)).id() : "?";
}

absl::StatusOr<JobState*> CoreImpl::RunningJob(const std::string& name) {
  SLUICE_ASSIGN_OR_RETURN(const JobState* job, FindJob(name));
  if (job->plan().state() != proto::JOB_RUNNING)
    return absl::FailedPreconditionError(absl::StrCat(
        "job \"", job->name(), "\" is not running: ",
        job->plan().state() == proto::JOB_FORMING ? "it has no shards yet, " : "it has ended, ", job->plan().why()));
  return &jobs_.at(job->plan().job());
}

absl::Status CoreImpl::UnknownServer(const std::string& id) const {
  return absl::NotFoundError(absl::StrCat(
      "there is no server \"", Clip(id), "\"; ", servers_.empty() ? "none has registered" : "known: ",
      absl::StrJoin(servers_, ", ", [](std::string* out, const auto& entry) { absl::StrAppend(out, entry.first); })));
}

absl::Status CoreImpl::BeginAtOnce(JobState& job, proto::JobRecord next) {
  const CopyRules rules = RulesFor(next);
  ApplyMoves(PlanMoves(next, rules, config_.moves_at_once()), rules, &next);
  Tend(rules, /*in_sync=*/false, next.mutable_plan());
  if (absl::Status status = CommitJob(job, std::move(next)); !status.ok()) return NotWritten(status);
  return absl::OkStatus();
}

absl::StatusOr<proto::MoveList> CoreImpl::MoveShard(const std::string& name, uint32_t number,
                                                    const std::string& server) {
  SLUICE_ASSIGN_OR_RETURN(JobState * job, RunningJob(name));
  const proto::Plan& plan = job->plan();
  if (number >= static_cast<uint32_t>(plan.shards_size()))
    return absl::NotFoundError(absl::StrCat("job \"", job->name(), "\" has no shard ", number, "; its shards are 0 to ",
                                            plan.shards_size() - 1));
  const proto::ShardInfo& shard = plan.shards(static_cast<int>(number));
  auto state = servers_.find(server);
  const auto info =
      std::find_if(plan.servers().begin(), plan.servers().end(), [&](const auto& i) { return i.id() == server; });
  if (state == servers_.end() && info == plan.servers().end()) return UnknownServer(server);
  if (state == servers_.end() || info == plan.servers().end() || !info->alive() || state->second.live.session == 0)
    return absl::FailedPreconditionError(absl::StrCat(
        "server ", server, " is lost or has no stream to the scheduler: start it again, or take another (",
        absl::StrJoin(plan.servers(), ", ",
                      [](std::string* out, const auto& i) { absl::StrAppend(out, i.id(), i.alive() ? "" : ": lost"); }),
        ")"));
  if (state->second.record.draining())
    return absl::FailedPreconditionError(absl::StrCat("server ", server, " is being drained; `sluicectl undrain ", server,
                                                      "` makes it take shards again"));
  if (shard.server() == info->server())
    return absl::AlreadyExistsError(absl::StrCat("shard ", number, " is owned by ", server, " already"));
  if (const proto::MoveRecord* move = FindMove(job->record, number); move != nullptr)
    return absl::FailedPreconditionError(absl::StrCat(
        "shard ", number, " is on its way to ", NameOf(plan, move->to()), " already; `sluicectl moves` shows how far, ",
        "`sluicectl cancel-moves` ends all moves"));
  proto::JobRecord next = job->record;
  proto::MoveRecord* move = next.add_moves();
  move->set_shard(number);
  move->set_from(shard.server());
  move->set_to(info->server());
  move->set_reason("asked for by an operator");
  SLUICE_RETURN_IF_ERROR(BeginAtOnce(*job, std::move(next)));
  Note("move_asked", job->name(), absl::StrCat("shard ", number, " is to go to ", server));
  return AfterRequest(*job);
}

absl::StatusOr<proto::MoveList> CoreImpl::SetMovesPaused(const std::string& name, bool paused) {
  SLUICE_ASSIGN_OR_RETURN(JobState * job, RunningJob(name));
  if (job->record.moves_paused() == paused) return MovesOf(*job);
  proto::JobRecord next = job->record;
  next.set_moves_paused(paused);
  SLUICE_RETURN_IF_ERROR(BeginAtOnce(*job, std::move(next)));
  Note(paused ? "moves_paused" : "moves_resumed", job->name(),
       absl::StrCat(job->record.moves_size(), " moves are asked for",
                    paused ? "; those that have begun go on, no other begins" : ""));
  return AfterRequest(*job);
}

absl::StatusOr<proto::MoveList> CoreImpl::CancelMoves(const std::string& name) {
  SLUICE_ASSIGN_OR_RETURN(JobState * job, RunningJob(name));
  proto::JobRecord next = job->record;
  const uint32_t cancelled = scheduler::CancelMoves(RulesFor(next), &next);
  if (cancelled == 0) return MovesOf(*job);
  SLUICE_RETURN_IF_ERROR(BeginAtOnce(*job, std::move(next)));
  Note("moves_cancelled", job->name(), absl::StrCat(cancelled, " moves; shards that have moved stay where they are"));
  return AfterRequest(*job);
}

absl::StatusOr<proto::MoveList> CoreImpl::ListMoves(const std::string& name) const {
  SLUICE_ASSIGN_OR_RETURN(const JobState* job, FindJob(name));
  return MovesOf(*job);
}

absl::StatusOr<proto::DrainStatus> CoreImpl::SetDraining(const std::string& id, bool draining) {
  auto it = servers_.find(id);
  if (it == servers_.end()) return UnknownServer(id);
  ServerState& server = it->second;
  if (server.record.draining() == draining) return DrainOf(id);
  if (draining) {
    if (server.live.session == 0)
      return absl::FailedPreconditionError(absl::StrCat(
          "server ", id, " has no stream to the scheduler: its shards cannot be had from it. Start it again; if it does "
          "not come back they go to their copies (`sluicectl status`)"));
    for (const auto& [number, job] : jobs_) {
      if (job.plan().state() != proto::JOB_RUNNING) continue;
      bool in_use = false, others = false;
      const CopyRules rules = RulesFor(job.record);
      for (const proto::ServerInfo& info : job.plan().servers()) {
        if (info.id() == id) in_use = info.alive();
        else others |= info.alive() && rules.avoid.count(info.server()) + rules.draining.count(info.server()) == 0;
      }
      if (in_use && !others)
        return absl::FailedPreconditionError(absl::StrCat(
            "nowhere to go: job \"", job.name(), "\" has no other server with a stream that is not being drained. Start "
            "another (it joins the job when it registers) and ask again"));
    }
  }
  proto::ServerRecord next = server.record;
  next.set_draining(draining);
  if (absl::Status status = Commit({{ServerKey(id), next.SerializeAsString()}}); !status.ok()) return NotWritten(status);
  server.record = std::move(next);
  server.drain_noted = false;
  Note(draining ? "server_draining" : "server_undrained", "",
       absl::StrCat("server ", id, draining ? ": its shards and copies go to others, it gets no new ones"
                                            : " takes shards and copies again; what has left it stays away"));
  unsettled_ = true;
  Settle();
  NoteDrained();
  (void)Commit({});
  return DrainOf(id);
}

absl::StatusOr<proto::DrainStatus> CoreImpl::GetDrain(const std::string& id) const {
  if (servers_.find(id) == servers_.end()) return UnknownServer(id);
  return DrainOf(id);
}

proto::DrainStatus CoreImpl::DrainOf(const std::string& id) const {
  proto::DrainStatus status;
  status.set_server(id);
  status.set_draining(servers_.at(id).record.draining());
  std::vector<std::string> waits;
  for (const auto& [number, job] : jobs_) {
    if (job.plan().state() != proto::JOB_RUNNING) continue;
    for (const proto::ServerInfo& info : job.plan().servers()) {
      if (info.id() != id || !info.alive()) continue;
      const Held held = HeldBy(job.plan(), info.server());
      status.set_shards(status.shards() + held.shards);
      status.set_copies(status.copies() + held.copies);
      for (const proto::ShardInfo& shard : job.plan().shards())
        if (shard.server() == info.server()) status.set_bytes(status.bytes() + shard.bytes());
      if (status.draining() && held.shards > 0 && job.record.moves_paused())
        waits.push_back(absl::StrCat("the moves of job ", job.name(), " are paused (sluicectl resume-moves)"));
    }
  }
  status.set_empty(status.shards() == 0 && status.copies() == 0);
  status.set_text(!status.draining() ? "takes shards and copies"
                  : status.empty()   ? "holds nothing any more: it may be stopped"
                                     : absl::StrCat(status.shards(), " shards and ", status.copies(), " copies are left",
                                                    waits.empty() ? "" : "; ", absl::StrJoin(waits, "; ")));
  return status;
}

void CoreImpl::NoteDrained() {
  for (auto& [id, server] : servers_) {
    if (!server.record.draining() || server.drain_noted || !DrainOf(id).empty()) continue;
    server.drain_noted = true;
    Note("server_drained", "", absl::StrCat("server ", id, " holds nothing any more: it may be stopped"));
  }
}

proto::MoveStatus CoreImpl::MoveStatusOf(const JobState& job, const proto::MoveRecord& move) const {
  const proto::Plan& plan = job.plan();
  proto::MoveStatus status;
  status.set_shard(move.shard());
  status.set_from(NameOf(plan, move.from()));
  status.set_to(NameOf(plan, move.to()));
  status.set_reason(absl::StrCat(move.automatic() ? "automatic: " : "", move.reason()));
  status.set_state("queued");
  if (static_cast<int>(move.shard()) >= plan.shards_size()) return status;
  const proto::ShardInfo& shard = plan.shards(static_cast<int>(move.shard()));
  status.set_bytes(shard.bytes());
  const proto::BackupInfo* copy = FindCopy(shard, move.to());
  if (!shard.moving() || copy == nullptr) return status;
  status.set_state(copy->in_sync() ? "waiting for another copy" : "filling");
  auto it = job.progress.find({move.shard(), move.to()});
  if (it == job.progress.end() || it->second.since != copy->since()) return status;
  status.set_bytes_sent(it->second.sent);
  status.set_bytes_left(it->second.left);
  status.set_bytes_per_second(static_cast<uint64_t>(it->second.rate));
  if (it->second.rate >= 1)
    status.set_eta_ms(static_cast<uint64_t>(1000 * static_cast<double>(it->second.left) / it->second.rate));
  return status;
}

proto::MoveList CoreImpl::MovesOf(const JobState& job) const {
  proto::MoveList list;
  list.set_job(job.name());
  list.set_paused(job.record.moves_paused());
  for (const proto::MoveRecord& move : job.record.moves()) *list.add_moves() = MoveStatusOf(job, move);
  return list;
}

absl::StatusOr<proto::MoveList> CoreImpl::AfterRequest(JobState& job) {
  const uint32_t number = job.plan().job();
  Settle();             // tells everybody
  (void)Commit({});     // the event is on record, too, when the operator is answered
  return MovesOf(jobs_.at(number));
}

}  // namespace sluice::scheduler
