#include "scheduler/placement/owners.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::placement {
namespace {

using topology::kNone;

constexpr size_t kMaxPairs = 4 << 20;        // hosts of workers times servers
constexpr double kOperations = 2e7;          // of the multiplicative weights
constexpr int kLeastRounds = 50, kMostRounds = 2000;

struct Cost {
  uint32_t arc = 0;        // a number of our own
  double seconds = 0;      // that it is busy for the whole model
};

uint32_t HostOf(const topology::Graph& graph, const std::string& name) {
  const uint32_t vertex = name.empty() ? kNone : graph.Find(name);
  return vertex != kNone && graph.vertex(vertex).kind == topology::VertexKind::kHost ? vertex : kNone;
}

double TimeOf(const std::vector<std::vector<Cost>>& costs, const std::vector<double>& share, size_t arcs) {
  std::vector<double> busy(arcs);
  for (size_t s = 0; s < costs.size(); ++s)
    for (const Cost& cost : costs[s]) busy[cost.arc] += share[s] * cost.seconds;
  return busy.empty() ? 0 : *std::max_element(busy.begin(), busy.end());
}

// The shares that minimise the longest time, nearly.
std::vector<double> BestShares(const std::vector<std::vector<Cost>>& costs, size_t arcs) {
  const size_t servers = costs.size();
  size_t entries = 1;
  for (const auto& of : costs) entries += of.size();
  const int rounds = std::clamp(static_cast<int>(kOperations / static_cast<double>(entries)), kLeastRounds, kMostRounds);
  std::vector<double> share(servers, 1.0 / static_cast<double>(servers)), best = share, log_weight(servers), busy(arcs), sum(servers);
  double best_time = TimeOf(costs, share, arcs);
  for (int round = 1; round <= rounds; ++round) {
    std::fill(busy.begin(), busy.end(), 0.0);
    for (size_t s = 0; s < servers; ++s)
      for (const Cost& cost : costs[s]) busy[cost.arc] += share[s] * cost.seconds;
    const double most = *std::max_element(busy.begin(), busy.end());
    if (most <= 0) return share;
    if (most < best_time) {
      best_time = most;
      best = share;
    }
    // The gradient of a soft maximum; a server whose ways are loaded loses share.
    const double sharpness = 30 + 2.0 * std::sqrt(static_cast<double>(round));
    double norm = 0;
    for (double& b : busy) norm += b = std::exp(sharpness * (b / most - 1));
    double worst = 0;
    for (size_t s = 0; s < servers; ++s) {
      sum[s] = 0;
      for (const Cost& cost : costs[s]) sum[s] += busy[cost.arc] / norm * cost.seconds;
      worst = std::max(worst, sum[s]);
    }
    if (worst <= 0) break;
    const double step = 0.5 / std::sqrt(static_cast<double>(round));
    double highest = -1e300, total = 0;
    for (size_t s = 0; s < servers; ++s) highest = std::max(highest, log_weight[s] -= step * sum[s] / worst);
    for (size_t s = 0; s < servers; ++s) total += share[s] = std::exp(log_weight[s] - highest);
    for (double& x : share) x /= total;
  }
  return best;
}

}  // namespace

Owners PlaceOwners(const proto::Plan& plan, const topology::Graph& graph, const topology::Domains& domains, const fabric::Routes& routes,
                   const OwnerRules& rules) {
  Owners out;
  const size_t count = static_cast<size_t>(plan.servers_size());
  out.weight.assign(count, 0);
  out.backups.resize(count);
  std::vector<uint32_t> alive, host(count, kNone);
  std::vector<std::string> missing;
  for (uint32_t s = 0; s < count; ++s) {
    const proto::ServerInfo& info = plan.servers(static_cast<int>(s));
    if (!info.alive()) continue;
    alive.push_back(s);
    host[s] = HostOf(graph, info.host());
    if (host[s] == kNone) missing.push_back(absl::StrCat("server ", info.id(), " on \"", info.host(), "\""));
  }
  out.choice.set_what("owners of shards");
  if (alive.empty()) return out;
  std::map<uint32_t, double> workers_on;
  size_t strangers = 0;
  for (const proto::WorkerInfo& worker : plan.workers()) {
    const uint32_t at = HostOf(graph, worker.host());
    if (at == kNone) ++strangers;
    else ++workers_on[at];
  }
  if (!missing.empty())
    out.notes.push_back(absl::StrCat(missing.size(), " servers' hosts are not in the topology, such as ", missing[0], ": they get equal shares"));
  if (strangers > 0) out.notes.push_back(absl::StrCat(strangers, " workers' hosts are not in the topology and do not count"));

  for (const uint32_t s : alive) out.weight[s] = 1.0 / static_cast<double>(alive.size());
  const bool weigh = missing.empty() && !workers_on.empty() && workers_on.size() * alive.size() <= kMaxPairs;
  std::vector<std::vector<Cost>> costs(alive.size());
  std::map<uint32_t, uint32_t> number;   // of an arc
  for (size_t i = 0; weigh && i < alive.size(); ++i) {
    std::map<uint32_t, double> bytes;
    for (const auto& [at, workers] : workers_on) {
      const double n = workers;
      routes.Spread(at, host[alive[i]], [&](uint32_t arc, double share) { bytes[arc] += n * share * rules.push; });
      routes.Spread(host[alive[i]], at, [&](uint32_t arc, double share) { bytes[arc] += n * share * rules.pull; });
    }
    for (const auto& [arc, b] : bytes)
      costs[i].push_back({number.emplace(arc, static_cast<uint32_t>(number.size())).first->second,
                          b / std::max(1.0, routes.BytesPerSecond(arc))});
  }
  const double scale = 1e3 * (rules.model_bytes > 0 ? rules.model_bytes : 1), base = 1e3 * rules.compute_s;
  const std::vector<double> equal(alive.size(), 1.0 / static_cast<double>(alive.size()));
  if (!number.empty()) {
    const double equal_time = TimeOf(costs, equal, number.size());
    const std::vector<double> shares = BestShares(costs, number.size());
    const double time = TimeOf(costs, shares, number.size());
    const bool unequal = time < equal_time * (1 - rules.gain);
    if (unequal)
      for (size_t i = 0; i < alive.size(); ++i) out.weight[alive[i]] = shares[i];
    const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
    out.choice.set_chosen(unequal ? "by what their links carry" : "equal shares");
    out.choice.set_why(unequal ? absl::StrFormat("servers behind narrow links own less: %.1f to %.1f %% each", 100 * *least, 100 * *most)
                               : absl::StrFormat("unequal shares would not be faster by %.0f %%", 100 * rules.gain));
    for (const bool first : {unequal, !unequal}) {
      proto::Option* option = out.choice.add_options();
      option->set_name(first ? "by what their links carry" : "equal shares");
      option->set_step_ms(base + scale * (first ? time : equal_time));
    }
  } else {
    out.choice.set_chosen("equal shares");
    out.choice.set_why(weigh ? "all is on one host" : "not all hosts are known, or there are too many to weigh");
  }

  // Widest first: the fewer domains two servers share, the better.
  for (const uint32_t s : alive) {
    std::vector<std::tuple<size_t, double, uint32_t>> order;
    for (const uint32_t other : alive) {
      if (other == s) continue;
      size_t shared = 0;
      if (host[s] != kNone && host[other] != kNone) {
        const auto mine = domains.Of(host[s]), theirs = domains.Of(host[other]);
        for (const uint32_t d : mine) shared += std::find(theirs.begin(), theirs.end(), d) != theirs.end();
        if (host[s] == host[other]) shared += 1000;   // and never one host, if there is any other
      }
      order.emplace_back(shared, -out.weight[other], other);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [shared, weight, other] : order) out.backups[s].push_back(other);
  }
  return out;
}

}  // namespace sluice::placement
