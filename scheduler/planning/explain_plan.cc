#include "scheduler/planning/explain_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/planning/explain_routes.h"
#include "scheduler/planning/plan_step.h"
#include "scheduler/planning/tree_options.h"

namespace sluice::planning {
namespace {

constexpr size_t kBusiestLinks = 8;

// Bytes that must cross into and out of a tier's domains, whatever the plan: the sum of the gradients inside one way, the
// result the other way. Of each tier by its bandwidth (Plan.tiers), which is that of the narrowest domain.
double BoundSeconds(const proto::Plan& plan, const fabric::StepSpec& spec) {
  double bytes = 0;
  for (const fabric::StepSpec::Shard& shard : spec.shards) bytes += shard.bytes;
  bytes *= std::min(spec.push_ratio, spec.reply_ratio) / spec.efficiency;
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

std::string Percent(double part, double whole) { return absl::StrFormat("%.0f %%", 100 * part / whole); }

void ExplainTrees(const proto::Plan& plan, const network::Network& network, double present, proto::Explanation* out) {
  proto::Choice* choice = out->add_choices();
  choice->set_what("aggregation trees");
  std::string why_not;
  const std::vector<TreeOption> options = TreeOptions(plan, network, &why_not);
  for (const TreeOption& option : options) {
    proto::Option* row = choice->add_options();
    row->set_name(option.name);
    row->set_step_ms(1e3 * option.step_s);
    row->set_note(option.note);
  }
  size_t nodes = 0;
  std::string why;
  for (const proto::Tree& tree : plan.trees()) {
    nodes += static_cast<size_t>(tree.nodes_size());
    if (why.empty()) why = tree.why();
  }
  choice->set_chosen(nodes == 0 ? "none" : absl::StrCat(plan.trees_size(), plan.trees_size() == 1 ? " tree" : " trees"));
  if (!why_not.empty()) choice->set_why(why_not);
  else if (network.config().trees() == "off") choice->set_why("topology.trees is off");
  else if (!why.empty()) choice->set_why(why);
  else if (options.size() == 1) choice->set_why("no server runs where two ranks could share it on their way to an owner");
  else if (std::isfinite(options[0].step_s) && options[0].step_s < present)
    choice->set_why(absl::StrCat("\"", options[0].name, "\" would be ", Percent(present - options[0].step_s, present),
                                 " shorter, which is not enough to begin with or to change"));
  else choice->set_why("the others are predicted to be no faster");
}

void ExplainRoutes(const PlanStep& step, const network::Network& network, proto::Explanation* out) {
  std::vector<uint32_t> hosts = step.spec.workers;
  hosts.insert(hosts.end(), step.spec.servers.begin(), step.spec.servers.end());
  fabric::StepRoutes routes(&network.graph(), &network.routes(), std::move(hosts));
  routes.AddStep(step.spec);
  for (const PlanStep::Copy& copy : step.copies)
    routes.Add(step.spec.servers[copy.from], step.spec.servers[copy.to], copy.bytes, fabric::kCopies);
  FillRoutes(network.graph(), network.routes(), routes, out);
  if (!step.copies.empty()) out->add_notes("what goes to copies of shards is in the routes, but neither in the predicted step nor in the busiest links");
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
  *out.mutable_trees() = plan.trees();
  const PlanStep step = StepOfPlan(plan, network);
  if (!step.complete) out.add_notes("some members do not say on which host they run (node.host), or name no host; they are left out");
  if (step.spec.shards.empty()) {
    out.add_notes("the job has no dense tensors yet: nothing can be predicted");
    return out;
  }
  const auto model = fabric::StepModel::Create(&network.routes(), step.spec);
  if (!model.ok()) {
    out.add_notes(absl::StrCat("nothing can be predicted: ", model.status().message()));
    return out;
  }
  const fabric::StepPrediction prediction = model->Predict(kBusiestLinks);
  out.set_step_ms(1e3 * prediction.step_s);
  out.set_compute_ms(1e3 * prediction.compute_s);
  out.set_communication_ms(1e3 * prediction.communication_s);
  out.set_bound_ms(1e3 * BoundSeconds(plan, step.spec));
  for (proto::LinkLoad& load : BusiestLinks(network, prediction.busiest)) *out.add_busiest() = std::move(load);
  ExplainRoutes(step, network, &out);
  if (!prediction.complete) out.add_notes("some members have no way to each other in the topology; what they exchange is left out");
  out.add_notes("the trainer's own time is not known to the scheduler: the prediction is of the exchange alone");
  ExplainTrees(plan, network, prediction.step_s, &out);
  return out;
}

}  // namespace sluice::planning
