// Where the plan sends a partition's pushes and pulls.
#pragma once

#include <cstdint>
#include <memory>

#include "proto/plan.pb.h"
#include "transport/control/tree_way.h"
#include "worker/links.h"

namespace sluice::worker {

struct Route {
  LaneKey owner{0, 0};   // of pulls, and of pushes that a node cannot answer
  LaneKey push{0, 0};    // of pushes: the owner, or this rank's node in an aggregation tree (docs/topology/trees.md)
  uint32_t term = 0;
  uint64_t stamp = 0;    // of the way of its pushes; 0 = no tree

  bool operator==(const Route&) const = default;
};

// way: of the shard (control::WayOf); null, and for tables: none.
inline Route RouteOf(const proto::ShardInfo& shard, const control::TreeWay* way, uint32_t rank) {
  Route route;
  route.owner = route.push = {shard.server(), shard.lane()};
  route.term = shard.term();
  if (way == nullptr) return route;
  route.stamp = way->stamp;
  const int32_t node = way->NodeOf(rank);
  if (node != -1) route.push = {way->nodes[static_cast<size_t>(node)].server, way->nodes[static_cast<size_t>(node)].lane};
  return route;
}

}  // namespace sluice::worker
