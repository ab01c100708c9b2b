#include "tests/sim/error_feedback.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/matrix_shape.h"
#include "compression/policy.h"
#include "tests/sim/slow_math.h"

namespace sluice::sim {

namespace {

bool IsSparse(const compression::Codec& codec) {
  return codec.id() == compression::CodecId::kTopK || codec.id() == compression::CodecId::kSparse;
}

}  // namespace

ErrorFeedback::ErrorFeedback(const proto::Plan& plan) : config_(plan.config()), layout_(LayoutOf(plan)) {
  for (const proto::TensorInfo& tensor : plan.tensors()) {
    const absl::StatusOr<std::string> codec = compression::CodecFor(config_, tensor.spec());
    if (!codec.ok()) continue;
    auto schedule = compression::CodecSchedule::Make(*codec, {.columns = compression::ColumnsOf(tensor.spec()),
                                                             .warmup_rounds = config_.codec_warmup_rounds()});
    if (schedule.ok()) codecs_.emplace(tensor.tensor(), *std::move(schedule));
  }
}

absl::Status ErrorFeedback::Check(const Encoded& push, bool broadcast, bool skipped, bool rejected) {
  if (push.partition >= layout_.size()) return absl::InternalError("no such partition");
  const PartitionLayout& place = layout_[push.partition];
  const auto schedule = codecs_.find(place.tensor);
  const float momentum = static_cast<float>(config_.momentum_correction());
  const Residual before = before_[{push.rank, push.partition, push.round}];
  Residual& after = before_[{push.rank, push.partition, push.round + 1}];
  after = before;
  if (!broadcast) ++after.steps;
  const bool nothing = push.payload.empty() && push.gradient.empty();
  const compression::Codec* codec = schedule == codecs_.end() ? nullptr : &schedule->second.At(push.round);
  if (broadcast || nothing || codec == nullptr || (codec->lossless() && momentum == 0)) {  // as it is, or nothing
    const ConstBytes gradient = AsBytes(push.gradient);
    if (push.codec == 0 && std::ranges::equal(gradient, push.payload)) return absl::OkStatus();
    return absl::InternalError("the payload is not the gradient");
  }
  if (push.codec != static_cast<uint16_t>(codec->id()))
    return absl::InternalError(absl::StrCat("codec ", push.codec, ", but the tensor's is ", codec->name()));

  const size_t n = push.gradient.size();
  const float rate = SlowRate(config_.optimizer(), before.steps);
  float scale = 1.0f;
  if (!before.e.empty() && before.kept_at > 0 && rate > 0) scale = std::clamp(before.kept_at / rate, 0.1f, 10.0f);
  std::vector<float> p(n), velocity(n);
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (size_t i = 0; i < n; ++i) {
    velocity[i] = push.gradient[i];
    if (momentum > 0) {
      const float kept = before.velocity.empty() ? 0.0f : momentum * before.velocity[i];
      velocity[i] = std::clamp(kept + push.gradient[i], -kLargest, kLargest);
    }
    p[i] = velocity[i] + (before.e.empty() ? 0.0f : scale * before.e[i]);
    p[i] = std::clamp(p[i], -kLargest, kLargest);
  }
  Bytes bytes(codec->MaxEncodedBytes(n));
  const compression::RandomKey random{.seed = compression::RandomSeed(config_.name(), push.rank),
                                      .round = push.round,
                                      .tensor = place.tensor,
                                      .first_element = place.offset};
  Bytes state(codec->StateBytes(n));
  SLUICE_ASSIGN_OR_RETURN(const size_t size,
                          codec->Encode({.gradient = p,
                                          .residual = {},
                                          .residual_scale = 1.0f,
                                          .residual_out = {},
                                          .random = random,
                                          .state = before.state.size() == state.size() ? before.state : Bytes(),
                                          .state_out = state},
                                         bytes));
  bytes.resize(size);
  if (bytes != push.payload)
    return absl::InternalError("the payload is not the encoding of the gradient and what was left before");
  if (!skipped) after.state = state;
  if (!skipped && momentum > 0) after.velocity = velocity;
  if (config_.no_error_feedback() || !codec->uses_residual() || skipped) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<float> decoded, SlowDecode(push.codec, bytes, n));
  after.e.resize(n);
  for (size_t i = 0; i < n; ++i)
    if (momentum > 0 && IsSparse(*codec) && p[i] - decoded[i] != p[i]) after.velocity[i] = 0;   // it was sent
  for (size_t i = 0; i < n; ++i) after.e[i] = rejected ? (p[i] - decoded[i]) + decoded[i] : p[i] - decoded[i];
  if (rate > 0) after.kept_at = rate;
  return absl::OkStatus();
}

}  // namespace sluice::sim
