#include "scheduler/planning/plan_step.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "compression/policy.h"
#include "scheduler/planning/wire_ratios.h"

namespace sluice::planning {
namespace {

uint64_t DenseBytes(const proto::TensorInfo& tensor) {
  uint64_t elements = 0;
  for (const uint64_t n : tensor.partition_elements()) elements += n;
  return 4 * elements;
}

// Where the job leaves it to measurements.
std::string AutoCodec(const proto::Plan& plan, const proto::TensorInfo& tensor) {
  std::string chosen = "none";
  for (const proto::CodecChoice& choice : plan.codec_choices())
    if (choice.tensor() == tensor.tensor()) chosen = choice.codec();   // in order of round
  return chosen;
}

}  // namespace

PlanStep StepOfPlan(const proto::Plan& plan, const network::View& network, const StepRules& rules) {
  PlanStep out;
  fabric::StepSpec& spec = out.spec;
  spec.efficiency = rules.efficiency;
  spec.utilization = rules.utilization;
  spec.compute_s = rules.compute_s;
  if (rules.beside != nullptr) spec.beside = *rules.beside;
  constexpr uint32_t kNowhere = topology::kNone;
  std::vector<uint32_t> rank_of(static_cast<size_t>(plan.workers_size()), kNowhere);    // in spec.workers
  for (const proto::WorkerInfo& worker : plan.workers()) {
    if (worker.finished() && plan.state() == proto::JOB_RUNNING) continue;
    if (worker.out_from_round_size() > 0 && worker.joining() == 0) continue;
    const uint32_t host = network.Host(worker.host());
    if (host == kNowhere) {
      out.complete = false;
      continue;
    }
    rank_of[worker.rank()] = static_cast<uint32_t>(spec.workers.size());
    spec.workers.push_back(host);
    spec.coordinates.emplace_back(worker.coordinates().begin(), worker.coordinates().end());
  }
  if (std::ranges::any_of(spec.coordinates, [&](const auto& of) { return static_cast<int>(of.size()) != plan.tiers_size(); }))
    spec.coordinates.clear();
  std::vector<uint32_t> server_of(static_cast<size_t>(plan.servers_size()), kNowhere);  // in spec.servers
  for (const proto::ServerInfo& server : plan.servers()) {
    const uint32_t host = network.Host(server.host());
    if (host == kNowhere) {
      out.complete &= !server.alive();
      continue;
    }
    server_of[server.server()] = static_cast<uint32_t>(spec.servers.size());
    spec.servers.push_back(host);
  }
  std::map<uint32_t, int32_t> tree_of;   // Tree.tree -> index
  for (const proto::Tree& tree : plan.trees()) {
    fabric::StepTree& mine = spec.trees.emplace_back();
    bool known = true;
    for (int i = 0; i < tree.nodes_size(); ++i) {
      const proto::TreeNode& node = tree.nodes(i);
      known &= node.server() < server_of.size() && server_of[node.server()] != kNowhere;
      if (!known) break;
      fabric::StepTree::Node& to = mine.nodes.emplace_back();
      to.server = server_of[node.server()];
      to.parent = node.parent();
      for (const uint32_t rank : node.ranks())
        if (rank < rank_of.size() && rank_of[rank] != kNowhere) to.ranks.push_back(rank_of[rank]);
    }
    if (!known) {
      spec.trees.pop_back();
      out.complete = false;
      continue;
    }
    tree_of[tree.tree()] = static_cast<int32_t>(spec.trees.size()) - 1;
  }
  double largest = 0;
  std::vector<double> shard_bytes(static_cast<size_t>(plan.shards_size()), 0);
  WireRatios ratios(plan.config()), among(plan.config());   // over servers, among workers
  bool gathers = false;   // parameters, as fp32
  for (const proto::TensorInfo& tensor : plan.tensors()) {
    if (tensor.spec().has_table()) continue;
    if (tensor.exchange() != proto::EXCHANGE_SERVERS) {
      const double bytes = 4.0 * static_cast<double>(compression::ElementsOf(tensor.spec()));
      spec.collective_bytes += bytes;
      among.Add(tensor.spec(), bytes, AutoCodec(plan, tensor));
      gathers |= tensor.exchange() == proto::EXCHANGE_SHARDED;
      continue;
    }
    for (int p = 0; p < tensor.partition_elements_size() && p < tensor.partition_shard_size(); ++p) {
      const double bytes = 4.0 * static_cast<double>(tensor.partition_elements(p));
      largest = std::max(largest, bytes);
      if (tensor.partition_shard(p) < shard_bytes.size()) shard_bytes[tensor.partition_shard(p)] += bytes;
    }
    ratios.Add(tensor.spec(), static_cast<double>(DenseBytes(tensor)), AutoCodec(plan, tensor));
  }
  for (const proto::ShardInfo& shard : plan.shards()) {
    const double bytes = shard_bytes[shard.shard()];
    if (bytes == 0 || shard.server() >= server_of.size() || server_of[shard.server()] == kNowhere) continue;
    const auto tree = tree_of.find(shard.tree());
    spec.shards.push_back({.server = server_of[shard.server()], .bytes = bytes, .tree = tree == tree_of.end() ? -1 : tree->second});
    for (const proto::BackupInfo& backup : shard.backups())
      if (backup.server() < server_of.size() && server_of[backup.server()] != kNowhere)
        out.copies.push_back({.from = server_of[shard.server()], .to = server_of[backup.server()], .bytes = bytes});
  }
  if (largest > 0) spec.partition_bytes = largest;
  spec.push_ratio = ratios.push();
  spec.reply_ratio = ratios.reply();
  spec.reduce_ratio = among.push();
  spec.gather_ratio = gathers ? 1 : among.push();
  return out;
}

double PredictStep(const proto::Plan& plan, const network::View& network, const StepRules& rules) {
  const PlanStep step = StepOfPlan(plan, network, rules);
  const auto model = fabric::StepModel::Create(&network.routes(), step.spec);
  if (!model.ok() || !step.complete) return std::numeric_limits<double>::infinity();
  const fabric::StepPrediction prediction = model->Predict(0);
  return prediction.complete ? prediction.step_s : std::numeric_limits<double>::infinity();
}

std::vector<proto::LinkLoad> BusiestLinks(const network::View& network, const std::vector<fabric::ArcLoad>& loads) {
  std::vector<proto::LinkLoad> out;
  for (const fabric::ArcLoad& load : loads) {
    if (!(load.bytes > 0)) continue;
    const topology::Link& link = network.graph().link(load.arc / 2);
    const bool forward = load.arc % 2 == 0;
    proto::LinkLoad& row = out.emplace_back();
    row.set_from(network.graph().vertex(forward ? link.a : link.b).name);
    row.set_to(network.graph().vertex(forward ? link.b : link.a).name);
    row.set_bytes(load.bytes);
    row.set_bytes_per_second(network.routes().BytesPerSecond(load.arc));
    row.set_busy_ms(1e3 * load.busy_s);
    row.set_source(std::string(topology::SourceName(network.SourceOf(load.arc))));
  }
  return out;
}

}  // namespace sluice::planning
