#include "scheduler/placement/plan_servers.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/placement/traffic.h"
#include "scheduler/plan_builder.h"
#include "scheduler/planning/explain_step.h"
#include "scheduler/planning/owner_weights.h"
#include "scheduler/planning/plan_step.h"
#include "scheduler/planning/tree_options.h"

namespace sluice::placement {
namespace {

constexpr double kPartitions = 1 << 16;      // about as many at most: those of larger models are larger
constexpr uint32_t kPartitionBytes = 4 << 20, kMaxPartitionBytes = std::numeric_limits<uint32_t>::max() & ~3u;

// A shard on each server.
proto::Plan MembersOf(const ServersToPlan& what, const network::View& network) {
  proto::Plan plan;
  plan.set_state(proto::JOB_RUNNING);
  *plan.mutable_config() = what.job.job();
  plan.mutable_config()->set_workers(static_cast<uint32_t>(what.workers.size()));
  const double least = what.job.job().partition_bytes() > 0 ? what.job.job().partition_bytes() : kPartitionBytes;
  plan.mutable_config()->set_partition_bytes(static_cast<uint32_t>(
      std::clamp(static_cast<double>(ParameterBytes(what.job)) / kPartitions, least, std::max(least, double{kMaxPartitionBytes}))));
  for (uint32_t rank = 0; rank < what.workers.size(); ++rank) {
    proto::WorkerInfo* worker = plan.add_workers();
    worker->set_rank(rank);
    worker->set_alive(true);
    worker->set_host(network.graph().vertex(what.workers[rank]).name);
  }
  for (uint32_t s = 0; s < what.servers.size(); ++s) {
    proto::ServerInfo* server = plan.add_servers();
    server->set_server(s);
    server->set_id(absl::StrCat("server ", s));
    server->set_alive(true);
    server->set_host(network.graph().vertex(what.servers[s]).name);
    server->add_lanes();
  }
  scheduler::PlaceShards(static_cast<uint32_t>(plan.servers_size()), 1, &plan);
  return plan;
}

struct Planned {
  proto::Plan plan;
  std::vector<planning::TreeOption> options;
  std::string why_not;
  double step_s = 0;
};

// With the job's tensors on servers by these weights, and the trees that suit.
Planned PlanWith(const ServersToPlan& what, const proto::Plan& members, const std::vector<double>& weights, const network::View& network,
                 const planning::StepRules& rules) {
  Planned planned{.plan = members, .options = {}, .why_not = ""};
  double room = kMaxParameterBytes / 4;
  for (const proto::TensorSpec& tensor : DenseTensors(what.job)) {
    const double elements = std::min(room, ElementsOf(tensor));
    if (elements < 1) continue;
    room -= elements;
    scheduler::AddTensor(tensor, static_cast<uint64_t>(elements), &planned.plan, weights);
  }
  planned.options = planning::TreeOptions(planned.plan, network, &planned.why_not, rules);
  const planning::TreeOption& chosen = planned.options[planning::PickTrees(planned.options, what.trees)];
  const auto none = std::ranges::find(planned.options, "none", &planning::TreeOption::name);
  if (chosen.HasNodes()) planned.plan = planning::WithTrees(planned.plan, planning::WithReason(chosen, none->step_s));
  planned.step_s = chosen.step_s;
  return planned;
}

}  // namespace

bool PlanServers(const ServersToPlan& what, const network::View& network, absl::FunctionRef<void(fabric::StepRoutes*)> add_routes,
                 proto::Explanation* out) {
  // Payload alone: the options of placement, which these are compared with, are counted so.
  const planning::StepRules rules{.efficiency = 1, .utilization = 1, .compute_s = what.job.compute_ms() / 1e3, .beside = &what.beside};
  const proto::Plan members = MembersOf(what, network);
  Planned planned = PlanWith(what, members, {}, network, rules);
  const planning::OwnerWeights owners = planning::WeighOwners(planned.plan, network, {}, rules, /*server_bytes_per_second=*/0);
  const double even_s = planned.step_s;
  Planned weighed;
  if (planning::MayPay(owners)) weighed = PlanWith(what, members, owners.weights, network, rules);
  bool by_network = false;
  *out->add_choices() = planning::ChooseOwners(members, owners, even_s, weighed.step_s, &by_network);
  if (by_network) planned = std::move(weighed);
  const uint32_t partitions = scheduler::CountPartitions(planned.plan);
  if (partitions > 0 && partitions < what.servers.size())
    out->add_notes(absl::StrCat("the model has ", partitions, " partitions of up to ", members.config().partition_bytes(), " bytes for ",
                                what.servers.size(), " servers: the others own nothing (job.partition_bytes)"));
  *out->add_choices() = planning::ExplainTrees(planned.plan, planned.options, planned.why_not, what.trees, planned.step_s);
  return planning::ExplainStep(planned.plan, network, planning::StepOfPlan(planned.plan, network, rules), out, add_routes);
}

}  // namespace sluice::placement
