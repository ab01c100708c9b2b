// Who may be which member.
//   1. OnRegister checks what needs no state: protocol, role, names, bounds. -> FAILED_PRECONDITION, INVALID_ARGUMENT
//   2. CatchUp: versions and terms go beyond those that the member knows.
//   3. A worker finds its job (JobFor: made by the first that names it, compared with the others') and its place in it
//      (PlaceFor); a server its id.
//   4. The same life (id and incarnation as on record) is let in at once; its older stream is closed.
//   5. Another life takes a place whose holder has no stream, with a higher incarnation; the old life is fenced out.
//   6. If the holder has a stream, it may still be one that is just being torn down (its process was killed and started
//      again at once): the newcomer is parked. The end of the stream, or of the lease, leads to 5; two heartbeats of
//      the holder prove it alive. -> ALREADY_EXISTS
//   7. The record is written, then Welcome goes out, then the plan. A write that fails: UNAVAILABLE, come again; no event
//      but state_error tells of it, since members come again many times while a disk is full.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/groups.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "scheduler/core_impl.h"
#include "scheduler/job_config.h"
#include "scheduler/rank_order.h"
#include "transport/control/member_core.h"

namespace sluice::scheduler {
namespace {

constexpr uint32_t kMaxOrderedRanks = 4096;   // each newcomer costs a look at all; who starts more names ranks
constexpr uint32_t kHopsInARack = 2;          // up to the switch and down again

constexpr uint32_t kMaxProposed = 0x7FFFFFFF;  // leaves room above for every life that follows
constexpr int kProofOfLife = 2;                // heartbeats: one may have been under way when its sender died

std::string Who(const proto::Register& reg) {
  return absl::StrCat(reg.role() == proto::ROLE_SERVER ? "server " : "worker ", Clip(reg.id()));
}

bool SameLife(const proto::WorkerRecord& worker, const proto::Register& reg) {
  return worker.member() != 0 && worker.id() == reg.id() &&
         (worker.incarnation() == reg.incarnation() || worker.proposed() == reg.incarnation());
}

bool Fenced(const proto::WorkerRecord& worker, const proto::Register& reg) {
  return std::any_of(worker.fenced().begin(), worker.fenced().end(), [&](const proto::LifeRecord& life) {
    return life.id() == reg.id() && life.incarnation() == reg.incarnation();
  });
}

bool Leaving(const proto::JobRecord& record, uint32_t rank) {
  return std::find(record.leaving_ranks().begin(), record.leaving_ranks().end(), rank) != record.leaving_ranks().end();
}

// The others went on without it, and it has not come back.
bool Out(const proto::JobRecord& record, uint32_t rank) {
  const proto::WorkerInfo& info = record.plan().workers(static_cast<int>(rank));
  return (info.out_from_round_size() > 0 && info.joining() == 0) || Leaving(record, rank);
}

// Whether a new process may take the place of a rank that is out (rule "rescale").
absl::Status MayRejoin(const JobState& job, uint32_t rank) {
  const auto who = [&] {
    return absl::StrCat("rank ", rank, " of job \"", job.name(), "\" was lost and the others went on without it "
                        "(job.on_worker_loss=rescale)");
  };
  if (Leaving(job.record, rank))
    return absl::UnavailableError(absl::StrCat(who(), "; the partitions' states are being collected, then it may come back"));
  if (job.plan().config().reply() == proto::REPLY_AGGREGATE)
    return absl::FailedPreconditionError(absl::StrCat(
        who(), "; it cannot come back, because replies are aggregates (job.reply): the servers have no parameters that it "
        "could go on from. Use an optimizer on the servers (job.optimizer.kind) and another job.reply"));
  for (const proto::TensorInfo& tensor : job.plan().tensors()) {
    if (tensor.spec().occasional())
      return absl::FailedPreconditionError(absl::StrCat(
          who(), "; it cannot come back, because tensor ", tensor.spec().name(), " is not pushed in every step "
          "(TensorSpec::every_step), and nobody can say which of its rounds the rank would enter"));
  }
  return absl::OkStatus();
}

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

void CoreImpl::OnRegister(SessionId session, const proto::Register& reg) {
  if (absl::Status status = CheckRegister(reg); !status.ok()) return Refuse(session, reg, status);
  if (absl::Status status = CatchUp(reg); !status.ok()) return Refuse(session, reg, status);
  if (reg.role() == proto::ROLE_SERVER) RegisterServer(session, reg);
  else RegisterWorker(session, reg);
}

void CoreImpl::Refuse(SessionId session, const proto::Register& reg, const absl::Status& status) {
  if (!absl::IsUnavailable(status))
    Note("refused", Clip(reg.job().name()), absl::StrCat(Who(reg), ": ", status.ToString()));
  Close(session, status);
}

absl::Status CoreImpl::CheckRegister(const proto::Register& reg) const {
  if (reg.protocol() != control::kProtocolVersion)
    return absl::FailedPreconditionError(absl::StrCat(
        "this scheduler speaks protocol ", control::kProtocolVersion, " (release ", kVersion, "), ", Who(reg),
        " speaks protocol ", reg.protocol(), " (release ", Clip(reg.version()), "); install the same release on both"));
  if (reg.role() != proto::ROLE_SERVER && reg.role() != proto::ROLE_WORKER)
    return absl::InvalidArgumentError(absl::StrCat("unknown role ", reg.role()));
  if (reg.id().empty() || reg.id().size() > kMaxIdBytes)
    return absl::InvalidArgumentError(absl::StrCat("a member's id must have 1 to ", kMaxIdBytes, " bytes"));
  if (reg.host().size() > kMaxIdBytes)
    return absl::InvalidArgumentError(
        absl::StrCat(Who(reg), ": the name of its host (node.host) is longer than ", kMaxIdBytes, " bytes"));
  const int fewest = reg.role() == proto::ROLE_SERVER ? 1 : 0;   // a worker need not listen
  if (reg.lanes_size() < fewest || reg.lanes_size() > kMaxLanes)
    return absl::InvalidArgumentError(absl::StrCat(Who(reg), " has ", reg.lanes_size(), " data addresses (node.loops); ", fewest,
                                                   " to ", kMaxLanes, " are allowed"));
  for (const proto::Address& lane : reg.lanes()) {
    // Workers that speak by shared memory alone have no port.
    const bool reachable = (!lane.host().empty() && lane.port() != 0) || (fewest == 0 && !lane.unix_socket().empty());
    if (!reachable || lane.host().size() > kMaxIdBytes || lane.port() > 65535 || lane.unix_socket().size() > kMaxIdBytes ||
        lane.host_id().size() > kMaxIdBytes)
      return absl::InvalidArgumentError(absl::StrCat(Who(reg), " names a data address that cannot be: \"",
                                                     Clip(lane.host()), ":", lane.port(), "\""));
  }
  if (reg.control().size() > kMaxIdBytes) return absl::InvalidArgumentError("Register.control is too long");
  return absl::OkStatus();
}

// A member that knows a larger version or term than this scheduler has seen another state than the one that was read:
// everything goes beyond what it knows, or it would ignore the plans to come.
absl::Status CoreImpl::CatchUp(const proto::Register& reg) {
  uint32_t known_term = meta_.term_floor() + 1;
  for (const auto& [number, job] : jobs_)
    for (const proto::ShardInfo& shard : job.plan().shards()) known_term = std::max(known_term, shard.term());
  const bool terms = reg.max_term() > known_term;
  if (reg.plan_version() <= meta_.plan_version() && !terms) return absl::OkStatus();
  if (reg.max_term() == UINT32_MAX || reg.plan_version() >= UINT64_MAX / 2)
    return absl::InvalidArgumentError(
        absl::StrCat(Who(reg), " reports a term or plan version at the end of its range"));
  meta_.set_plan_version(std::max(meta_.plan_version(), reg.plan_version()));
  if (terms) meta_.set_term_floor(reg.max_term());
  Note("caught_up", "", absl::StrCat(Who(reg), " knows plan version ", reg.plan_version(), " and term ", reg.max_term(),
                                     "; the scheduler goes on beyond"));
  for (auto& [number, job] : jobs_) {
    if (job.plan().state() != proto::JOB_RUNNING) continue;
    proto::JobRecord next = job.record;
    if (terms)
      for (proto::ShardInfo& shard : *next.mutable_plan()->mutable_shards()) shard.set_term(meta_.term_floor() + 1);
    if (absl::Status status = CommitJob(job, std::move(next)); !status.ok())
      return absl::UnavailableError(status.message());
  }
  return absl::OkStatus();
}

void CoreImpl::RegisterServer(SessionId session, const proto::Register& reg) {
  auto it = servers_.find(reg.id());
  if (it == servers_.end() && servers_.size() >= kMaxServers)
    return Refuse(session, reg,
                  absl::FailedPreconditionError(absl::StrCat("there are ", kMaxServers, " servers already")));
  if (it != servers_.end() && it->second.record.incarnation() != std::max(1u, reg.incarnation()) &&
      it->second.live.Alive())
    return Park(session, reg);
  if (absl::Status status = AdmitServer(session, reg); !status.ok()) Refuse(session, reg, status);
}

absl::Status CoreImpl::AdmitServer(SessionId session, const proto::Register& reg) {
  const uint32_t incarnation = std::max(1u, reg.incarnation());
  auto it = servers_.find(reg.id());
  const bool known = it != servers_.end();
  const bool same_life = known && it->second.record.incarnation() == incarnation;
  proto::ServerRecord next;
  if (known) next = it->second.record;
  if (!known) {
    meta_.set_members(meta_.members() + 1);
    next.set_member(meta_.members());
    next.set_id(reg.id());
  }
  if (!same_life) next.set_draining(false);
  next.set_incarnation(incarnation);
  next.set_peer(sessions_.at(session).peer);
  next.set_control(reg.control());
  next.set_host(reg.host());
  *next.mutable_lanes() = reg.lanes();

  if (!same_life || next.SerializeAsString() != it->second.record.SerializeAsString()) {
    if (absl::Status status = Commit({{ServerKey(reg.id()), next.SerializeAsString()}}); !status.ok()) {
      if (!known) meta_.set_members(meta_.members() - 1);
      return absl::UnavailableError(status.message());
    }
    Note(same_life ? "server_back" : "server_registered", "",
         absl::StrCat("server ", reg.id(), " from ", next.peer(), ", control ", reg.control(), ", ", reg.lanes_size(),
                      " lanes, incarnation ", incarnation));
  }

  ServerState& server = servers_[reg.id()];
  const SessionId old = server.live.session;
  server.record = std::move(next);
  server.live = {.session = session, .heard = clock_->Now(), .unseen = false, .restored = false, .heartbeat = {}};
  if (!same_life) server.acked.clear();
  server.drain_noted = false;
  SessionState& state = sessions_.at(session);
  state.role = proto::ROLE_SERVER;
  state.server = reg.id();
  if (old != 0 && old != session) Close(old, absl::CancelledError("replaced by a newer stream of the same server"));

  proto::SchedulerMessage message;
  proto::Welcome* welcome = message.mutable_welcome();
  welcome->set_member(server.record.member());
  welcome->set_incarnation(incarnation);
  welcome->set_heartbeat_ms(config_.heartbeat_ms());
  welcome->set_lease_ms(config_.lease_ms());
  welcome->set_scheduler_version(kVersion);
  Send(session, message);
  for (auto& [number, job] : jobs_) {
    for (const proto::ServerInfo& info : job.plan().servers()) {
      if (info.id() != reg.id() || info.incarnation() != incarnation) continue;
      job.counts_as_ended = true;
      SendPlan(job, session);
      if (!job.record.leaving_ranks().empty() && job.reports_missing.count(reg.id()) > 0) AskForReport(job, reg.id());
    }
  }
  if (shutdown_sent_) {
    message.mutable_shutdown()->set_why("every job has ended (node.exit_when_done)");
    Send(session, message);
  }
  unsettled_ = true;   // SettleServers takes it into the plans of running jobs, the life before out of them
  return absl::OkStatus();
}

void CoreImpl::RegisterWorker(SessionId session, const proto::Register& reg) {
  absl::StatusOr<JobState*> job = JobFor(reg);
  if (!job.ok()) return Refuse(session, reg, job.status());
  // A job whose first worker was not let in: as if it had never come.
  const auto refuse = [&](const absl::Status& status) {
    if ((*job)->plan().version() == 0) jobs_.erase((*job)->plan().job());
    Refuse(session, reg, status);
  };
  absl::StatusOr<Place> place = PlaceFor(**job, reg);
  if (!place.ok()) return refuse(place.status());
  if (place->park) {
    SessionState& state = sessions_.at(session);
    state.parked_for_job = (*job)->plan().job();
    state.parked_for_rank = reg.rank() >= 0 ? reg.rank() : -1;
    return Park(session, reg);
  }
  if (absl::Status status = AdmitWorker(session, reg, **job, *place); !status.ok()) refuse(status);
}

absl::StatusOr<JobState*> CoreImpl::JobFor(const proto::Register& reg) {
  proto::JobConfig config = reg.job();
  NormaliseJobConfig(&config);
  SLUICE_RETURN_IF_ERROR(CheckJobConfig(config));
  JobState* job = NewestJob(config.name());
  if (job != nullptr && job->ended()) {
    const auto& workers = job->record.workers();
    if (std::none_of(workers.begin(), workers.end(), [&](const auto& worker) { return SameLife(worker, reg); })) {
      if (reg.plan_version() >= job->plan().version() || reg.plan_version() > 0)
        return absl::FailedPreconditionError(
            absl::StrCat("job \"", config.name(), "\" has ended: ", job->plan().why()));
      job = nullptr;  // a new process: a new job of the same name
    }
  }
  if (job == nullptr) {
    if (reg.plan_version() > 0)
      return absl::FailedPreconditionError(
          absl::StrCat("this scheduler knows nothing of job \"", config.name(), "\", which ", Who(reg),
                       " is a part of: it was started without its state (node.state_file); start the job again"));
    return CreateJob(config, reg);
  }
  if (const std::string difference = FirstDifference(job->plan().config(), config); !difference.empty())
    return absl::InvalidArgumentError(absl::StrCat(
        "job \"", config.name(), "\" is configured differently: ", difference, " (the first is that of ",
        job->record.creator(), ", the second of ", Who(reg), "); section job must be equal on all workers"));
  return job;
}

absl::StatusOr<JobState*> CoreImpl::CreateJob(const proto::JobConfig& config, const proto::Register& reg) {
  ForgetOldJobs();
  size_t open = 0;
  for (const auto& [number, job] : jobs_) open += !job.ended();
  if (open >= kMaxOpenJobs)
    return absl::FailedPreconditionError(absl::StrCat(
        "there are ", open, " jobs that have not ended, which is the most; `sluicectl status` lists them"));
  JobState job;
  proto::Plan* plan = job.record.mutable_plan();
  plan->set_job(meta_.jobs() + 1);
  plan->set_uid(std::max<uint64_t>(1, Mix(random_ ^ Mix(plan->job()))));
  *plan->mutable_config() = config;
  for (uint32_t rank = 0; rank < config.workers(); ++rank) {
    plan->add_workers()->set_rank(rank);
    job.record.add_workers();
  }
  job.workers.resize(config.workers());
  job.record.set_creator(Who(reg));
  job.record.set_created_unix_ms(wall_ms_());
  job.counts_as_ended = true;
  // Written with its first worker, which also takes its number and notes it (AdmitWorker): a job without workers does
  // not outlive a restart.
  const uint32_t number = plan->job();
  return &(jobs_[number] = std::move(job));
}

std::optional<uint32_t> CoreImpl::FirstRank(const JobState& job, const std::string& host) const {
  std::vector<RankSeat> seats;
  bool any = false;
  for (uint32_t rank = 0; rank < job.workers.size(); ++rank) {
    const bool free = job.record.workers(static_cast<int>(rank)).member() == 0;
    if (free && (job.plan().config().groups().empty() || job.workers.size() > kMaxOrderedRanks)) return rank;
    any |= free;
    seats.push_back({.free = free, .host = job.plan().workers(static_cast<int>(rank)).host()});
  }
  if (!any) return std::nullopt;
  std::vector<std::string> hosts = {host};
  for (const RankSeat& seat : seats) hosts.push_back(seat.host);
  network_->AddHosts(hosts);
  std::vector<uint32_t> sizes;
  if (const auto groups = Groups::Parse(job.plan().config().groups(), static_cast<uint32_t>(seats.size())); groups.ok())
    for (const GroupAxis& axis : groups->axes()) sizes.push_back(axis.size);
  return PreferRank(seats, sizes, host, [&](const std::string& a, const std::string& b) {
    const uint32_t from = network_->Host(a), to = network_->Host(b);
    return from != topology::kNone && to != topology::kNone && network_->routes().Hops(from, to) <= kHopsInARack;
  });
}

absl::StatusOr<CoreImpl::Place> CoreImpl::PlaceFor(const JobState& job, const proto::Register& reg) const {
  const proto::JobRecord& record = job.record;
  const uint32_t size = record.workers_size();
  if (reg.rank() >= 0 && static_cast<uint32_t>(reg.rank()) >= size)
    return absl::InvalidArgumentError(absl::StrCat("rank ", reg.rank(), " does not exist in job \"", job.name(),
                                                   "\" of ", size, " workers (job.workers); ranks go from 0 to ",
                                                   size - 1));
  for (uint32_t rank = 0; rank < size; ++rank) {
    if (reg.rank() >= 0 && rank != static_cast<uint32_t>(reg.rank())) continue;
    const proto::WorkerRecord& worker = record.workers(rank);
    const bool same = SameLife(worker, reg);
    if (same && Out(record, rank))
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " of job \"", job.name(), "\" was lost and the others went on without it "
                       "(job.on_worker_loss=rescale); this process must end, a new one may take the rank"));
    if (same) return Place{.rank = rank, .same_life = true, .park = false};
    if (Fenced(worker, reg))
      return absl::AlreadyExistsError(absl::StrCat("rank ", rank, " of job \"", job.name(), "\" was taken over by ",
                                                   worker.id(), " (", worker.peer(), "), incarnation ",
                                                   worker.incarnation(), "; this process must end"));
  }
  if (job.ended())
    return absl::FailedPreconditionError(absl::StrCat("job \"", job.name(), "\" has ended: ", job.plan().why()));
  if (reg.rank() >= 0) {
    const uint32_t rank = static_cast<uint32_t>(reg.rank());
    if (job.plan().workers(rank).finished())
      return absl::FailedPreconditionError(absl::StrCat("rank ", rank, " of job \"", job.name(),
                                                        "\" has finished already (", record.workers(rank).id(), ")"));
    if (Out(record, rank)) SLUICE_RETURN_IF_ERROR(MayRejoin(job, rank));
    return Place{.rank = rank, .same_life = false, .park = job.workers[rank].Alive()};
  }
  // One that nobody has had (by rank_order.h), else the lowest whose holder is gone, else the lowest that is out.
  if (const std::optional<uint32_t> rank = FirstRank(job, reg.host())) return Place{.rank = *rank, .same_life = false, .park = false};
  bool may_come_free = false;
  std::optional<uint32_t> gone, out;
  for (uint32_t rank = 0; rank < size; ++rank) {
    if (job.plan().workers(rank).finished()) continue;
    if (Out(record, rank)) {
      if (!out) out = rank;
      continue;
    }
    may_come_free = true;
    if (!gone && !job.workers[rank].Alive()) gone = rank;
  }
  if (gone) return Place{.rank = *gone, .same_life = false, .park = false};
  if (out) {
    SLUICE_RETURN_IF_ERROR(MayRejoin(job, *out));
    return Place{.rank = *out, .same_life = false, .park = false};
  }
  if (may_come_free) return Place{.rank = 0, .same_life = false, .park = true};
  return absl::FailedPreconditionError(absl::StrCat("job \"", job.name(), "\" has no rank left of ", size,
                                                    " (job.workers)"));
}

absl::Status CoreImpl::AdmitWorker(SessionId session, const proto::Register& reg, JobState& job, const Place& place) {
  const proto::WorkerRecord& old = job.record.workers(place.rank);
  const bool was_alive = job.plan().workers(place.rank).alive();
  const std::string& peer = sessions_.at(session).peer;
  if (!place.same_life || (!was_alive && !job.ended() && !job.plan().workers(place.rank).finished())) {
    const proto::MetaRecord before = meta_;
    const bool first = job.plan().version() == 0;
    if (first) meta_.set_jobs(job.plan().job());
    proto::JobRecord next = job.record;
    proto::WorkerRecord* worker = next.mutable_workers(place.rank);
    if (!place.same_life) {
      const uint32_t proposed = std::clamp(reg.incarnation(), 1u, kMaxProposed);
      if (old.member() != 0) {
        proto::LifeRecord* life = worker->add_fenced();
        life->set_id(old.id());
        life->set_incarnation(old.incarnation());
        while (worker->fenced_size() > kMaxFenced) worker->mutable_fenced()->DeleteSubrange(0, 1);
      } else {
        meta_.set_members(meta_.members() + 1);
        worker->set_member(meta_.members());
      }
      worker->set_id(reg.id());
      worker->set_proposed(reg.incarnation());
      worker->set_incarnation(std::max(proposed, old.incarnation() + 1));
    }
    worker->set_peer(peer);
    proto::WorkerInfo* info = next.mutable_plan()->mutable_workers(place.rank);
    info->set_incarnation(worker->incarnation());
    info->set_address(worker->id());
    info->set_host(reg.host());
    *info->mutable_listeners() = reg.lanes();
    info->set_alive(true);
    const bool rejoins = info->out_from_round_size() > 0;
    if (rejoins) info->set_joining(worker->incarnation());
    const char* kind = rejoins && !place.same_life ? "worker_rejoins"
                       : place.same_life ? "worker_back" : old.member() != 0 ? "worker_replaced" : "worker_registered";
    const std::string text = absl::StrCat("rank ", place.rank, ": ", reg.id(), " from ", peer, ", incarnation ",
                                          worker->incarnation());
    if (absl::Status status = CommitJob(job, std::move(next)); !status.ok()) {
      meta_ = before;
      return absl::UnavailableError(status.message());
    }
    if (first)
      Note("job_created", job.name(), absl::StrCat("job ", job.plan().job(), " for ", job.workers.size(),
                                                   " workers, configured by ", Who(reg)));
    Note(kind, job.name(), text);
    if (!place.same_life) job.leaves.erase(place.rank);  // said by the life before
  }

  Live& live = job.workers[place.rank];
  const SessionId old_session = live.session;
  live = {.session = session, .heard = clock_->Now(), .unseen = false, .restored = false, .heartbeat = {}};
  SessionState& state = sessions_.at(session);
  state.role = proto::ROLE_WORKER;
  state.job = job.plan().job();
  state.rank = place.rank;
  if (old_session != 0 && old_session != session)
    Close(old_session, place.same_life ? absl::CancelledError("replaced by a newer stream of the same worker")
                                       : absl::AlreadyExistsError(
                                             absl::StrCat("rank ", place.rank, " was taken over by ", reg.id())));
  job.counts_as_ended = true;

  proto::SchedulerMessage message;
  proto::Welcome* welcome = message.mutable_welcome();
  welcome->set_member(job.record.workers(place.rank).member());
  welcome->set_job(job.plan().job());
  welcome->set_rank(place.rank);
  welcome->set_incarnation(job.record.workers(place.rank).incarnation());
  welcome->set_heartbeat_ms(config_.heartbeat_ms());
  welcome->set_lease_ms(config_.lease_ms());
  welcome->set_scheduler_version(kVersion);
  Send(session, message);
  if (!job.plan_unsent || job.plan().state() == proto::JOB_FORMING) SendPlan(job, session);
  unsettled_ = true;
  return absl::OkStatus();
}

void CoreImpl::Park(SessionId session, const proto::Register& reg) {
  SessionState& state = sessions_.at(session);
  if (reg.role() == proto::ROLE_SERVER) state.parked_for_server = reg.id();
  state.parked = reg;
  state.parked_since = clock_->Now();
  state.holder_spoke = 0;
  parked_.insert(session);
}

void CoreImpl::RetryParked() {
  const TimeNs now = clock_->Now();
  for (const SessionId session : std::set<SessionId>(parked_)) {
    auto it = sessions_.find(session);
    if (it == sessions_.end() || !it->second.parked) continue;
    SessionState& state = it->second;
    const proto::Register reg = *state.parked;
    if (reg.role() == proto::ROLE_SERVER) {
      auto holder = servers_.find(reg.id());
      if (holder != servers_.end() && holder->second.live.Alive()) {
        if (state.holder_spoke < kProofOfLife) continue;
        Refuse(session, reg,
               absl::AlreadyExistsError(absl::StrCat(
                   "server ", reg.id(), " is alive elsewhere: ", holder->second.record.peer(), ", control ",
                   holder->second.record.control(), ", heard ", Ago(now - holder->second.live.heard),
                   " ago; give this one another node.id, or stop that one")));
        continue;
      }
    } else if (auto job = jobs_.find(state.parked_for_job); job != jobs_.end() && !job->second.ended()) {
      const absl::StatusOr<Place> place = PlaceFor(job->second, reg);
      if (place.ok() && place->park) {
        const std::string& name = job->second.name();
        if (state.parked_for_rank < 0) {
          if (now - state.parked_since < lease()) continue;
          Refuse(session, reg, absl::FailedPreconditionError(absl::StrCat(
                                   "all ", job->second.workers.size(), " workers of job \"", name,
                                   "\" are there (job.workers); `sluicectl workers --job ", name, "` lists them")));
          continue;
        }
        if (state.holder_spoke < kProofOfLife) continue;
        const proto::WorkerRecord& holder = job->second.record.workers(state.parked_for_rank);
        Refuse(session, reg,
               absl::AlreadyExistsError(absl::StrCat(
                   "rank ", state.parked_for_rank, " of job \"", name, "\" is alive elsewhere: ", holder.id(), " (",
                   holder.peer(), "), heard ", Ago(now - job->second.workers[state.parked_for_rank].heard),
                   " ago; stop that process or take another rank")));
        continue;
      }
    }
    state.parked.reset();
    parked_.erase(session);
    if (reg.role() == proto::ROLE_SERVER) RegisterServer(session, reg);
    else RegisterWorker(session, reg);
  }
}

}  // namespace sluice::scheduler
