// The messages of a partition's log (docs/replication.md): made by its owner, read by its backups.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "proto/replica.pb.h"
#include "server/block.h"

namespace sluice::server {

// Set in `rank` of the frames between an owner and a backup; below it the owner's index in the plan.
inline constexpr uint32_t kReplicaRank = 0x80000000;

// One message in one piece of memory.
struct ReplicaMessage {
  std::shared_ptr<const void> owner;
  ConstBytes bytes;
};

// head, and the bulk's parts one after the other. In a block of the pool, which the endpoint may send without a copy; null: on
// the heap, for what is large and rare. RESOURCE_EXHAUSTED says how much was asked for.
absl::StatusOr<ReplicaMessage> MakeReplicaMessage(const proto::ReplicaHead& head, std::initializer_list<ConstBytes> bulk,
                                                  BlockPool* blocks);

// A bulk of so many bytes, written by `write`.
absl::StatusOr<ReplicaMessage> MakeReplicaMessage(const proto::ReplicaHead& head, size_t bulk_bytes,
                                                  const std::function<void(MutableBytes)>& write, BlockPool* blocks);

struct ReplicaParts {
  proto::ReplicaHead head;
  ConstBytes bulk;   // of the bytes that were parsed; at a multiple of 8 from their begin
};

// DATA_LOSS says what is wrong. What the head means is the partition's to check.
absl::StatusOr<ReplicaParts> ParseReplicaMessage(ConstBytes bytes);

}  // namespace sluice::server
