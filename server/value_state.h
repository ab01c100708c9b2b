// What a partition keeps between rounds: its value (the parameters; without an optimizer, the last aggregate), the
// optimizer's state, and with REPLY_CHANGE the workers' replica y.
//
// Every write takes a fresh block if the old one is lent (server/block.h), so what was sent never changes under way.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compression/codec.h"
#include "server/block.h"
#include "base/optimizer/optimizer.h"
#include "server/sent_sum.h"

namespace sluice::server {

// The change x - y, encoded: what replies carry with REPLY_CHANGE.
struct EncodedChange {
  std::shared_ptr<const void> owner;
  ConstBytes bytes;
  uint16_t codec = 0;
};

class ValueState {
 public:
  // Zeros. replica: keep y. The optimizer and the pool outlive this.
  static absl::StatusOr<ValueState> Create(size_t elements, const Optimizer* optimizer, bool replica, BlockPool* blocks);

  const BlockPtr& value() const { return value_; }
  // What a pull gets, and a worker that cannot use a change: y where there is one.
  const BlockPtr& pulled() const { return replica_ != nullptr ? replica_ : value_; }
  uint64_t updates() const { return updates_; }   // optimizer steps that were applied

  // The block becomes the value; with a replica x = y = block, exactly.
  void Assign(BlockPtr block);
  // One optimizer step. Without an optimizer the gradient becomes the value, so it must be scaled already (params.scale
  // is 1) and is not used by anybody else. Nothing has changed after an error.
  absl::Status Update(const BlockPtr& gradient, ApplyParams params);
  // The same from a sum that a copy was sent. Not without an optimizer.
  absl::Status Update(const SentSum& gradient, ApplyParams params);
  LayerNorms Norms(std::span<const float> gradient, ApplyParams params) const;

  // Encodes x - y and adds what it decodes to onto y, as every worker will. FAILED_PRECONDITION if the change cannot be
  // encoded (it is not finite): then Resync.
  absl::StatusOr<EncodedChange> TakeChange(const compression::Codec& codec, BlockPool* scratch);
  void Resync() { replica_ = value_; }   // y = x, exactly

  // For copies: what Create made, with these contents. replica null: it is the value's own block, or there is none.
  std::span<const float> state() const { return state_; }
  const BlockPtr& replica() const { return replica_; }
  void Restore(BlockPtr value, BlockPtr replica, std::span<const float> state, uint64_t updates);

  uint64_t state_bytes() const { return state_.size() * sizeof(float); }   // besides blocks

 private:
  ValueState(const Optimizer* optimizer, BlockPool* blocks) : optimizer_(optimizer), blocks_(blocks) {}
  // `block`, or a copy of it if somebody else holds it.
  absl::Status MakeOwn(BlockPtr& block);

  const Optimizer* optimizer_;
  BlockPool* blocks_;
  BlockPtr value_;
  BlockPtr replica_;
  std::vector<float> state_;
  uint64_t updates_ = 0;
};

}  // namespace sluice::server
