#include "scheduler/planning/owner_weights.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "scheduler/planning/plan_step.h"
#include "scheduler/topology/places.h"

namespace sluice::planning {
namespace {

constexpr double kFirstStep = 0.25, kLastStep = 1.0 / 256;

struct ServerKind {
  std::vector<uint32_t> servers;
  double loops = 0;
  std::map<uint32_t, double> seconds;   // of each arc that this kind's ownership loads, for a byte of the model
};

// Seconds of the busiest arc, or of the busiest kind's adding, and which that is (arcs first, then kinds).
struct Busiest {
  double seconds = 0;
  uint32_t arc = topology::kNone;       // kNone: a kind's adding
  size_t kind = 0;
};

class Balance {
 public:
  Balance(std::vector<ServerKind> kinds, double workers) : kinds_(std::move(kinds)), workers_(workers) {}

  Busiest Find(const std::vector<double>& share) const {
    std::map<uint32_t, double> arcs;
    Busiest busiest;
    for (size_t k = 0; k < kinds_.size(); ++k) {
      if (share[k] == 0) continue;
      for (const auto& [arc, seconds] : kinds_[k].seconds) arcs[arc] += share[k] * seconds;
      const double adding = share[k] * workers_ / (kinds_[k].loops * kServerBytesPerSecond);
      if (adding > busiest.seconds) busiest = {adding, topology::kNone, k};
    }
    for (const auto& [arc, seconds] : arcs)
      if (seconds > busiest.seconds) busiest = {seconds, arc, 0};
    return busiest;
  }

  std::vector<double> Solve(std::vector<double> share) const {
    Busiest now = Find(share);
    for (double step = kFirstStep; step >= kLastStep;) {
      // From each kind that loads what is busiest, to each other: the best move of `step`.
      double best = now.seconds * (1 - 1e-9);
      std::vector<double> next;
      for (size_t from = 0; from < kinds_.size(); ++from) {
        const bool loads = now.arc == topology::kNone ? from == now.kind : kinds_[from].seconds.count(now.arc) > 0;
        const double moved = std::min(step, share[from]);
        if (!loads || moved == 0) continue;
        for (size_t to = 0; to < kinds_.size(); ++to) {
          if (to == from) continue;
          std::vector<double> candidate = share;
          candidate[from] -= moved;
          candidate[to] += moved;
          const double seconds = Find(candidate).seconds;
          if (seconds < best) best = seconds, next = std::move(candidate);
        }
      }
      if (next.empty()) {
        step /= 2;
        continue;
      }
      share = std::move(next);
      now = Find(share);
    }
    return share;
  }

 private:
  const std::vector<ServerKind> kinds_;
  const double workers_;
};

}  // namespace

OwnerWeights WeighOwners(const proto::Plan& plan, const network::Network& network, const std::vector<uint32_t>& draining) {
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
  bool ways = true;
  for (ServerKind& kind : kinds) {
    for (const uint32_t server : kind.servers) {
      const double part = plan.servers(static_cast<int>(server)).lanes_size() / kind.loops;   // of what the kind owns
      const uint32_t to = network.Host(plan.servers(static_cast<int>(server)).host());
      const auto add = [&](uint32_t arc, double bytes) {
        kind.seconds[arc] += bytes * part / (network.routes().BytesPerSecond(arc) * kTcpEfficiency);
      };
      for (const auto& [from, count] : workers) {
        const double bytes = count;
        ways &= network.routes().Spread(from, to, [&](uint32_t arc, double share) { add(arc, bytes * share); });
        ways &= network.routes().Spread(to, from, [&](uint32_t arc, double share) { add(arc, bytes * share); });
      }
    }
  }
  if (!ways) return out;
  std::vector<double> even;
  for (const ServerKind& kind : kinds) even.push_back(kind.loops / loops);
  const Balance balance(kinds, ranks);
  const std::vector<double> best = balance.Solve(even);
  out.even_s = balance.Find(even).seconds;
  out.best_s = balance.Find(best).seconds;
  out.weights.assign(static_cast<size_t>(plan.servers_size()), 0);
  for (size_t k = 0; k < kinds.size(); ++k)
    for (const uint32_t server : kinds[k].servers)
      out.weights[server] = best[k] * plan.servers(static_cast<int>(server)).lanes_size() / kinds[k].loops;
  return out;
}

}  // namespace sluice::planning
