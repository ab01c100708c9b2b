#include "scheduler/balance.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/moves.h"

namespace sluice::scheduler {
namespace {

constexpr double kWorthLoad = 0.95;                     // of the largest load, what must not be left
constexpr double kMovedBytesPerSecond = 128 << 20;      // a second of a server's time moves so much, about

const proto::ShardInfo& Shard(const proto::Plan& plan, uint32_t shard) { return plan.shards(static_cast<int>(shard)); }

// What a shard takes from its owner and gives to another server.
struct Piece {
  uint32_t shard = 0;
  uint64_t bytes = 0;
};

class Planner {
 public:
  Planner(const proto::JobRecord& record, const CopyRules& rules, const std::map<uint32_t, uint64_t>& extra,
          const Loads* loads)
      : record_(record), plan_(record.plan()), extra_(extra), loads_(loads) {
    for (const uint32_t server : Takers(plan_, rules)) {
      costs_[server] = {};
      capacities_[server] = {};
      balance_.before[server] = 0;
    }
    for (const proto::ShardInfo& shard : plan_.shards()) sizes_known_ |= Bytes(shard) > 0;
    if (loads_ == nullptr) TakeBytes();
    else TakeLoads();
  }

  Balance Run() {
    if (costs_.empty()) return balance_;
    Place();
    balance_.after = balance_.before;
    if (loads_ != nullptr) balance_.cost_before = costs_;
    balance_.largest_before = Load(Extreme(true));
    while (Step()) {}
    balance_.largest_after = Load(Extreme(true));
    balance_.mean = Mean();
    if (loads_ != nullptr) balance_.cost_after = costs_;
    return std::move(balance_);
  }

 private:
  uint64_t Bytes(const proto::ShardInfo& shard) const {
    auto more = extra_.find(shard.shard());
    return shard.bytes() + (more == extra_.end() ? 0 : more->second);
  }
  // As if bytes were the load of a link that carries one a second.
  void TakeBytes() {
    for (auto& [server, cost] : costs_) capacities_[server].in = 1;
    for (const proto::ShardInfo& shard : plan_.shards())
      if (auto it = costs_.find(shard.server()); it != costs_.end()) it->second.in += Weight(shard);
  }
  void TakeLoads() {
    for (auto& [server, cost] : costs_)
      if (auto it = loads_->servers.find(server); it != loads_->servers.end()) {
        cost = it->second.base;
        capacities_[server] = it->second.capacity;
      }
    for (const auto& [key, cost] : loads_->shards)
      if (auto it = costs_.find(key.second); it != costs_.end()) it->second += cost;
  }
  double Weight(const proto::ShardInfo& shard) const {
    return sizes_known_ ? static_cast<double>(Bytes(shard)) : 1;   // if nothing has a size yet, shards count
  }
  // Of the shard at its owner, and of the copy that it replaces.
  std::pair<Cost, Cost> CostsOf(uint32_t shard, uint32_t to) const {
    const proto::ShardInfo& info = Shard(plan_, shard);
    if (loads_ == nullptr) return {{0, Weight(info), 0}, {}};
    return {loads_->Of(shard, info.server()), FindCopy(info, to) != nullptr ? loads_->Of(shard, to) : Cost{}};
  }
  std::pair<Cost, Cost> Moved(uint32_t shard, uint32_t from, uint32_t to) const {
    const auto [own, copy] = CostsOf(shard, to);
    Cost source = Of(from), target = Of(to);
    (source -= own) += copy;
    (target -= copy) += own;
    return {source, target};
  }
  Cost Of(uint32_t server) const {
    auto it = costs_.find(server);
    return it == costs_.end() ? Cost{} : it->second;
  }
  double Load(uint32_t server, const Cost& cost) const {
    auto it = capacities_.find(server);
    return it == capacities_.end() ? 0 : LoadOf(cost, it->second);
  }
  double Load(uint32_t server) const { return Load(server, costs_.at(server)); }
  double Mean() const {
    double total = 0;
    for (const auto& [server, cost] : costs_) total += Load(server, cost);
    return total / static_cast<double>(costs_.size());
  }
  uint32_t Extreme(bool largest) const {
    uint32_t best = costs_.begin()->first;
    for (const auto& [server, cost] : costs_)
      if (largest ? Load(server, cost) > Load(best) : Load(server, cost) < Load(best)) best = server;
    return best;
  }

  // Where shards will be when the moves under way are done; what may move.
  void Place() {
    for (const proto::ShardInfo& shard : plan_.shards()) {
      const proto::MoveRecord* move = FindMove(record_, shard.shard());
      const uint32_t owner = move != nullptr ? move->to() : shard.server();
      if (move != nullptr && owner != shard.server()) {
        const auto [source, target] = Moved(shard.shard(), shard.server(), owner);
        if (auto it = costs_.find(shard.server()); it != costs_.end()) it->second = source;
        if (auto it = costs_.find(owner); it != costs_.end()) it->second = target;
      }
      auto of = balance_.before.find(owner);
      if (of == balance_.before.end()) continue;   // a server without a stream, or one that is drained
      of->second += Bytes(shard);
      if (move == nullptr) pieces_[owner].push_back({shard.shard(), Bytes(shard)});
    }
  }

  bool Step() {
    const uint32_t from = Extreme(true), to = Extreme(false);
    const double mean = Mean(), largest = Load(from);
    if (largest <= kBalanced * mean) return false;
    std::vector<Piece>& pieces = pieces_[from];
    auto best = pieces.end();
    double best_gain = 0;
    bool best_fits = false;
    for (auto it = pieces.begin(); it != pieces.end(); ++it) {
      const auto [source, target] = Moved(it->shard, from, to);
      const double left = Load(from, source), there = Load(to, target), gain = largest - left;
      if (gain <= 0 || there >= largest) continue;   // would only swap the roles
      const bool fits = left >= mean && there <= mean;
      if (best == pieces.end() || (fits != best_fits ? fits : fits ? gain > best_gain : gain < best_gain)) {
        best = it;
        best_gain = gain;
        best_fits = fits;
      }
    }
    if (best == pieces.end()) return false;
    Add(*best, from, to, mean);
    pieces.erase(best);
    return true;
  }

  void Add(const Piece& piece, uint32_t from, uint32_t to, double mean) {
    proto::MoveRecord& move = balance_.moves.emplace_back();
    move.set_shard(piece.shard);
    move.set_from(from);
    move.set_to(to);
    move.set_reason(Reason(piece, from, to, 100 * (Load(from) / mean - 1)));
    const auto [source, target] = Moved(piece.shard, from, to);
    costs_[from] = source;
    costs_[to] = target;
    balance_.after[from] -= piece.bytes;
    balance_.after[to] += piece.bytes;
    balance_.moved_bytes += piece.bytes;
  }

  std::string Reason(const Piece& piece, uint32_t from, uint32_t to, double above) const {
    const auto name = [&](uint32_t server) { return plan_.servers(static_cast<int>(server)).id(); };
    if (loads_ != nullptr) {
      return absl::StrFormat("%s is at %s, %.0f %% above the mean, %s at %s; the shard takes %s", name(from),
                             LoadText(Of(from), capacities_.at(from)), above, name(to),
                             LoadText(Of(to), capacities_.at(to)),
                             LoadText(CostsOf(piece.shard, to).first, capacities_.at(from)));
    }
    const auto amount = [&](uint32_t server) {
      const auto n = static_cast<uint64_t>(Of(server).in);
      return sizes_known_ ? SizeText(n) : absl::StrCat(n, " empty shards");
    };
    return absl::StrFormat("%s owns %s, %.0f %% above the mean; %s owns %s", name(from), amount(from), above, name(to),
                           amount(to));
  }

  const proto::JobRecord& record_;
  const proto::Plan& plan_;
  const std::map<uint32_t, uint64_t>& extra_;
  const Loads* const loads_;
  bool sizes_known_ = false;
  std::map<uint32_t, Cost> costs_;                 // by server that may own shards
  std::map<uint32_t, Capacity> capacities_;
  std::map<uint32_t, std::vector<Piece>> pieces_;  // by owner, what may move
  Balance balance_;
};

}  // namespace

Balance PlanRebalance(const proto::JobRecord& record, const CopyRules& rules, const std::map<uint32_t, uint64_t>& extra,
                      const Loads* loads) {
  return Planner(record, rules, extra, loads).Run();
}

bool BottleneckWatch::Observe(const std::map<uint32_t, double>* loads, const Rule& rule, TimeNs now) {
  if (loads == nullptr || loads->size() < 2) {
    server_.reset();
    return false;
  }
  double total = 0;
  auto largest = loads->begin();
  for (auto it = loads->begin(); it != loads->end(); ++it) {
    total += it->second;
    if (it->second > largest->second) largest = it;
  }
  if (largest->second < kIdleLoad || largest->second <= rule.over * total / static_cast<double>(loads->size())) {
    server_.reset();
    return false;
  }
  if (server_ != largest->first) {
    server_ = largest->first;
    since_ = now;
  }
  if (moved_ && now - *moved_ < rule.cooldown) return false;
  return now - since_ >= rule.after;
}

bool Worth(const Balance& balance, TimeNs horizon) {
  if (balance.moves.empty() || balance.largest_after > kWorthLoad * balance.largest_before) return false;
  const double gained = (balance.largest_before - balance.largest_after) * static_cast<double>(horizon) / kSecond;
  return gained > static_cast<double>(balance.moved_bytes) / kMovedBytesPerSecond;
}

}  // namespace sluice::scheduler
