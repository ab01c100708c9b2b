// For tests of moves and of rebalancing: the record of a job with copies, and a move that was asked for.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/moves.h"
#include "scheduler/plan_builder.h"
#include "scheduler/replicas.h"
#include "scheduler/state.pb.h"

namespace sluice::scheduler {

inline proto::JobRecord Job(int servers, uint32_t shards, uint32_t replicas) {
  proto::JobRecord record;
  proto::Plan* plan = record.mutable_plan();
  for (int i = 0; i < servers; ++i) {
    proto::ServerInfo* info = plan->add_servers();
    info->set_server(static_cast<uint32_t>(i));
    info->set_id("s" + std::to_string(i));
    info->set_alive(true);
    info->add_lanes();
    info->add_lanes();
  }
  PlaceShards(shards, 1, plan);
  Tend({.replicas = replicas, .since = 1, .term = 2, .avoid = {}, .draining = {}}, true, plan);
  return record;
}

inline CopyRules Rules(uint32_t replicas, const proto::JobRecord& record) {
  return {.replicas = replicas, .since = 2, .term = NextTerm(record.plan(), 0), .avoid = {}, .draining = {}};
}

inline void Ask(uint32_t shard, uint32_t to, proto::JobRecord* record) {
  proto::MoveRecord* move = record->add_moves();
  move->set_shard(shard);
  move->set_from(record->plan().shards(static_cast<int>(shard)).server());
  move->set_to(to);
}

}  // namespace sluice::scheduler
