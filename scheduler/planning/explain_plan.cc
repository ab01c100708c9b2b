#include "scheduler/planning/explain_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/planning/explain_step.h"
#include "scheduler/planning/plan_step.h"
#include "scheduler/planning/tree_options.h"

namespace sluice::planning {
namespace {

// Bytes that must cross into and out of a tier's domains, whatever the plan: the sum of the gradients inside one way, the
// result the other way. Of each tier by its bandwidth (Plan.tiers), which is that of the narrowest domain.
double BoundSeconds(const proto::Plan& plan, const fabric::StepSpec& spec) {
  double bytes = 0;
  for (const fabric::StepSpec::Shard& shard : spec.shards) bytes += shard.bytes;
  bytes *= std::min(spec.push_ratio, spec.reply_ratio) / spec.efficiency;
  bytes += spec.collective_bytes * std::min(spec.reduce_ratio, spec.gather_ratio) / spec.efficiency;
  double bound = 0;
  for (int tier = 1; tier < plan.tiers_size(); ++tier) {
    std::map<uint32_t, uint32_t> workers;   // of each domain of the tier below
    for (const proto::WorkerInfo& worker : plan.workers())
      if (tier <= worker.coordinates_size()) ++workers[worker.coordinates(tier - 1)];
    if (workers.size() < 2 || plan.tiers(tier).bytes_per_second() == 0) continue;
    uint32_t most = 0;
    for (const auto& [domain, count] : workers) most = std::max(most, count);
    bound = std::max(bound, bytes / (static_cast<double>(plan.tiers(tier).bytes_per_second()) * most));
  }
  return bound;
}

}  // namespace

proto::Explanation ExplainPlan(const proto::Plan& plan, const network::Network& network) {
  proto::Explanation out;
  out.set_job(plan.config().name());
  out.set_plan_version(plan.version());
  out.set_topology(network.Summary());
  for (const std::string& note : network.Notes()) out.add_notes(note);
  for (const proto::ServerInfo& server : plan.servers())
    out.add_servers(absl::StrCat(server.id(), " on ", server.host().empty() ? "?" : server.host(), server.alive() ? "" : " (lost)"));
  for (const proto::WorkerInfo& worker : plan.workers()) {
    proto::PlacedRank* rank = out.add_ranks();
    rank->set_rank(worker.rank());
    rank->set_host(worker.host());
  }
  const PlanStep step = StepOfPlan(plan, network);
  if (!ExplainStep(plan, network, step, &out)) return out;
  out.set_bound_ms(1e3 * BoundSeconds(plan, step.spec));
  out.add_notes("the trainer's own time is not known to the scheduler: the prediction is of the exchange alone");
  std::string why_not;
  const std::vector<TreeOption> options = TreeOptions(plan, network, &why_not);
  *out.add_choices() = ExplainTrees(plan, options, why_not, network.config().trees(), 1e-3 * out.step_ms());
  return out;
}

}  // namespace sluice::planning
