#include "scheduler/planning/owner_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "scheduler/topology/places.h"

namespace sluice::planning {
namespace {

constexpr double kFirstStep = 0.25, kLastStep = 1.0 / 256;
constexpr double kBetter = 0.01;
constexpr double kOperations = 2e7;          // of the multiplicative weights
constexpr int kLeastRounds = 50, kMostRounds = 2000;
constexpr size_t kSharesShown = 8;

struct ServerKind {
  std::vector<uint32_t> servers;
  double loops = 0;
};

// What is busy, a link or the adding of a kind: with nobody owning anything, and by the share of each kind.
struct Row {
  double always = 0;
  std::vector<double> seconds;   // of each kind
};

class Balance {
 public:
  explicit Balance(std::vector<Row> rows) : rows_(std::move(rows)) {}

  // Seconds of the busiest, and which it is.
  std::pair<double, size_t> Find(const std::vector<double>& share) const {
    std::pair<double, size_t> busiest{0, 0};
    for (size_t r = 0; r < rows_.size(); ++r) {
      double seconds = rows_[r].always;
      for (size_t k = 0; k < share.size(); ++k) seconds += share[k] * rows_[r].seconds[k];
      if (seconds > busiest.first) busiest = {seconds, r};
    }
    return busiest;
  }

  std::vector<double> Solve(const std::vector<double>& even) const {
    // Weights leave something to everybody, moves leave nothing where nothing is due, which suits partitions better.
    std::vector<double> moved = ByMoves(even), weighted = ByMoves(WithoutCrumbs(ByWeights(even)));
    return Find(weighted).first < (1 - kBetter) * Find(moved).first ? weighted : moved;
  }

 private:
  std::vector<double> ByWeights(std::vector<double> share) const {
    const size_t kinds = share.size();
    const int rounds = std::clamp(static_cast<int>(kOperations / static_cast<double>(1 + kinds * rows_.size())), kLeastRounds, kMostRounds);
    std::vector<double> best = share, log_weight(kinds), busy(rows_.size()), cost(kinds);
    for (size_t k = 0; k < kinds; ++k) log_weight[k] = std::log(std::max(share[k], 1e-12));
    double best_s = Find(share).first;
    for (int round = 1; round <= rounds; ++round) {
      double most = 0;
      for (size_t r = 0; r < rows_.size(); ++r) {
        busy[r] = rows_[r].always;
        for (size_t k = 0; k < kinds; ++k) busy[r] += share[k] * rows_[r].seconds[k];
        most = std::max(most, busy[r]);
      }
      if (most <= 0) return share;
      if (most < best_s) best_s = most, best = share;
      // The gradient of a soft maximum; a kind whose ways are loaded loses share.
      const double sharpness = 30 + 2.0 * std::sqrt(static_cast<double>(round));
      double norm = 0, worst = 0;
      for (double& b : busy) norm += b = std::exp(sharpness * (b / most - 1));
      for (size_t k = 0; k < kinds; ++k) {
        cost[k] = 0;
        for (size_t r = 0; r < rows_.size(); ++r) cost[k] += busy[r] / norm * rows_[r].seconds[k];
        worst = std::max(worst, cost[k]);
      }
      if (worst <= 0) break;
      const double step = 0.5 / std::sqrt(static_cast<double>(round));
      double highest = -1e300, total = 0;
      for (size_t k = 0; k < kinds; ++k) highest = std::max(highest, log_weight[k] -= step * cost[k] / worst);
      for (size_t k = 0; k < kinds; ++k) total += share[k] = std::exp(log_weight[k] - highest);
      for (double& x : share) x /= total;
    }
    return best;
  }

  static std::vector<double> WithoutCrumbs(std::vector<double> share) {
    double total = 0;
    for (double& x : share) total += x = x < kLastStep ? 0 : x;
    for (double& x : share) x /= total;
    return share;
  }

  std::vector<double> ByMoves(std::vector<double> share) const {
    auto [now, row] = Find(share);
    for (double step = kFirstStep; step >= kLastStep;) {
      // From each kind that loads what is busiest, to each other: the best move of `step`.
      double best = now * (1 - 1e-6);
      std::vector<double> next;
      for (size_t from = 0; from < share.size(); ++from) {
        const double moved = std::min(step, share[from]);
        if (rows_[row].seconds[from] == 0 || moved == 0) continue;
        for (size_t to = 0; to < share.size(); ++to) {
          if (rows_[row].seconds[to] >= rows_[row].seconds[from]) continue;
          std::vector<double> candidate = share;
          candidate[from] -= moved;
          candidate[to] += moved;
          const double seconds = Find(candidate).first;
          if (seconds < best) best = seconds, next = std::move(candidate);
        }
      }
      if (next.empty()) {
        step /= 2;
        continue;
      }
      share = std::move(next);
      std::tie(now, row) = Find(share);
    }
    return share;
  }

  const std::vector<Row> rows_;
};

// The arcs that kinds load, those that are alike as one. False: somebody has no way to somebody.
bool LinkRows(const proto::Plan& plan, const network::View& network, const std::vector<ServerKind>& kinds, const PlanStep& step,
              const StepRules& rules, std::vector<Row>* rows) {
  const fabric::Routes& routes = network.routes();
  std::map<uint32_t, double> ranks;
  for (const uint32_t host : step.spec.workers) ranks[host] += 1;
  std::vector<fabric::Routes::Part> workers;
  for (const auto& [host, count] : ranks) workers.push_back({host, count});
  double model = 0;
  for (const fabric::StepSpec::Shard& shard : step.spec.shards) model += shard.bytes;
  std::vector<std::vector<double>> loads;
  for (const ServerKind& kind : kinds) {
    std::vector<fabric::Routes::Part> push, reply;
    for (const uint32_t server : kind.servers) {
      const double part = plan.servers(static_cast<int>(server)).lanes_size() / kind.loops;   // of what the kind owns
      const uint32_t host = network.Host(plan.servers(static_cast<int>(server)).host());
      push.push_back({host, part * step.spec.push_ratio});
      reply.push_back({host, part * step.spec.reply_ratio});
    }
    std::vector<double>& load = loads.emplace_back(routes.arcs());
    if (!routes.AddLoads(workers, push, &load) || !routes.AddLoads(reply, workers, &load)) return false;
  }
  std::map<std::vector<float>, double> known;   // by seconds of kinds: the most that is there always
  std::vector<float> key(kinds.size());
  for (uint32_t arc = 0; arc < routes.arcs(); ++arc) {
    const double seconds = 1 / (routes.BytesPerSecond(arc) * rules.efficiency);
    bool loaded = false;
    for (size_t k = 0; k < kinds.size(); ++k) {
      key[k] = static_cast<float>(loads[k][arc] * seconds);
      loaded |= loads[k][arc] > 0;
    }
    if (!loaded) continue;
    double& always = known[key];
    if (rules.beside != nullptr && model > 0) always = std::max(always, (*rules.beside)[arc] * seconds / model);
  }
  for (const auto& [seconds, always] : known) rows->push_back({.always = always, .seconds = {seconds.begin(), seconds.end()}});
  return true;
}

}  // namespace

OwnerWeights WeighOwners(const proto::Plan& plan, const network::View& network, const std::vector<uint32_t>& draining, const StepRules& rules,
                         double server_bytes_per_second) {
  OwnerWeights out;
  std::map<uint32_t, double> workers;   // ranks on each host
  for (const proto::WorkerInfo& worker : plan.workers()) {
    if (worker.finished() || (worker.out_from_round_size() > 0 && worker.joining() == 0)) continue;
    const uint32_t host = network.Host(worker.host());
    if (host == topology::kNone) return out;
    workers[host] += 1;
  }
  std::map<std::pair<std::vector<uint32_t>, double>, size_t> known;
  std::vector<ServerKind> kinds;
  double loops = 0, ranks = 0;
  for (const auto& [host, count] : workers) ranks += count;
  for (const proto::ServerInfo& server : plan.servers()) {
    if (!server.alive() || server.lanes_size() == 0 || std::ranges::find(draining, server.server()) != draining.end()) continue;
    const uint32_t host = network.Host(server.host());
    if (host == topology::kNone) return out;
    const auto beside = workers.find(host);
    const auto [it, is_new] = known.emplace(std::pair(topology::SwitchesOf(network.graph(), host), beside == workers.end() ? 0 : beside->second),
                                            kinds.size());
    if (is_new) kinds.emplace_back();
    if (kinds.size() > kMaxServerKinds) return out;
    kinds[it->second].servers.push_back(server.server());
    kinds[it->second].loops += server.lanes_size();
    loops += server.lanes_size();
  }
  if (kinds.size() < 2 || ranks == 0) return out;
  std::vector<Row> rows;
  if (!LinkRows(plan, network, kinds, StepOfPlan(plan, network, rules), rules, &rows)) return out;
  for (size_t k = 0; k < kinds.size() && server_bytes_per_second > 0; ++k) {
    Row& adding = rows.emplace_back(Row{.always = 0, .seconds = std::vector<double>(kinds.size())});
    adding.seconds[k] = ranks / (kinds[k].loops * server_bytes_per_second);
  }
  std::vector<double> even;
  for (const ServerKind& kind : kinds) even.push_back(kind.loops / loops);
  const Balance balance(std::move(rows));
  const std::vector<double> best = balance.Solve(even);
  out.even_s = balance.Find(even).first;
  out.best_s = balance.Find(best).first;
  out.weights.assign(static_cast<size_t>(plan.servers_size()), 0);
  for (size_t k = 0; k < kinds.size(); ++k)
    for (const uint32_t server : kinds[k].servers)
      out.weights[server] = best[k] * plan.servers(static_cast<int>(server)).lanes_size() / kinds[k].loops;
  return out;
}

bool MayPay(const OwnerWeights& owners) { return !owners.weights.empty() && owners.best_s < (1 - kOwnersGain) * owners.even_s; }

proto::Choice ChooseOwners(const proto::Plan& plan, const OwnerWeights& owners, double even_s, double weighed_s, bool* by_network) {
  proto::Choice choice;
  choice.set_what("owners of shards");
  const auto add = [&](const char* name, double seconds, const std::string& note) {
    proto::Option* option = choice.add_options();
    option->set_name(name);
    option->set_step_ms(1e3 * seconds);
    option->set_note(note);
  };
  *by_network = false;
  if (!MayPay(owners)) {
    choice.set_chosen("even");
    choice.set_why(owners.weights.empty() ? "no server is placed better than another, or it is not known where all members are"
                                          : "no other shares take 5 % off the busiest link");
    add("even", even_s, "each event loop of a server owns as much");
    return choice;
  }
  std::vector<std::string> shares;
  for (const proto::ServerInfo& server : plan.servers())
    if (owners.weights[server.server()] > 0 && shares.size() < kSharesShown)
      shares.push_back(absl::StrFormat("%s %.0f %%", server.id(), 100 * owners.weights[server.server()]));
  *by_network = weighed_s < (1 - kOwnersGain) * even_s;
  choice.set_chosen(*by_network ? "by the network" : "even");
  choice.set_why(*by_network ? "the busiest link carries less" : "with trees, or with so few partitions, it takes off less than 5 %");
  if (*by_network) add("by the network", weighed_s, absl::StrJoin(shares, ", "));
  add("even", even_s, "");
  if (!*by_network) add("by the network", weighed_s, absl::StrJoin(shares, ", "));
  return choice;
}

}  // namespace sluice::planning
