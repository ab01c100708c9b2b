// How a plan is filled: shards onto lanes, tensors into partitions, partitions onto shards. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/plan.pb.h"

namespace sluice::scheduler {

inline constexpr uint32_t kShardsPerLane = 16;
inline constexpr uint32_t kMaxShards = 65536;
inline constexpr uint64_t kMaxTensorElements = uint64_t{1} << 30;
inline constexpr uint32_t kMaxTensors = 1 << 20;
inline constexpr uint32_t kMaxPartitions = 1 << 20;   // so that a plan stays far below a message's limit
inline constexpr size_t kMaxTensorNameBytes = 255;
inline constexpr uint32_t kMaxTableDim = 65536;
inline constexpr uint32_t kSegmentsPerLane = 4;
inline constexpr uint32_t kMaxSegments = 65536;

// Fixes the job's shards over the lanes of plan->servers: shard i goes to lane i modulo their number, lanes counted so
// that neighbours lie on different servers. count 0: 16 a lane.
void PlaceShards(uint32_t count, uint32_t term, proto::Plan* plan);

// One shape, checked: no empty dimension, at most kMaxTensorElements, no overflow on the way. A table counts as the fp32
// values of one row.
absl::StatusOr<uint64_t> CheckSpec(const proto::TensorSpec& spec);

// The reason why `spec` cannot stand for `known` of the same name; OK if it can (priorities may differ).
absl::Status SameSpec(const proto::TensorSpec& known, uint32_t known_rank, const proto::TensorSpec& spec,
                      uint32_t rank);

// Partitions that a tensor of so many elements, or a table, will have in this plan. A table: its spec's segments, or 4 for
// each lane, at least one a shard and so at most that many.
uint64_t PartitionsOf(const proto::TensorSpec& spec, uint64_t elements, const proto::Plan& plan);

// RESOURCE_EXHAUSTED if a job of `plan` may not have so many more tensors with so many partitions in all.
absl::Status CheckRoom(const proto::Plan& plan, uint64_t tensors, uint64_t partitions);

// Appends a tensor that CheckSpec and CheckRoom accepted: partitions of config.partition_bytes (the last one shorter; cut
// between rows where one row fits),
// each on the lane with the fewest bytes, of equals on that whose server has the fewest, of equals on the first; there
// on the shard with the fewest bytes, of equals on the first. (Shards alone would not do: while most are empty, the next
// empty one may lie beside the largest.) Nobody knows how large a table will grow: its segments go to the shards in turn, from
// where the last table ended, so every lane has as many as any other. Ranks that are out of the job are out of it too.
// weights: of the servers, by index: each gets bytes in this ratio (0: none). Empty, or all 0: all the same.
// exchange: not of servers: the tensor, no table, has no partitions.
void AddTensor(const proto::TensorSpec& spec, uint64_t elements, proto::Plan* plan, const std::vector<double>& weights = {},
               proto::Exchange exchange = proto::EXCHANGE_SERVERS);

uint32_t CountPartitions(const proto::Plan& plan);
std::string ShapeText(const proto::TensorSpec& spec);   // "784x10 fp32"

}  // namespace sluice::scheduler
