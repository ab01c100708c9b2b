// What the admin service shows.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "scheduler/core_impl.h"

namespace sluice::scheduler {

absl::StatusOr<const JobState*> CoreImpl::FindJob(const std::string& name) const {
  std::vector<std::string> names;
  const JobState* newest = nullptr;
  const JobState* open = nullptr;
  size_t open_jobs = 0;
  for (const auto& [number, job] : jobs_) {
    if (std::find(names.begin(), names.end(), job.name()) == names.end()) names.push_back(job.name());
    if (name.empty() || job.name() == name) newest = &job;
    if (!job.ended()) ++open_jobs, open = &job;
  }
  if (!name.empty() && newest == nullptr)
    return absl::NotFoundError(
        absl::StrCat("there is no job \"", Clip(name), "\"; ",
                     names.empty() ? "no job has been started" : "known: ", absl::StrJoin(names, ", ")));
  if (newest == nullptr) return absl::NotFoundError("there is no job yet: the first worker makes it (job.name)");
  if (!name.empty() || names.size() == 1) return newest;
  if (open_jobs == 1) return open;
  return absl::InvalidArgumentError(absl::StrCat("there are several jobs, name one: ", absl::StrJoin(names, ", ")));
}

void CoreImpl::FillWorkerStatus(const JobState& job, uint32_t rank, proto::MemberStatus* status) const {
  const proto::WorkerRecord& worker = job.record.workers(rank);
  const Live& live = job.workers[rank];
  status->set_member(worker.member());
  status->set_role(proto::ROLE_WORKER);
  status->set_id(worker.id());
  status->set_address(worker.peer());
  status->set_incarnation(worker.incarnation());
  status->set_alive(live.session != 0);
  if (worker.member() != 0) status->set_since_heartbeat_ms((clock_->Now() - live.heard) / kMillisecond);
  status->set_job(job.name());
  status->set_rank(static_cast<int32_t>(rank));
  status->set_round(live.heartbeat.round());
  status->set_wire_bytes_in(live.heartbeat.wire_bytes_in());
  status->set_wire_bytes_out(live.heartbeat.wire_bytes_out());
  status->set_waiting_for(live.heartbeat.waiting_for());
  status->set_finished(job.plan().workers(rank).finished());
  status->set_unheard(live.restored);
}

proto::JobStatus CoreImpl::StatusOf(const JobState& job) const {
  proto::JobStatus status;
  status.set_job(job.plan().job());
  status.set_name(job.name());
  status.set_state(job.plan().state());
  status.set_plan_version(job.plan().version());
  status.set_workers_expected(job.plan().config().workers());
  status.set_shards(job.plan().shards_size());
  status.set_tensors(job.plan().tensors_size());
  for (const proto::ShardInfo& shard : job.plan().shards())
    status.set_parameter_bytes(status.parameter_bytes() + shard.bytes());
  status.set_round(job.record.round());
  std::string why = job.plan().why();
  if (!job.ended() && !store_status_.ok())
    absl::StrAppend(&why, why.empty() ? "" : "; ", "changes wait for the state file: ", store_status_.message());
  for (uint32_t rank = 0; rank < job.workers.size(); ++rank) {
    const Live& live = job.workers[rank];
    status.set_workers_alive(status.workers_alive() + (live.session != 0));
    status.set_round(std::max(status.round(), live.heartbeat.round()));
    if (job.plan().state() == proto::JOB_RUNNING && job.Active(rank) && !job.plan().workers(rank).alive())
      absl::StrAppend(&why, " (rank ", rank, ": ",
                      live.restored ? "not heard since the scheduler started"
                                    : absl::StrCat("last heard ", Ago(clock_->Now() - live.heard), " ago"), ")");
  }
  status.set_why(why);
  status.set_servers(static_cast<uint32_t>(job.plan().servers_size()));
  for (const proto::ServerInfo& info : job.plan().servers())
    status.set_servers_alive(status.servers_alive() + info.alive());
  status.set_replicas(job.plan().config().replicas());
  if (job.plan().state() != proto::JOB_RUNNING) return status;
  const Protection protection = ProtectionOf(job.plan(), status.replicas());
  status.set_is_protected(protection.Full());
  status.set_shards_bare(protection.bare);
  status.set_shards_lacking(protection.lacking);
  status.set_copies_filling(protection.filling);
  for (const auto& [key, progress] : job.progress)
    status.set_copies_bytes_left(status.copies_bytes_left() + progress.left);
  if (job.record.unprotected_unix_ms() != 0)
    status.set_unprotected_ms(
        static_cast<uint64_t>(std::max<int64_t>(0, wall_ms_() - job.record.unprotected_unix_ms())));
  status.set_protection(ProtectionText(job));
  return status;
}

proto::Cluster CoreImpl::GetCluster() const {
  const TimeNs now = clock_->Now();
  proto::Cluster cluster;
  cluster.set_version(kVersion);
  cluster.set_uptime_ms((now - started_) / kMillisecond);
  for (const auto& [id, server] : servers_) {
    proto::MemberStatus* status = cluster.add_members();
    status->set_member(server.record.member());
    status->set_role(proto::ROLE_SERVER);
    status->set_id(id);
    status->set_address(server.record.control().empty() ? server.record.peer() : server.record.control());
    status->set_incarnation(server.record.incarnation());
    status->set_alive(server.live.session != 0);
    status->set_since_heartbeat_ms((now - server.live.heard) / kMillisecond);
    status->set_unheard(server.live.restored);
    status->set_draining(server.record.draining());
    status->set_rank(-1);
    status->set_round(server.live.heartbeat.round());
    status->set_wire_bytes_in(server.live.heartbeat.wire_bytes_in());
    status->set_wire_bytes_out(server.live.heartbeat.wire_bytes_out());
    status->set_waiting_for(server.live.heartbeat.waiting_for());
  }
  for (const auto& [number, job] : jobs_) {
    *cluster.add_jobs() = StatusOf(job);
    if (job.ended()) continue;
    for (uint32_t rank = 0; rank < job.workers.size(); ++rank)
      if (job.record.workers(rank).member() != 0) FillWorkerStatus(job, rank, cluster.add_members());
  }
  return cluster;
}

absl::StatusOr<proto::ShardList> CoreImpl::ListShards(const std::string& name) const {
  SLUICE_ASSIGN_OR_RETURN(const JobState* job, FindJob(name));
  proto::ShardList list;
  list.set_job(job->name());
  for (const proto::ShardInfo& shard : job->plan().shards()) {
    proto::ShardStatus* status = list.add_shards();
    *status->mutable_info() = shard;
    if (static_cast<int>(shard.server()) < job->plan().servers_size())
      status->set_server_id(job->plan().servers(shard.server()).id());
    for (const proto::BackupInfo& info : shard.backups()) {
      proto::CopyStatus* copy = status->add_copies();
      if (static_cast<int>(info.server()) < job->plan().servers_size())
        copy->set_server_id(job->plan().servers(info.server()).id());
      copy->set_in_sync(info.in_sync());
      auto progress = job->progress.find({shard.shard(), info.server()});
      if (info.in_sync() || progress == job->progress.end() || progress->second.since != info.since()) continue;
      copy->set_bytes_sent(progress->second.sent);
      copy->set_bytes_left(progress->second.left);
    }
  }
  for (const proto::TensorInfo& tensor : job->plan().tensors())
    for (const uint32_t shard : tensor.partition_shard())
      if (static_cast<int>(shard) < list.shards_size())
        list.mutable_shards(shard)->set_partitions(list.shards(shard).partitions() + 1);
  return list;
}

proto::LinkList CoreImpl::ListLinks() const {
  proto::LinkList list;
  for (const auto& [id, server] : servers_) {
    if (server.live.session == 0 || !server.live.links.has_value()) continue;
    proto::MemberLinks* member = list.add_members();
    member->set_role(proto::ROLE_SERVER);
    member->set_id(id);
    member->set_rank(-1);
    *member->mutable_report() = *server.live.links;
  }
  for (const auto& [number, job] : jobs_) {
    for (uint32_t rank = 0; rank < job.workers.size(); ++rank) {
      const Live& live = job.workers[rank];
      if (live.session == 0 || !live.links.has_value()) continue;
      proto::MemberLinks* member = list.add_members();
      member->set_role(proto::ROLE_WORKER);
      member->set_id(job.record.workers(static_cast<int>(rank)).id());
      member->set_job(job.name());
      member->set_rank(static_cast<int32_t>(rank));
      *member->mutable_report() = *live.links;
    }
  }
  for (proto::LinkEstimate& estimate : network_->Estimates(clock_->Now(), kMaxEstimates)) *list.add_estimates() = std::move(estimate);
  return list;
}

absl::StatusOr<proto::WorkerList> CoreImpl::ListWorkers(const std::string& name) const {
  SLUICE_ASSIGN_OR_RETURN(const JobState* job, FindJob(name));
  proto::WorkerList list;
  list.set_job(job->name());
  for (uint32_t rank = 0; rank < job->workers.size(); ++rank) FillWorkerStatus(*job, rank, list.add_workers());
  return list;
}

absl::StatusOr<proto::Plan> CoreImpl::GetPlan(const std::string& name) const {
  SLUICE_ASSIGN_OR_RETURN(const JobState* job, FindJob(name));
  return job->plan();
}

absl::StatusOr<proto::Plan> CoreImpl::GetPlanByNumber(uint32_t number) const {
  auto it = jobs_.find(number);
  if (it == jobs_.end()) return absl::NotFoundError(absl::StrCat("there is no job number ", number));
  return it->second.plan();
}

absl::StatusOr<proto::JobConfig> CoreImpl::GetJobConfig(const std::string& name) const {
  SLUICE_ASSIGN_OR_RETURN(const JobState* job, FindJob(name));
  return job->plan().config();
}

}  // namespace sluice::scheduler
