#include "scheduler/moves.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::scheduler {
namespace {

const proto::ShardInfo& Shard(const proto::Plan& plan, uint32_t shard) {
  return plan.shards(static_cast<int>(shard));
}

bool Alive(const proto::Plan& plan, uint32_t server) {
  return static_cast<int>(server) < plan.servers_size() && plan.servers(static_cast<int>(server)).alive();
}

bool Over(const proto::Plan& plan, const CopyRules& rules, const proto::MoveRecord& move) {
  if (static_cast<int>(move.shard()) >= plan.shards_size()) return true;
  return Shard(plan, move.shard()).server() != move.from() || !Alive(plan, move.to()) ||
         rules.draining.count(move.to()) > 0;
}

uint32_t LightestLane(const proto::Plan& plan, uint32_t server) {
  std::vector<uint64_t> lanes(static_cast<size_t>(std::max(1, plan.servers(static_cast<int>(server)).lanes_size())));
  for (const proto::ShardInfo& shard : plan.shards()) {
    if (shard.server() == server && shard.lane() < lanes.size()) lanes[shard.lane()] += ShardWeight(shard);
    const proto::BackupInfo* copy = FindCopy(shard, server);
    if (copy != nullptr && copy->lane() < lanes.size()) lanes[copy->lane()] += ShardWeight(shard);
  }
  return static_cast<uint32_t>(std::min_element(lanes.begin(), lanes.end()) - lanes.begin());
}

}  // namespace

std::vector<uint32_t> Takers(const proto::Plan& plan, const CopyRules& rules) {
  std::vector<uint32_t> takers;
  for (const proto::ServerInfo& info : plan.servers())
    if (info.alive() && info.lanes_size() > 0 && rules.avoid.count(info.server()) == 0 &&
        rules.draining.count(info.server()) == 0)
      takers.push_back(info.server());
  return takers;
}

const proto::MoveRecord* FindMove(const proto::JobRecord& record, uint32_t shard) {
  for (const proto::MoveRecord& move : record.moves())
    if (move.shard() == shard) return &move;
  return nullptr;
}

MoveChanges PlanMoves(const proto::JobRecord& record, const CopyRules& rules, uint32_t at_once) {
  MoveChanges changes;
  if (record.moves().empty() && rules.draining.empty()) return changes;
  const proto::Plan& plan = record.plan();
  std::vector<bool> has(static_cast<size_t>(plan.shards_size()));
  std::vector<const proto::MoveRecord*> queued;
  // A small shard takes no longer than the message that says so: it has a bound of its own. (How large a table is the plan
  // does not say.)
  std::set<uint32_t> large;
  for (const proto::TensorInfo& tensor : plan.tensors())
    if (tensor.spec().has_table()) large.insert(tensor.partition_shard().begin(), tensor.partition_shard().end());
  for (const proto::ShardInfo& shard : plan.shards())
    if (shard.bytes() > kSmallShardBytes) large.insert(shard.shard());
  std::map<std::pair<uint32_t, bool>, uint32_t> busy;   // by server, and whether they are large
  for (int i = 0; i < record.moves_size(); ++i) {
    const proto::MoveRecord& move = record.moves(i);
    if (Over(plan, rules, move)) {
      changes.over.push_back(i);
      if (static_cast<int>(move.shard()) < plan.shards_size() && Shard(plan, move.shard()).moving())
        changes.off.push_back(move.shard());
      continue;
    }
    has[move.shard()] = true;
    const bool is_large = large.contains(move.shard());
    if (Shard(plan, move.shard()).moving()) ++busy[{move.from(), is_large}], ++busy[{move.to(), is_large}];
    else queued.push_back(&move);
  }
  const std::vector<uint32_t> takers = Takers(plan, rules);
  if (!rules.draining.empty() && !takers.empty()) {
    std::map<uint32_t, uint64_t> owned;
    for (const proto::ShardInfo& shard : plan.shards()) owned[shard.server()] += ShardWeight(shard);
    for (const proto::MoveRecord& move : record.moves())
      if (!Over(plan, rules, move)) owned[move.to()] += ShardWeight(Shard(plan, move.shard()));
    for (const proto::ShardInfo& shard : plan.shards()) {
      if (rules.draining.count(shard.server()) == 0 || has[shard.shard()]) continue;
      const uint32_t to = *std::min_element(takers.begin(), takers.end(),
                                            [&](uint32_t a, uint32_t b) { return owned[a] < owned[b]; });
      owned[to] += ShardWeight(shard);
      proto::MoveRecord& move = changes.added.emplace_back();
      move.set_shard(shard.shard());
      move.set_from(shard.server());
      move.set_to(to);
      move.set_reason(absl::StrCat(plan.servers(static_cast<int>(shard.server())).id(), " is being drained"));
    }
    for (const proto::MoveRecord& move : changes.added) queued.push_back(&move);
    if (rules.draining.count(plan.coordinator_server()) > 0) changes.coordinator = takers.front();
  }
  for (const proto::MoveRecord* move : queued) {
    if (record.moves_paused()) break;
    const bool is_large = large.contains(move->shard());
    uint32_t& from = busy[{move->from(), is_large}];
    uint32_t& to = busy[{move->to(), is_large}];
    const uint32_t most = is_large ? at_once : std::max(at_once, kSmallMovesAtOnce);
    if (rules.avoid.count(move->to()) > 0 || from >= most || to >= most) continue;
    ++from, ++to;
    changes.begun.push_back(*move);
  }
  return changes;
}

void ApplyMoves(const MoveChanges& changes, const CopyRules& rules, proto::JobRecord* record) {
  proto::Plan* plan = record->mutable_plan();
  for (auto it = changes.over.rbegin(); it != changes.over.rend(); ++it)
    record->mutable_moves()->DeleteSubrange(*it, 1);
  for (const uint32_t shard : changes.off) {
    plan->mutable_shards(static_cast<int>(shard))->set_moving(false);
    plan->mutable_shards(static_cast<int>(shard))->set_move_to(0);
  }
  for (const proto::MoveRecord& move : changes.added) *record->add_moves() = move;
  for (const proto::MoveRecord& move : changes.begun) {
    proto::ShardInfo* shard = plan->mutable_shards(static_cast<int>(move.shard()));
    shard->set_moving(true);
    shard->set_move_to(move.to());
    if (FindCopy(*shard, move.to()) != nullptr) continue;
    const uint32_t lane = LightestLane(*plan, move.to());
    proto::BackupInfo* copy = shard->add_backups();
    copy->set_server(move.to());
    copy->set_lane(lane);
    copy->set_since(rules.since);
  }
  if (changes.coordinator) plan->set_coordinator_server(*changes.coordinator);
}

uint32_t CancelMoves(const CopyRules& rules, proto::JobRecord* record) {
  uint32_t cancelled = 0;
  for (int i = record->moves_size() - 1; i >= 0; --i) {
    const proto::MoveRecord& move = record->moves(i);
    if (rules.draining.count(move.from()) > 0) continue;
    if (static_cast<int>(move.shard()) < record->plan().shards_size()) {
      proto::ShardInfo* shard = record->mutable_plan()->mutable_shards(static_cast<int>(move.shard()));
      shard->set_moving(false);
      shard->set_move_to(0);
    }
    record->mutable_moves()->DeleteSubrange(i, 1);
    ++cancelled;
  }
  return cancelled;
}

}  // namespace sluice::scheduler
