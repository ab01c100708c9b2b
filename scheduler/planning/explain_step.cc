#include "scheduler/planning/explain_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/planning/explain_routes.h"

namespace sluice::planning {
namespace {

std::string Percent(double part, double whole) { return absl::StrFormat("%.0f %%", 100 * part / whole); }

bool Same(const proto::Tree& a, const proto::Tree& b) {
  return std::ranges::equal(a.nodes(), b.nodes(), [](const proto::TreeNode& x, const proto::TreeNode& y) {
    return x.server() == y.server() && x.parent() == y.parent() && std::ranges::equal(x.ranks(), y.ranks());
  });
}

}  // namespace

bool ExplainStep(const proto::Plan& plan, const network::View& network, const PlanStep& step, proto::Explanation* out,
                 absl::FunctionRef<void(fabric::StepRoutes*)> more_routes) {
  *out->mutable_trees() = plan.trees();
  if (!step.complete) out->add_notes("some members do not say on which host they run (node.host), or name no host; they are left out");
  if (step.spec.shards.empty() && !(step.spec.collective_bytes > 0)) {
    out->add_notes("the job has no dense tensors yet: nothing can be predicted");
    return false;
  }
  const auto model = fabric::StepModel::Create(&network.routes(), step.spec);
  if (!model.ok()) {
    out->add_notes(absl::StrCat("nothing can be predicted: ", model.status().message()));
    return false;
  }
  const fabric::StepPrediction prediction = model->Predict(kBusiestLinks);
  out->set_step_ms(1e3 * prediction.step_s);
  out->set_compute_ms(1e3 * prediction.compute_s);
  out->set_communication_ms(1e3 * prediction.communication_s);
  for (proto::LinkLoad& load : BusiestLinks(network, prediction.busiest)) *out->add_busiest() = std::move(load);
  std::vector<uint32_t> hosts = step.spec.workers;
  hosts.insert(hosts.end(), step.spec.servers.begin(), step.spec.servers.end());
  fabric::StepRoutes routes(&network.graph(), &network.routes(), std::move(hosts));
  routes.AddStep(step.spec);
  for (const PlanStep::Copy& copy : step.copies)
    routes.Add(step.spec.servers[copy.from], step.spec.servers[copy.to], copy.bytes, fabric::kCopies);
  more_routes(&routes);
  FillRoutes(network.graph(), network.routes(), routes, out);
  if (!step.copies.empty()) out->add_notes("what goes to copies of shards is in the routes, but neither in the predicted step nor in the busiest links");
  if (!prediction.complete) out->add_notes("some members have no way to each other in the topology; what they exchange is left out");
  return true;
}

proto::Choice ExplainTrees(const proto::Plan& plan, const std::vector<TreeOption>& options, const std::string& why_not, const std::string& mode,
                           double present_s) {
  proto::Choice choice;
  choice.set_what("aggregation trees");
  size_t nodes = 0;
  std::string why;
  for (const proto::Tree& tree : plan.trees()) {
    nodes += static_cast<size_t>(tree.nodes_size());
    if (why.empty()) why = tree.why();
  }
  choice.set_chosen(nodes == 0 ? "none" : absl::StrCat(plan.trees_size(), plan.trees_size() == 1 ? " tree" : " trees"));
  for (const TreeOption& option : options) {
    proto::Option* row = choice.add_options();
    row->set_name(option.name);
    row->set_step_ms(1e3 * option.step_s);
    row->set_note(option.note);
    if (nodes > 0 && std::ranges::equal(plan.trees(), option.choice.trees, Same)) choice.set_chosen(option.name);
  }
  if (!why_not.empty()) choice.set_why(why_not);
  else if (mode == "off") choice.set_why("topology.trees is off");
  else if (!why.empty()) choice.set_why(why);
  else if (options.size() == 1) choice.set_why("no server runs where two ranks could share it on their way to an owner");
  else if (std::isfinite(options[0].step_s) && options[0].step_s < present_s)
    choice.set_why(absl::StrCat("\"", options[0].name, "\" would be ", Percent(present_s - options[0].step_s, present_s),
                                " shorter, which is not enough to begin with or to change"));
  else choice.set_why("the others are predicted to be no faster");
  return choice;
}

}  // namespace sluice::planning
