// "rescale": going on without a worker. A loss tears a step: some partitions have the dead worker's push, others not.
//   1. BeginLeaving: the plan says the rank is not alive and raises its incarnation, so that a push of that life
//      that is still under way is refused from here on (docs/wire.md, 2b).
//   2. AskForReports: every server of the plan that is alive is asked for its partitions' states. The question follows the
//      plan of step 1 on the same stream, so no contribution of the rank can come after the answer.
//   3. TakeReport: the answers come with heartbeats. A second loss meanwhile leads back to 2, for both ranks; so does a
//      change of owners, since the new ones answer for the shards that they got (CommitJob).
//   4. CommitLeaving: the rank is out of partition p from p's open round on, or from the next one if it is in that one.
// A rank that is lost before the job has tensors stays at 1 until it has.
//
// A rank that is out comes back as a new process (register.cc): the plan keeps "out from" and adds `joining`. Nobody waits
// for it until it names the round from which it counts, to each owner by itself (server/partition.h). It may be lost again:
// until step 4 the plan keeps `joining`, so that what it has contributed counts as any other's.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/core_impl.h"
#include "scheduler/plan_builder.h"

namespace sluice::scheduler {

absl::Status CoreImpl::BeginLeaving(JobState& job, uint32_t rank, const std::string& why) {
  proto::JobRecord next = job.record;
  proto::WorkerRecord* worker = next.mutable_workers(rank);
  worker->set_incarnation(worker->incarnation() + 1);
  proto::WorkerInfo* info = next.mutable_plan()->mutable_workers(rank);
  info->set_incarnation(worker->incarnation());
  info->set_alive(false);
  next.add_leaving_ranks(rank);
  if (absl::Status status = CommitJob(job, std::move(next)); !status.ok()) return status;
  job.report_request = 0;
  Note("worker_leaving", job.name(), absl::StrCat(why, "; the others go on without it (job.on_worker_loss=rescale)"));
  return absl::OkStatus();
}

void CoreImpl::AskForReports(JobState& job) {
  if (job.plan().tensors_size() == 0) return;
  if (job.plan_unsent) SendPlanToAll(job);
  job.report_request = ++reports_;
  job.reports.clear();
  job.reports_missing.clear();
  for (const proto::ServerInfo& info : job.plan().servers())
    if (info.alive()) job.reports_missing.insert(info.id());
  for (const proto::ServerInfo& info : job.plan().servers())
    if (info.alive()) AskForReport(job, info.id());
}

void CoreImpl::AskForReport(const JobState& job, const std::string& server) {
  auto it = servers_.find(server);
  if (it == servers_.end()) return;  // asked when it comes back; its lease decides if it does not
  proto::SchedulerMessage message;
  message.mutable_report()->set_request(job.report_request);
  message.mutable_report()->set_job(job.plan().job());
  Send(it->second.live.session, message);
}

void CoreImpl::TakeReport(JobState& job, const std::string& server, const proto::Heartbeat& heartbeat) {
  if (job.reports_missing.erase(server) == 0) return;
  const uint32_t partitions = CountPartitions(job.plan());
  for (const proto::PartitionState& state : heartbeat.partitions())
    if (state.partition() < partitions) job.reports[state.partition()] = state;
  unsettled_ = true;
}

void CoreImpl::CommitLeaving(JobState& job) {
  proto::JobRecord next = job.record;
  const uint32_t partitions = CountPartitions(job.plan());
  for (const uint32_t rank : job.record.leaving_ranks()) {
    proto::WorkerInfo* info = next.mutable_plan()->mutable_workers(rank);
    info->clear_out_from_round();
    info->clear_joining();
    for (uint32_t p = 0; p < partitions; ++p) {
      auto it = job.reports.find(p);
      if (it == job.reports.end()) {  // added after the question: nothing has happened to it
        info->add_out_from_round(0);
        continue;
      }
      const std::string& bitmap = it->second.contributed();
      const bool contributed =
          rank / 8 < bitmap.size() && (static_cast<unsigned char>(bitmap[rank / 8]) >> (rank % 8) & 1) != 0;
      info->add_out_from_round(it->second.open_round() + contributed);
    }
  }
  const std::string ranks = absl::StrJoin(job.record.leaving_ranks(), ", ");
  next.clear_leaving_ranks();
  if (!CommitJob(job, std::move(next)).ok()) return;
  job.report_request = 0;
  job.reports.clear();
  Note("worker_out", job.name(),
       absl::StrCat("rank ", ranks,
                    " is out; its last step is torn: some partitions have its "
                    "push, some not"));
}

}  // namespace sluice::scheduler
