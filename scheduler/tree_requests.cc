// Aggregation trees of a job: those that it starts with, and others in their place. CommitJob keeps them to what is alive.
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "scheduler/core_impl.h"
#include "scheduler/trees.h"

namespace sluice::scheduler {

void CoreImpl::StartTrees(proto::Plan* plan) const {
  if (!rack_trees_) return;
  (void)ApplyTrees(RackTrees(*plan), meta_.plan_version() + 1, plan);   // it builds none that could be refused
}

absl::Status CoreImpl::SetTrees(const std::string& name, const TreeChoice& choice) {
  SLUICE_ASSIGN_OR_RETURN(JobState * job, RunningJob(name));
  proto::JobRecord next = job->record;
  SLUICE_RETURN_IF_ERROR(ApplyTrees(choice, meta_.plan_version() + 1, next.mutable_plan()));
  if (const absl::Status status = CommitJob(*job, std::move(next)); !status.ok())
    return absl::UnavailableError(absl::StrCat("job \"", job->name(), "\" keeps its trees: that others are wanted could not be "
                                               "written: ", status.message(), "; try again when that is cured"));
  Note("trees_set", job->name(), absl::StrCat(job->plan().trees_size(), " aggregation trees"));
  Settle();
  return absl::OkStatus();
}

}  // namespace sluice::scheduler
