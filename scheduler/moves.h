// Moving shards on purpose: what is asked for, what can begin, what a rebalance would move. Pure functions.
//
// A move's life: a MoveRecord of the job (queued) -> ShardInfo.moving, with a copy on the target (filling) -> Tend makes
// the target the owner -> the record goes. Records are in the job's record, so a restart of the scheduler loses none.
// docs/replication.md
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "scheduler/replicas.h"
#include "scheduler/state.pb.h"

namespace sluice::scheduler {

inline constexpr uint32_t kMovesAtOnce = 2;        // node.moves_at_once
inline constexpr double kBalanced = 1.1;           // the largest server over the mean

// What PlanMoves wants changed.
struct MoveChanges {
  std::vector<int> over;                           // records that go, ascending
  std::vector<uint32_t> off;                       // shards whose move stops
  std::vector<proto::MoveRecord> added;            // of drains
  std::vector<proto::MoveRecord> begun;
  std::optional<uint32_t> coordinator;             // off a draining server

  bool Any() const {
    return !over.empty() || !off.empty() || !added.empty() || !begun.empty() || coordinator.has_value();
  }
};

// 1. Records go whose move is done, or whose source or target is gone or is being drained (the target).
// 2. A shard of a draining server that has no record gets one, to the server that would own least then.
// 3. Queued moves begin in their order while neither source nor target has `at_once` of them, unless they are paused.
// 4. Step-wide decisions leave a draining server.
MoveChanges PlanMoves(const proto::JobRecord& record, const CopyRules& rules, uint32_t at_once);
void ApplyMoves(const MoveChanges& changes, const CopyRules& rules, proto::JobRecord* record);

// All queued and filling moves end, but those off draining servers. Returns their number. Tend drops their copies.
uint32_t CancelMoves(const CopyRules& rules, proto::JobRecord* record);

// The record of a shard's move, or null.
const proto::MoveRecord* FindMove(const proto::JobRecord& record, uint32_t shard);

struct Balance {
  std::vector<proto::MoveRecord> moves;
  std::map<uint32_t, uint64_t> before;             // bytes that each server owns, once the moves under way are done
  std::map<uint32_t, uint64_t> after;
};
// The moves that bring the largest server within 10 % of the mean, as few as the sizes of shards allow: from the largest to
// the smallest server, the largest shard that brings neither beyond the mean (or, where there is none, the smallest that
// still helps). extra: bytes of shards beyond what the plan says (rows of tables).
Balance PlanRebalance(const proto::JobRecord& record, const CopyRules& rules,
                      const std::map<uint32_t, uint64_t>& extra);

}  // namespace sluice::scheduler
