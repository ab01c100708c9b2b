#include "server/value_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/vector_ops.h"

namespace sluice::server {

absl::StatusOr<ValueState> ValueState::Create(size_t elements, const Optimizer* optimizer, bool replica,
                                              BlockPool* blocks) {
  ValueState state(optimizer, blocks);
  SLUICE_ASSIGN_OR_RETURN(state.value_, blocks->GetZeroed(elements));
  if (replica) {
    SLUICE_ASSIGN_OR_RETURN(state.replica_, blocks->GetZeroed(elements));
  }
  state.state_.assign(optimizer->StateFloats(elements), 0.0f);
  return state;
}

absl::Status ValueState::MakeOwn(BlockPtr& block) {
  if (!IsShared(block)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(BlockPtr fresh, blocks_->Get(block->values().size()));
  std::ranges::copy(block->values(), fresh->values().begin());
  block = std::move(fresh);
  return absl::OkStatus();
}

void ValueState::Assign(BlockPtr block) {
  value_ = std::move(block);
  if (replica_ == nullptr) return;
  // One block for both: the next write of either takes a copy.
  replica_ = value_;
}

void ValueState::Restore(BlockPtr value, BlockPtr replica, std::span<const float> state, uint64_t updates) {
  value_ = std::move(value);
  if (replica_ != nullptr) replica_ = replica != nullptr ? std::move(replica) : value_;
  state_.assign(state.begin(), state.end());
  updates_ = updates;
}

absl::Status ValueState::Update(const BlockPtr& gradient, ApplyParams params) {
  params.step = updates_ + 1;
  if (optimizer_->none()) {
    value_ = gradient;
  } else {
    SLUICE_RETURN_IF_ERROR(MakeOwn(value_));
    optimizer_->Apply(value_->values(), gradient->values(), state_, params);
  }
  ++updates_;
  return absl::OkStatus();
}

absl::Status ValueState::Update(const SentSum& gradient, ApplyParams params) {
  params.step = updates_ + 1;
  SLUICE_RETURN_IF_ERROR(MakeOwn(value_));
  gradient.ForPieces([&](size_t first, std::span<const float> values) {
    optimizer_->Apply(value_->values(), values, state_, params, first);
  });
  ++updates_;
  return absl::OkStatus();
}

LayerNorms ValueState::Norms(std::span<const float> gradient, ApplyParams params) const {
  params.step = updates_ + 1;
  return optimizer_->Norms(std::as_const(*value_).values(), gradient, state_, params);
}

absl::StatusOr<EncodedChange> ValueState::TakeChange(const compression::Codec& codec, BlockPool* scratch) {
  const size_t n = value_->values().size();
  SLUICE_ASSIGN_OR_RETURN(BlockPtr change, scratch->Get(n));
  Subtract(value_->values(), replica_->values(), change->values());
  if (compression::FirstNonfinite(change->values()) != n) {
    return absl::FailedPreconditionError("the change of the parameters is not finite");
  }
  const size_t most = codec.MaxEncodedBytes(n);
  SLUICE_ASSIGN_OR_RETURN(BlockPtr encoded, blocks_->Get((most + sizeof(float) - 1) / sizeof(float)));
  compression::EncodeInput input;
  input.gradient = change->values();
  SLUICE_ASSIGN_OR_RETURN(const size_t bytes, codec.Encode(input, encoded->bytes().first(most)));
  SLUICE_RETURN_IF_ERROR(MakeOwn(replica_));
  const ConstBytes payload = std::as_const(*encoded).bytes().first(bytes);
  SLUICE_RETURN_IF_ERROR(codec.DecodeAdd(payload, replica_->values()));
  return EncodedChange{std::move(encoded), payload, static_cast<uint16_t>(codec.id())};
}

}  // namespace sluice::server
