// Moving shards on purpose: what is asked for, what can begin. Pure functions.
//
// A move's life: a MoveRecord of the job (queued) -> ShardInfo.moving, with a copy on the target (filling) -> Tend makes
// the target the owner -> the record goes. Records are in the job's record, so a restart of the scheduler loses none.
// docs/replication.md
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "scheduler/replicas.h"
#include "scheduler/state.pb.h"

namespace sluice::scheduler {

inline constexpr uint32_t kMovesAtOnce = 2;        // node.moves_at_once
inline constexpr uint32_t kSmallMovesAtOnce = 64;  // of shards of at most so many bytes
inline constexpr uint64_t kSmallShardBytes = 64 << 10;

// Servers that may become owners.
std::vector<uint32_t> Takers(const proto::Plan& plan, const CopyRules& rules);

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
// 3. Queued moves begin in their order while neither source nor target has `at_once` of them, unless they are paused. Small
//    shards have a bound of their own, so that empty ones hold nobody up.
// 4. Step-wide decisions leave a draining server.
MoveChanges PlanMoves(const proto::JobRecord& record, const CopyRules& rules, uint32_t at_once);
void ApplyMoves(const MoveChanges& changes, const CopyRules& rules, proto::JobRecord* record);

// All queued and filling moves end, but those off draining servers. Returns their number. Tend drops their copies.
uint32_t CancelMoves(const CopyRules& rules, proto::JobRecord* record);

// The record of a shard's move, or null.
const proto::MoveRecord* FindMove(const proto::JobRecord& record, uint32_t shard);

}  // namespace sluice::scheduler
