#include "scheduler/fabric/step_parts.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::fabric {
namespace {

using Parts = std::vector<Routes::Part>;

bool IsPart(double value) { return value >= 0 && value <= 1; }
bool IsAmount(double value) { return value >= 0 && value < std::numeric_limits<double>::infinity(); }

Parts PartsOfRanks(const StepSpec& spec, const std::vector<uint32_t>& ranks) {
  Parts parts;
  for (const uint32_t rank : ranks) {
    if (!parts.empty() && parts.back().host == spec.workers[rank]) parts.back().weight += 1;
    else parts.push_back({spec.workers[rank], 1});
  }
  return parts;
}

}  // namespace

absl::Status CheckStep(const StepSpec& spec) {
  const auto invalid = [](auto&&... parts) { return absl::InvalidArgumentError(absl::StrCat("a step: ", parts...)); };
  for (const double value : {spec.push_ratio, spec.forward_ratio, spec.reply_ratio, spec.collective_bytes, spec.reduce_ratio,
                             spec.gather_ratio, spec.compute_s, spec.server_bytes_per_second})
    if (!IsAmount(value)) return invalid("a number of bytes, seconds or a ratio is negative or not finite");
  if (!IsPart(spec.overlap) || !IsPart(spec.efficiency) || spec.efficiency == 0 || !IsPart(spec.utilization) ||
      spec.utilization == 0 || !(spec.partition_bytes > 0) || !(spec.inside_bytes_per_second > 0))
    return invalid("overlap, efficiency, utilization, partition size or speed inside hosts is out of range");
  if (!spec.coordinates.empty() && spec.coordinates.size() != spec.workers.size())
    return invalid(spec.coordinates.size(), " coordinates of ", spec.workers.size(), " workers");
  for (const auto& of : spec.coordinates)
    if (of.size() != spec.coordinates[0].size()) return invalid("coordinates of different lengths");
  for (const StepSpec::Shard& shard : spec.shards)
    if (shard.server >= spec.servers.size() || shard.tree >= static_cast<int64_t>(spec.trees.size()) || !IsAmount(shard.bytes))
      return invalid("a shard of server ", shard.server, " (of ", spec.servers.size(), ") and tree ", shard.tree, " (of ",
                     spec.trees.size(), ") with ", shard.bytes, " bytes");
  for (const StepTree& tree : spec.trees) {
    std::vector<bool> seen(spec.workers.size());
    for (const StepTree::Node& node : tree.nodes) {
      if (node.server >= spec.servers.size() || node.parent >= static_cast<int64_t>(tree.nodes.size()) || node.parent < -1)
        return invalid("a node of a tree with server ", node.server, " and parent ", node.parent);
      for (const uint32_t rank : node.ranks) {
        if (rank >= seen.size() || seen[rank]) return invalid("a tree has rank ", rank, " twice, or there is none");
        seen[rank] = true;
      }
    }
    for (const uint32_t depth : DepthsOf(tree))
      if (depth > tree.nodes.size()) return invalid("a tree has nodes in a circle");
  }
  return absl::OkStatus();
}

std::vector<uint32_t> DepthsOf(const StepTree& tree) {
  const uint32_t too_deep = static_cast<uint32_t>(tree.nodes.size()) + 1;
  std::vector<uint32_t> depths(tree.nodes.size(), 0);   // 0: not known
  for (uint32_t start = 0; start < depths.size(); ++start) {
    std::vector<uint32_t> chain;
    int32_t at = static_cast<int32_t>(start);
    while (at >= 0 && depths[at] == 0 && chain.size() <= depths.size()) {
      chain.push_back(static_cast<uint32_t>(at));
      at = tree.nodes[at].parent;
    }
    uint32_t depth = chain.size() > depths.size() ? too_deep : at < 0 ? 0 : depths[at];
    for (; !chain.empty(); chain.pop_back()) depths[chain.back()] = depth = std::min(depth + 1, too_deep);
  }
  return depths;
}

double Stream::Total() const {
  double total = 0;
  for (const auto& [owner, of] : bytes) total += of;
  return total;
}

std::vector<Stream> StreamsOf(const StepSpec& spec) {
  std::map<int32_t, Stream> by_tree;
  for (const StepSpec::Shard& shard : spec.shards) {
    const int32_t tree = std::max(shard.tree, -1);
    by_tree[tree].tree = tree;
    by_tree[tree].bytes[shard.server] += shard.bytes;
  }
  std::vector<Stream> streams;
  for (auto& [tree, stream] : by_tree) {
    std::vector<bool> covered(spec.workers.size());
    if (tree >= 0)
      for (const StepTree::Node& node : spec.trees[tree].nodes)
        for (const uint32_t rank : node.ranks) covered[rank] = true;
    for (uint32_t rank = 0; rank < spec.workers.size(); ++rank)
      if (!covered[rank]) stream.direct.push_back(rank);
    streams.push_back(std::move(stream));
  }
  return streams;
}

std::vector<std::vector<StageExchange>> StagesOf(const StepSpec& spec, const Stream& stream) {
  Parts owners;
  for (const auto& [owner, bytes] : stream.bytes) owners.push_back({spec.servers[owner], bytes});
  std::vector<std::vector<StageExchange>> stages(1);
  stages[0].push_back({PartsOfRanks(spec, stream.direct), owners});
  if (stream.tree < 0) return stages;
  const StepTree& tree = spec.trees[stream.tree];
  const std::vector<uint32_t> depths = DepthsOf(tree);
  const uint32_t deepest = depths.empty() ? 0 : *std::max_element(depths.begin(), depths.end());
  const double total = stream.Total();
  stages.resize(1 + deepest);
  std::map<std::pair<uint32_t, int32_t>, Parts> senders;   // by stage and parent: hosts of its nodes
  for (size_t n = 0; n < tree.nodes.size(); ++n) {
    const StepTree::Node& node = tree.nodes[n];
    const uint32_t host = spec.servers[node.server];
    Parts ranks = PartsOfRanks(spec, node.ranks);
    const bool on_host = std::all_of(ranks.begin(), ranks.end(), [&](const Routes::Part& part) { return part.host == host; });
    if (!on_host) stages[0].push_back({std::move(ranks), {{host, total}}});
    senders[{1 + deepest - depths[n], node.parent}].push_back({host, 1});
  }
  for (auto& [key, from] : senders) {
    const auto& [stage, parent] = key;
    stages[stage].push_back({std::move(from), parent < 0 ? owners : Parts{{spec.servers[tree.nodes[parent].server], total}}});
  }
  return stages;
}

std::vector<std::vector<Ring>> RingsOf(const StepSpec& spec) {
  std::vector<std::vector<Ring>> levels;
  std::vector<std::vector<uint32_t>> domains(spec.workers.size());   // of the tier below: ranks
  for (uint32_t rank = 0; rank < domains.size(); ++rank) domains[rank] = {rank};
  const size_t tiers = spec.coordinates.empty() ? 0 : spec.coordinates[0].size();
  for (size_t tier = 0; tier <= tiers && domains.size() > 1; ++tier) {
    std::map<uint32_t, std::vector<size_t>> together;   // by number in this tier: domains of the tier below
    for (size_t d = 0; d < domains.size(); ++d)
      together[tier < tiers ? spec.coordinates[domains[d][0]][tier] : 0].push_back(d);
    std::vector<Ring> rings;
    std::vector<std::vector<uint32_t>> next;
    for (const auto& [number, inside] : together) {
      size_t largest = 0;
      std::vector<uint32_t> all;
      for (const size_t d : inside) {
        largest = std::max(largest, domains[d].size());
        all.insert(all.end(), domains[d].begin(), domains[d].end());
      }
      for (size_t q = 0; q < largest && inside.size() > 1; ++q) {
        Ring ring{.part = 1.0 / static_cast<double>(largest)};
        for (const size_t d : inside) ring.ranks.push_back(domains[d][q % domains[d].size()]);
        rings.push_back(std::move(ring));
      }
      next.push_back(std::move(all));
    }
    if (!rings.empty()) levels.push_back(std::move(rings));
    domains = std::move(next);
  }
  return levels;
}

std::vector<ArcLoad> Busiest(const std::vector<double>& load, const Routes& routes, double efficiency, size_t count) {
  std::vector<ArcLoad> loads;
  for (uint32_t arc = 0; arc < load.size(); ++arc)
    if (load[arc] > 0) loads.push_back({arc, load[arc], load[arc] / (routes.BytesPerSecond(arc) * efficiency)});
  count = std::min(count, loads.size());
  std::partial_sort(loads.begin(), loads.begin() + static_cast<std::ptrdiff_t>(count), loads.end(), [](const ArcLoad& a, const ArcLoad& b) {
    return a.busy_s != b.busy_s ? a.busy_s > b.busy_s : a.arc < b.arc;
  });
  loads.resize(count);
  return loads;
}

}  // namespace sluice::fabric
