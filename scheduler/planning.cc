// Choices that follow the network: aggregation trees, when to change them, and what is said of them.
//
//   tensors come        trees are chosen with the plan that has them, before anybody pushes (topology.trees)
//   every second        the network is looked at (networks.cc). If other trees would make a step shorter by
//                       topology.replan_gain_percent, and have done so for topology.replan_after_ms, and no trees have changed for
//                       topology.replan_cooldown_ms, a plan with these goes out: open partials are discarded and pushed again
//                       (docs/topology/trees.md), no round is lost.
// A gain that comes and goes begins anew each time, so links that flap change nothing.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "scheduler/core_impl.h"
#include "scheduler/planning/explain_plan.h"
#include "scheduler/planning/plan_step.h"
#include "scheduler/planning/tree_options.h"
#include "scheduler/trees.h"

namespace sluice::scheduler {
namespace {

constexpr double kFirstGain = 0.05;   // of a step: less is not worth a way through more processes

bool HasNodes(const TreeChoice& choice) {
  return std::ranges::any_of(choice.trees, [](const proto::Tree& tree) { return tree.nodes_size() > 0; });
}

std::string Ms(double seconds) { return std::isfinite(seconds) ? absl::StrFormat("%.1f ms", 1e3 * seconds) : "unknown"; }

// Names the reason in each tree. `instead`: seconds of a step without the change.
TreeChoice WithReason(const planning::TreeOption& option, double instead) {
  TreeChoice choice = option.choice;
  for (proto::Tree& tree : choice.trees)
    tree.set_why(absl::StrCat(option.name, ": predicted step ", Ms(option.step_s), " instead of ", Ms(instead)));
  return choice;
}

}  // namespace

void CoreImpl::PlanTrees(const JobState& job, proto::JobRecord* next) {
  const std::string& mode = network_->config().trees();
  proto::Plan* plan = next->mutable_plan();
  if (mode == "off" || mode.empty() || plan->state() != proto::JOB_RUNNING) return;
  std::string why_not;
  const std::vector<planning::TreeOption> options = planning::TreeOptions(*plan, *network_, &why_not);
  const auto none = std::ranges::find(options, "none", &planning::TreeOption::name);
  auto best = options.begin();
  if (mode == "on") {
    best = std::ranges::find_if(options, [](const planning::TreeOption& option) { return HasNodes(option.choice); });
    if (best == options.end()) return;
  } else if (!(best->step_s < (1 - kFirstGain) * none->step_s)) {
    best = none;
  }
  if (!HasNodes(best->choice) && plan->trees().empty()) return;
  if (absl::Status status = ApplyTrees(WithReason(*best, none->step_s), meta_.plan_version() + 1, plan); !status.ok()) {
    Note("trees_refused", job.name(), std::string(status.message()));
    return;
  }
  Note("trees", job.name(), absl::StrCat(best->name, ": ", best->note, "; predicted step ", Ms(best->step_s), ", without trees ",
                                         Ms(none->step_s)));
}

void CoreImpl::Replan(JobState& job) {
  const proto::TopologyConfig& config = network_->config();
  const TimeNs now = clock_->Now();
  if (job.plan().state() != proto::JOB_RUNNING || config.trees() != "auto" || job.plan().tensors().empty()) return;
  if (now - job.replan_looked < kWatchNetworkEvery) return;
  job.replan_looked = now;
  if (job.replan_network == network_->version() && job.replan_plan == job.plan().version() && job.better_since == 0) return;
  job.replan_network = network_->version();
  job.replan_plan = job.plan().version();
  std::string why_not;
  const std::vector<planning::TreeOption> options = planning::TreeOptions(job.plan(), *network_, &why_not);
  const double present = planning::PredictStep(job.plan(), *network_);
  const planning::TreeOption& best = options.front();
  const bool better = best.step_s < present / (1 + config.replan_gain_percent() / 100.0);
  if (!better) {
    job.better_since = 0;
    return;
  }
  if (job.better_since == 0) job.better_since = now;
  if (now - job.better_since < TimeNs{config.replan_after_ms()} * kMillisecond) return;
  if (job.replanned != 0 && now - job.replanned < TimeNs{config.replan_cooldown_ms()} * kMillisecond) return;
  proto::JobRecord next = job.record;
  if (!ApplyTrees(WithReason(best, present), meta_.plan_version() + 1, next.mutable_plan()).ok()) return;
  if (!CommitJob(job, std::move(next)).ok()) return;
  job.replanned = now;
  job.better_since = 0;
  Note("replanned", job.name(), absl::StrCat(best.name, ": ", best.note, "; predicted step ", Ms(best.step_s), " instead of ", Ms(present)));
}

absl::StatusOr<proto::Explanation> CoreImpl::ExplainPlan(const std::string& name) const {
  SLUICE_ASSIGN_OR_RETURN(const JobState* job, FindJob(name));
  proto::Explanation out = planning::ExplainPlan(job->plan(), *network_);
  out.set_measured_step_ms(1e3 * job->steps.seconds());
  return out;
}

}  // namespace sluice::scheduler
