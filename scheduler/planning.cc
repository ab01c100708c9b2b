// Choices that follow the network: aggregation trees, when to change them, and what is said of them.
//
//   tensors come        owners of their partitions and trees are chosen with the plan that has them, before anybody pushes
//                       (topology.trees)
//   every second        the network is looked at (networks.cc). If other trees would make a step shorter by
//                       topology.replan_gain_percent, and have done so for topology.replan_after_ms, and no trees have changed for
//                       topology.replan_cooldown_ms, a plan with these goes out: open partials are discarded and pushed again
//                       (docs/topology/trees.md), no round is lost.
// A gain that comes and goes begins anew each time, so links that flap change nothing.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "scheduler/core_impl.h"
#include "scheduler/planning/exchange_choice.h"
#include "scheduler/planning/explain_plan.h"
#include "scheduler/planning/owner_weights.h"
#include "scheduler/planning/plan_step.h"
#include "scheduler/planning/tree_options.h"
#include "scheduler/trees.h"

namespace sluice::scheduler {
namespace {

std::string Ms(double seconds) { return std::isfinite(seconds) ? absl::StrFormat("%.1f ms", 1e3 * seconds) : "unknown"; }

}  // namespace

// What was chosen, for the events; "" if there is nothing to say.
std::string CoreImpl::PlanTrees(proto::Plan* plan) const {
  const std::string& mode = network_->config().trees();
  if (mode == "off" || mode.empty() || plan->state() != proto::JOB_RUNNING) return "";
  std::string why_not;
  const std::vector<planning::TreeOption> options = planning::TreeOptions(*plan, *network_, &why_not);
  const auto none = std::ranges::find(options, "none", &planning::TreeOption::name);
  const auto best = options.begin() + static_cast<std::ptrdiff_t>(planning::PickTrees(options, mode));
  if (!best->HasNodes() && plan->trees().empty()) return "";
  if (absl::Status status = ApplyTrees(planning::WithReason(*best, none->step_s), meta_.plan_version() + 1, plan); !status.ok())
    return std::string(status.message());
  return absl::StrCat(best->name, ": ", best->note, "; predicted step ", Ms(best->step_s), ", without trees ", Ms(none->step_s));
}

// Of the tensors that `by_servers` adds: those that are not of servers.
CoreImpl::ExchangeOf CoreImpl::ChooseExchanges(JobState& job, const Tensors& by_servers, std::string* note) const {
  const proto::Plan& plan = by_servers.next.plan();
  const int first = job.plan().tensors_size();
  planning::ExchangeChoice chosen = planning::ChooseExchanges(plan, first, *network_);
  if (!chosen.choice.what().empty()) job.exchange = std::move(chosen.choice);
  *note = chosen.note;
  ExchangeOf exchanges;
  for (size_t i = 0; i < chosen.exchanges.size(); ++i)
    if (chosen.exchanges[i] != proto::EXCHANGE_SERVERS)
      exchanges[plan.tensors(first + static_cast<int>(i)).spec().name()] = chosen.exchanges[i];
  return exchanges;
}

CoreImpl::Tensors CoreImpl::TensorsWith(const JobState& job, const std::vector<double>& weights, const ExchangeOf& exchanges) const {
  Tensors out;
  out.next = job.record;
  for (const PendingTensors& pending : job.tensors) {
    if (pending.version != 0) continue;
    if (absl::Status status = AddTensorsOf(pending, job, weights, exchanges, &out.next, &out.added); !status.ok())
      out.refused.emplace(&pending, std::move(status));
  }
  if (!out.added.empty()) out.trees = PlanTrees(out.next.mutable_plan());
  return out;
}

// Owners of the new tensors: shares by the network where that makes a step shorter, trees included; else even ones.
CoreImpl::Tensors CoreImpl::PlanTensors(JobState& job) {
  Tensors even = TensorsWith(job, {}, {});
  if (even.added.empty()) return even;
  std::string exchange;
  const ExchangeOf exchanges = ChooseExchanges(job, even, &exchange);
  if (!exchanges.empty()) even = TensorsWith(job, {}, exchanges);
  even.exchange = exchange;
  const CopyRules rules = RulesFor(job.record);
  const planning::OwnerWeights owners =
      planning::WeighOwners(even.next.plan(), *network_, {rules.draining.begin(), rules.draining.end()});
  const double even_s = planning::PredictStep(even.next.plan(), *network_);
  Tensors weighed;
  double weighed_s = even_s;
  if (planning::MayPay(owners)) {
    weighed = TensorsWith(job, owners.weights, exchanges);
    weighed.exchange = exchange;
    weighed_s = planning::PredictStep(weighed.next.plan(), *network_);
  }
  bool by_network = false;
  job.owners = planning::ChooseOwners(even.next.plan(), owners, even_s, weighed_s, &by_network);
  return std::move(by_network ? weighed : even);
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
  if (!ApplyTrees(planning::WithReason(best, present), meta_.plan_version() + 1, next.mutable_plan()).ok()) return;
  if (!CommitJob(job, std::move(next)).ok()) return;
  job.replanned = now;
  job.better_since = 0;
  Note("replanned", job.name(), absl::StrCat(best.name, ": ", best.note, "; predicted step ", Ms(best.step_s), " instead of ", Ms(present)));
}

absl::StatusOr<proto::Explanation> CoreImpl::ExplainPlan(const std::string& name) const {
  SLUICE_ASSIGN_OR_RETURN(const JobState* job, FindJob(name));
  proto::Explanation out = planning::ExplainPlan(job->plan(), *network_);
  // Their numbers are of that time, beside others of now.
  for (const proto::Choice* choice : {&job->exchange, &job->owners}) {
    if (choice->what().empty()) continue;
    proto::Choice& row = *out.add_choices() = *choice;
    row.set_why(absl::StrCat(choice->why(), " (predicted when the tensors were registered)"));
  }
  out.set_measured_step_ms(1e3 * job->steps.seconds());
  return out;
}

}  // namespace sluice::scheduler
