#include "server/semantics.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/policy.h"

namespace sluice::server {
namespace {

// SSP and ASP apply each contribution on arrival: whatever needs all of a round at once cannot be had.
absl::Status CheckAsync(const Semantics& s) {
  if (!s.async()) return absl::OkStatus();
  const std::string mode = s.mode == proto::MODE_SSP ? "job.mode=ssp" : "job.mode=asp";
  const auto refuse = [&](const char* key, const char* why) {
    return absl::FailedPreconditionError(absl::StrCat(key, " does not go with ", mode, ": ", why,
                                                      "; use job.mode=bsp or leave it out"));
  };
  if (s.clip_norm > 0) {
    return refuse("job.optimizer.clip_norm", "a global norm needs the gradient of the whole step");
  }
  if (s.skip_nonfinite) return refuse("job.on_nonfinite=skip", "pushes of the step may have been applied already");
  if (s.layerwise) return refuse("job.optimizer.kind=lamb", "layer-wise rates need the update of whole tensors");
  if (s.reply == proto::REPLY_CHANGE) {
    return refuse("job.reply=change", "workers get the parameters at different times, so their replicas would differ");
  }
  if (!s.has_optimizer || s.reply == proto::REPLY_AGGREGATE) {
    return absl::FailedPreconditionError(
        absl::StrCat(mode, " applies each push by itself, so there is no aggregate to reply: it needs job.optimizer.kind "
                     "and job.reply=parameters"));
  }
  return absl::OkStatus();
}

// Who is late has no part in the round, and must be able to go on from what it is told instead.
absl::Status CheckBackups(const Semantics& s) {
  if (!s.leaves_out()) return absl::OkStatus();
  const char* what = s.backup_workers > 0 ? "job.backup_workers" : "job.round_deadline_ms";
  if (s.async()) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " needs job.mode=bsp: where each push is applied by itself nobody waits for stragglers"));
  }
  if (s.reply == proto::REPLY_AGGREGATE) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, " does not go with aggregates as replies: a worker that is late by two rounds would never get the "
        "first one's sum; use job.optimizer.kind and job.reply=parameters or change"));
  }
  if (s.backup_workers >= std::max(1u, s.config.workers())) {
    return absl::InvalidArgumentError(absl::StrCat("job.backup_workers is ", s.backup_workers, " of ", s.config.workers(),
                                                   " workers; at least one must be waited for"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Semantics>> Semantics::Create(const proto::JobConfig& config) {
  SLUICE_ASSIGN_OR_RETURN(Schedule schedule, Schedule::Create(config.optimizer()));
  std::unique_ptr<Semantics> s(new Semantics(std::move(schedule)));
  for (const proto::TensorKind kind : {proto::TENSOR_WEIGHT, proto::TENSOR_BIAS, proto::TENSOR_NORM}) {
    SLUICE_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(config.optimizer(), kind));
    s->optimizers_.push_back(optimizer);
  }
  SLUICE_RETURN_IF_ERROR(compression::CheckCodecConfig(config));
  if (!proto::Mode_IsValid(config.mode()) || !proto::Order_IsValid(config.order()) ||
      !proto::Reduction_IsValid(config.reduction()) || !proto::Reply_IsValid(config.reply()) ||
      !proto::OnNonfinite_IsValid(config.on_nonfinite())) {
    return absl::InvalidArgumentError("the job's configuration has a mode, order, reduction, reply or on_nonfinite "
                                      "that this release does not know: use one release everywhere");
  }
  s->config = config;
  s->mode = config.mode();
  s->staleness = config.staleness() == 0 ? 4 : config.staleness();
  s->order = config.order();
  s->reduction = config.reduction();
  s->skip_nonfinite = config.on_nonfinite() == proto::NONFINITE_SKIP;
  s->clip_norm = config.optimizer().clip_norm();
  s->has_optimizer = !s->optimizer(proto::TENSOR_WEIGHT).none();
  s->layerwise = s->optimizer(proto::TENSOR_WEIGHT).layerwise();
  s->reply = config.reply() != proto::REPLY_DEFAULT ? config.reply()
             : s->has_optimizer                     ? proto::REPLY_PARAMETERS
                                                    : proto::REPLY_AGGREGATE;
  if (!(s->clip_norm >= 0) || s->clip_norm > 1e300) {
    return absl::InvalidArgumentError(
        absl::StrCat("job.optimizer.clip_norm is ", s->clip_norm, "; it is a norm above 0, or 0 for none"));
  }
  if (s->reply == proto::REPLY_CHANGE && !s->has_optimizer) {
    return absl::FailedPreconditionError(
        "job.reply=change needs an optimizer on the servers (job.optimizer.kind): without one there are no parameters "
        "that change");
  }
  s->backup_workers = config.backup_workers();
  s->round_deadline = config.round_deadline_ms() * kMillisecond;
  SLUICE_RETURN_IF_ERROR(CheckAsync(*s));
  SLUICE_RETURN_IF_ERROR(CheckBackups(*s));
  return s;
}

uint32_t Semantics::RateBits(uint64_t step) const {
  return has_optimizer ? std::bit_cast<uint32_t>(schedule_.Rate(step)) : 0;
}

absl::StatusOr<std::unique_ptr<compression::Codec>> Semantics::ReplyCodec(const proto::TensorSpec& tensor) const {
  SLUICE_ASSIGN_OR_RETURN(const std::string name, compression::ReplyCodecFor(config, tensor));
  if (name == "none") return nullptr;
  return compression::MakeCodec(name);
}

}  // namespace sluice::server
