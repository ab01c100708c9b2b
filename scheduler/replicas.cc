#include "scheduler/replicas.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace sluice::scheduler {
namespace {

// What lies where: owned shards and copies, which cost about the same.
class Weights {
 public:
  explicit Weights(const proto::Plan& plan) {
    for (const proto::ShardInfo& shard : plan.shards()) {
      const uint64_t weight = ShardWeight(shard);
      server_[shard.server()] += weight;
      lane_[{shard.server(), shard.lane()}] += weight;
      for (const proto::BackupInfo& copy : shard.backups()) Add(shard.server(), copy.server(), copy.lane(), weight);
    }
  }
  void Add(uint32_t owner, uint32_t server, uint32_t lane, uint64_t weight) {
    server_[server] += weight;
    lane_[{server, lane}] += weight;
    pair_[{owner, server}] += weight;
  }
  // The smaller, the better for another copy of a shard of `owner`.
  uint64_t Server(uint32_t owner, uint32_t server) const { return Of(server_, server) + Of(pair_, {owner, server}); }
  uint32_t LightestLane(const proto::ServerInfo& info) const {
    uint32_t best = 0;
    for (int lane = 1; lane < info.lanes_size(); ++lane)
      if (Of(lane_, {info.server(), lane}) < Of(lane_, {info.server(), best})) best = static_cast<uint32_t>(lane);
    return best;
  }

 private:
  using Pair = std::pair<uint32_t, uint32_t>;
  template <typename Key>
  static uint64_t Of(const std::map<Key, uint64_t>& weights, const Key& key) {
    auto it = weights.find(key);
    return it == weights.end() ? 0 : it->second;
  }
  std::map<uint32_t, uint64_t> server_;
  std::map<Pair, uint64_t> lane_;   // server, lane
  std::map<Pair, uint64_t> pair_;   // owner, server of a copy
};

bool Alive(const proto::Plan& plan, uint32_t server) {
  return static_cast<int>(server) < plan.servers_size() && plan.servers(static_cast<int>(server)).alive();
}

bool IsTarget(const proto::ShardInfo& shard, uint32_t server) { return shard.moving() && shard.move_to() == server; }

// Copies of a shard that stay: not the owner to be, not on a server that is to be emptied.
struct Staying {
  uint32_t all = 0;
  uint32_t in_sync = 0;
};
Staying StayingCopies(const CopyRules& rules, const proto::ShardInfo& shard) {
  Staying staying;
  for (const proto::BackupInfo& copy : shard.backups()) {
    if (IsTarget(shard, copy.server()) || rules.draining.count(copy.server()) > 0) continue;
    ++staying.all;
    staying.in_sync += copy.in_sync();
  }
  return staying;
}

std::vector<uint32_t> Takers(const CopyRules& rules, const proto::Plan& plan) {
  std::vector<uint32_t> takers;
  for (const proto::ServerInfo& info : plan.servers())
    if (info.alive() && info.lanes_size() > 0 && rules.avoid.count(info.server()) == 0 &&
        rules.draining.count(info.server()) == 0)
      takers.push_back(info.server());
  return takers;
}

bool CanTake(const proto::ShardInfo& shard, uint32_t server) {
  return server != shard.server() && FindCopy(shard, server) == nullptr;
}

bool Lacks(const CopyRules& rules, const std::vector<uint32_t>& takers, const proto::ShardInfo& shard) {
  return StayingCopies(rules, shard).all < rules.replicas &&
         std::any_of(takers.begin(), takers.end(), [&](uint32_t server) { return CanTake(shard, server); });
}

// A move without its copy cannot go on: off.
enum class Move { kNone, kFills, kDone, kOff };
Move MoveOf(const proto::ShardInfo& shard) {
  if (!shard.moving()) return Move::kNone;
  if (FindCopy(shard, shard.move_to()) == nullptr) return Move::kOff;
  const bool all_in_sync = std::all_of(shard.backups().begin(), shard.backups().end(),
                                       [](const proto::BackupInfo& copy) { return copy.in_sync(); });
  return all_in_sync ? Move::kDone : Move::kFills;
}

// The copy to drop next, or -1.
int Surplus(const CopyRules& rules, const proto::Plan& plan, const proto::ShardInfo& shard) {
  const Staying staying = StayingCopies(rules, shard);
  for (int i = 0; i < shard.backups_size() && !rules.draining.empty(); ++i) {
    const uint32_t server = shard.backups(i).server();
    if (IsTarget(shard, server) || rules.draining.count(server) == 0) continue;
    uint32_t others = 0;   // servers that could hold staying copies
    for (const proto::ServerInfo& info : plan.servers())
      others += info.alive() && info.server() != shard.server() && rules.draining.count(info.server()) == 0;
    if (staying.in_sync >= std::min(rules.replicas, others)) return i;
  }
  if (staying.all <= rules.replicas) return -1;
  int worst = -1;
  for (int i = 0; i < shard.backups_size(); ++i) {
    const proto::BackupInfo& copy = shard.backups(i);
    if (IsTarget(shard, copy.server()) || rules.draining.count(copy.server()) > 0) continue;
    if (worst < 0 || std::pair(!copy.in_sync(), copy.since()) >
                         std::pair(!shard.backups(worst).in_sync(), shard.backups(worst).since()))
      worst = i;
  }
  return worst;
}

void Promote(uint32_t server, uint32_t term, proto::ShardInfo* shard) {
  for (int at = 0; at < shard->backups_size(); ++at) {
    if (shard->backups(at).server() != server) continue;
    shard->set_server(server);
    shard->set_lane(shard->backups(at).lane());
    shard->set_term(term);
    shard->mutable_backups()->DeleteSubrange(at, 1);
    break;
  }
  shard->set_moving(false);
  shard->set_move_to(0);
}

// How many failure domains `server` shares with the owner or copy that it shares the most with.
size_t SharedDomains(const CopyRules& rules, const proto::ShardInfo& shard, uint32_t server) {
  const auto mine = rules.domains.find(server);
  if (mine == rules.domains.end()) return 0;
  size_t most = 0;
  const auto with = [&](uint32_t other) {
    const auto its = rules.domains.find(other);
    if (its == rules.domains.end()) return;
    most = std::max(most, static_cast<size_t>(std::count_if(mine->second.begin(), mine->second.end(), [&](uint32_t domain) {
                      return std::find(its->second.begin(), its->second.end(), domain) != its->second.end();
                    })));
  };
  with(shard.server());
  for (const proto::BackupInfo& copy : shard.backups()) with(copy.server());
  return most;
}

// Heaviest first, so that what is light evens out the rest.
std::vector<int> ByWeight(const proto::Plan& plan) {
  std::vector<int> order(static_cast<size_t>(plan.shards_size()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return plan.shards(a).bytes() > plan.shards(b).bytes(); });
  return order;
}

uint32_t NameCopies(const CopyRules& rules, bool in_sync, proto::Plan* plan) {
  const std::vector<uint32_t> takers = Takers(rules, *plan);
  if (std::none_of(plan->shards().begin(), plan->shards().end(),
                   [&](const proto::ShardInfo& shard) { return Lacks(rules, takers, shard); }))
    return 0;
  uint32_t named = 0;
  Weights weights(*plan);
  for (const int i : ByWeight(*plan)) {
    proto::ShardInfo* shard = plan->mutable_shards(i);
    while (Lacks(rules, takers, *shard)) {
      const uint32_t owner = shard->server();
      uint32_t best = owner;
      std::pair<size_t, uint64_t> least;   // shared domains, weight
      for (const uint32_t server : takers) {
        if (!CanTake(*shard, server)) continue;
        const std::pair price(SharedDomains(rules, *shard, server), weights.Server(owner, server));
        if (best == owner || price < least) best = server, least = price;
      }
      proto::BackupInfo* copy = shard->add_backups();
      copy->set_server(best);
      copy->set_lane(weights.LightestLane(plan->servers(static_cast<int>(best))));
      copy->set_in_sync(in_sync);
      copy->set_since(rules.since);
      weights.Add(owner, best, copy->lane(), ShardWeight(*shard));
      ++named;
    }
  }
  return named;
}

}  // namespace

uint32_t NextTerm(const proto::Plan& plan, uint32_t floor) {
  uint32_t term = floor;
  for (const proto::ShardInfo& shard : plan.shards()) term = std::max(term, shard.term());
  return term + 1;
}

uint64_t ShardWeight(const proto::ShardInfo& shard) { return shard.bytes() + kShardWeight; }

const proto::BackupInfo* FindCopy(const proto::ShardInfo& shard, uint32_t server) {
  for (const proto::BackupInfo& copy : shard.backups())
    if (copy.server() == server) return &copy;
  return nullptr;
}

Loss LoseServers(const std::set<uint32_t>& lost, const CopyRules& rules, proto::Plan* plan) {
  Loss loss;
  for (const uint32_t server : lost)
    if (static_cast<int>(server) < plan->servers_size())
      plan->mutable_servers(static_cast<int>(server))->set_alive(false);
  std::map<uint32_t, uint64_t> owned;
  for (const proto::ShardInfo& shard : plan->shards()) owned[shard.server()] += ShardWeight(shard);
  for (const int i : ByWeight(*plan)) {
    proto::ShardInfo* shard = plan->mutable_shards(i);
    auto* copies = shard->mutable_backups();
    for (int at = copies->size() - 1; at >= 0; --at) {
      if (Alive(*plan, copies->Get(at).server())) continue;
      copies->DeleteSubrange(at, 1);
      ++loss.copies;
    }
    if (shard->moving() && (FindCopy(*shard, shard->move_to()) == nullptr || lost.count(shard->server()) > 0)) {
      shard->set_moving(false);
      shard->set_move_to(0);
    }
    if (lost.count(shard->server()) == 0) continue;
    using Rank = std::tuple<bool, uint64_t, uint32_t>;   // doubtful, owned, server
    Rank best;
    bool found = false;
    for (const proto::BackupInfo& copy : *copies) {
      if (!copy.in_sync()) continue;
      const Rank rank{rules.avoid.count(copy.server()) > 0, owned[copy.server()], copy.server()};
      if (!found || rank < best) best = rank;
      found = true;
    }
    if (!found) {
      loss.orphans.push_back(shard->shard());
      continue;
    }
    const uint32_t owner = std::get<2>(best);
    owned[owner] += ShardWeight(*shard);
    ++loss.promoted[owner];
    Promote(owner, rules.term, shard);
  }
  std::sort(loss.orphans.begin(), loss.orphans.end());
  if (!Alive(*plan, plan->coordinator_server())) {
    for (const bool any : {false, true}) {
      for (const proto::ServerInfo& info : plan->servers()) {
        if (!info.alive() || (!any && rules.avoid.count(info.server()) > 0)) continue;
        plan->set_coordinator_server(info.server());
        loss.coordinator = true;
        return loss;
      }
    }
  }
  return loss;
}

Tended Tend(const CopyRules& rules, bool in_sync, proto::Plan* plan) {
  Tended done;
  done.named = NameCopies(rules, in_sync, plan);
  for (proto::ShardInfo& shard : *plan->mutable_shards()) {
    const auto drop = [&] {
      for (int at = Surplus(rules, *plan, shard); at >= 0; at = Surplus(rules, *plan, shard)) {
        shard.mutable_backups()->DeleteSubrange(at, 1);
        ++done.dropped;
      }
    };
    if (MoveOf(shard) == Move::kOff) {
      shard.set_moving(false);
      shard.set_move_to(0);
    }
    drop();
    if (MoveOf(shard) != Move::kDone) continue;
    const uint32_t former = shard.server(), lane = shard.lane();
    Promote(shard.move_to(), rules.term, &shard);
    done.moved.push_back(shard.shard());
    if (Alive(*plan, former) && StayingCopies(rules, shard).all < rules.replicas) {
      proto::BackupInfo* copy = shard.add_backups();
      copy->set_server(former);
      copy->set_lane(lane);
      copy->set_in_sync(true);
      copy->set_since(rules.since);
      ++done.named;
    }
    drop();
  }
  done.named += NameCopies(rules, in_sync, plan);   // what moves have changed
  return done;
}

bool NeedsTending(const CopyRules& rules, const proto::Plan& plan) {
  const std::vector<uint32_t> takers = Takers(rules, plan);
  return std::any_of(plan.shards().begin(), plan.shards().end(), [&](const proto::ShardInfo& shard) {
    const Move move = MoveOf(shard);
    return move == Move::kDone || move == Move::kOff || Surplus(rules, plan, shard) >= 0 ||
           Lacks(rules, takers, shard);
  });
}

Protection ProtectionOf(const proto::Plan& plan, uint32_t replicas) {
  Protection protection;
  const auto alive = static_cast<uint32_t>(
      std::count_if(plan.servers().begin(), plan.servers().end(), [](const auto& info) { return info.alive(); }));
  protection.wanted = std::min(replicas, alive > 0 ? alive - 1 : 0);
  for (const proto::ShardInfo& shard : plan.shards()) {
    const auto in_sync = static_cast<uint32_t>(std::count_if(
        shard.backups().begin(), shard.backups().end(), [](const auto& copy) { return copy.in_sync(); }));
    protection.filling += static_cast<uint32_t>(shard.backups_size()) - in_sync;
    protection.bare += in_sync == 0;
    protection.lacking += in_sync < protection.wanted;
  }
  return protection;
}

bool OwnersDiffer(const proto::Plan& a, const proto::Plan& b) {
  return a.shards_size() != b.shards_size() || a.servers_size() != b.servers_size() ||
         !std::equal(a.shards().begin(), a.shards().end(), b.shards().begin(),
                     [](const auto& x, const auto& y) { return x.server() == y.server() && x.term() == y.term(); }) ||
         !std::equal(a.servers().begin(), a.servers().end(), b.servers().begin(), [](const auto& x, const auto& y) {
           return x.alive() == y.alive() && x.incarnation() == y.incarnation();
         });
}

Held HeldBy(const proto::Plan& plan, uint32_t server) {
  Held held;
  for (const proto::ShardInfo& shard : plan.shards()) {
    held.shards += shard.server() == server;
    held.copies += FindCopy(shard, server) != nullptr;
  }
  return held;
}

}  // namespace sluice::scheduler
