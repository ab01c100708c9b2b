#include "base/exchange_rules.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice {
namespace {

bool Uses(const proto::JobConfig& job, absl::string_view codec) {
  return absl::StartsWith(job.codec(), codec) || absl::StrContains(job.codec_rules(), absl::StrCat("=", codec));
}

}  // namespace

absl::Status CheckAllReduceJob(const proto::JobConfig& job) {
  const bool sharded = job.exchange() == "sharded";
  const auto in_the_way = [&](absl::string_view what, absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("job.exchange=", sharded ? "sharded" : "allreduce", " does not go with ", what, ": ", why,
                                                   "; use job.exchange=servers or drop it"));
  };
  constexpr absl::string_view kAll = "all workers take part in each of its sums";
  constexpr absl::string_view kVerdict = "that takes the servers' verdict on the whole step";
  constexpr absl::string_view kPush = "it is part of the way to the servers alone";
  if (job.optimizer().kind() == "lamb") return in_the_way("job.optimizer.kind=lamb", "its rates take the norms of whole layers, which servers add up");
  if (job.reply() == proto::REPLY_CHANGE)
    return in_the_way("job.reply=REPLY_CHANGE", "each worker does the update itself, so there is no reply to compress");
  const bool optimizes = !job.optimizer().kind().empty() && job.optimizer().kind() != "none";
  if (sharded && optimizes && job.reply() == proto::REPLY_AGGREGATE)
    return in_the_way("job.reply=REPLY_AGGREGATE beside job.optimizer.kind", "no worker has the whole sum, only the new parameters");
  if (job.mode() != proto::MODE_BSP) return in_the_way(absl::StrCat("job.mode=", proto::Mode_Name(job.mode())), kAll);
  if (job.on_worker_loss() == proto::LOSS_RESCALE)
    return in_the_way("job.on_worker_loss=LOSS_RESCALE", "when a rank is lost, so is the state of the others");
  if (job.backup_workers() > 0) return in_the_way("job.backup_workers", kAll);
  if (job.round_deadline_ms() > 0) return in_the_way("job.round_deadline_ms", kAll);
  if (job.order() == proto::ORDER_EXACT)
    return in_the_way("job.order=ORDER_EXACT", "its sums are added in the fixed order of its algorithm");
  if (job.on_nonfinite() == proto::NONFINITE_SKIP) return in_the_way("job.on_nonfinite=NONFINITE_SKIP", kVerdict);
  if (job.optimizer().clip_norm() > 0) return in_the_way("job.optimizer.clip_norm", kVerdict);
  if (job.local_clip_norm() > 0) return in_the_way("job.local_clip_norm", kPush);
  if (job.momentum_correction() > 0) return in_the_way("job.momentum_correction", kPush);
  if (job.codec_warmup_rounds() > 0) return in_the_way("job.codec_warmup_rounds", kPush);
  if (Uses(job, "auto")) return in_the_way("codec auto", "the scheduler chooses it from what pushes to servers cost");
  if (Uses(job, "lowrank")) return in_the_way("codec lowrank", "it needs its state of the round before, which collectives do not keep");
  if (job.no_error_feedback() && job.allow_biased())
    return in_the_way("job.allow_biased beside job.no_error_feedback", "what a biased codec leaves out of a sum would be lost");
  return absl::OkStatus();
}

absl::Status CheckExchange(const proto::JobConfig& job) {
  const std::string& exchange = job.exchange();
  if (exchange.empty() || exchange == "servers" || exchange == "auto") return absl::OkStatus();
  if (exchange == "allreduce" || exchange == "sharded") return CheckAllReduceJob(job);
  return absl::InvalidArgumentError(
      absl::StrCat("job.exchange is \"", exchange.substr(0, 64), "\"; servers, allreduce, sharded and auto are possible"));
}

}  // namespace sluice
