#include "tests/sim/error_feedback.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/sim/slow_math.h"

namespace sluice::sim {

ErrorFeedback::ErrorFeedback(const proto::Plan& plan) : config_(plan.config()), layout_(LayoutOf(plan)) {
  for (const PartitionLayout& partition : layout_)
    if (auto codec = compression::MakeCodec(config_.codec(), partition.columns); codec.ok())
      codecs_[partition.columns] = *std::move(codec);
}

absl::Status ErrorFeedback::Check(const Encoded& push, bool broadcast, bool skipped, bool rejected) {
  if (push.partition >= layout_.size()) return absl::InternalError("no such partition");
  const PartitionLayout& place = layout_[push.partition];
  const auto known = codecs_.find(place.columns);
  if (known == codecs_.end()) return absl::InternalError("the plan's codec is unknown");
  const compression::Codec* const codec = known->second.get();
  const Residual before = before_[{push.rank, push.partition, push.round}];
  Residual& after = before_[{push.rank, push.partition, push.round + 1}];
  after = before;
  if (!broadcast) ++after.steps;
  if (push.codec == 0) {  // as it is, or nothing
    const ConstBytes gradient = AsBytes(push.gradient);
    if (std::ranges::equal(gradient, push.payload)) return absl::OkStatus();
    return absl::InternalError("the payload is not the gradient");
  }
  if (push.codec != static_cast<uint16_t>(codec->id()))
    return absl::InternalError(absl::StrCat("codec ", push.codec, ", but the job's is ", config_.codec()));

  const size_t n = push.gradient.size();
  const float rate = SlowRate(config_.optimizer(), before.steps);
  float scale = 1.0f;
  if (!before.e.empty() && before.kept_at > 0 && rate > 0) scale = std::clamp(before.kept_at / rate, 0.1f, 10.0f);
  std::vector<float> p(n);
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (size_t i = 0; i < n; ++i) {
    p[i] = push.gradient[i] + (before.e.empty() ? 0.0f : scale * before.e[i]);
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
                                          .state = before.state,
                                          .state_out = state},
                                         bytes));
  bytes.resize(size);
  if (bytes != push.payload)
    return absl::InternalError("the payload is not the encoding of the gradient and what was left before");
  if (!skipped) after.state = state;
  if (config_.no_error_feedback() || !codec->uses_residual() || skipped) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<float> decoded, SlowDecode(push.codec, bytes, n));
  after.e.resize(n);
  for (size_t i = 0; i < n; ++i) after.e[i] = rejected ? (p[i] - decoded[i]) + decoded[i] : p[i] - decoded[i];
  if (rate > 0) after.kept_at = rate;
  return absl::OkStatus();
}

}  // namespace sluice::sim
