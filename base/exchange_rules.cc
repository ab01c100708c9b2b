#include "base/exchange_rules.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice {
namespace {

absl::Status InTheWay(absl::string_view what, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("job.exchange=allreduce does not go with ", what, ": ", why,
                                                 "; use job.exchange=servers or drop it"));
}

}  // namespace

absl::Status CheckAllReduceJob(const proto::JobConfig& job) {
  const std::string& optimizer = job.optimizer().kind();
  if (!optimizer.empty() && optimizer != "none")
    return InTheWay(absl::StrCat("job.optimizer.kind=", optimizer),
                    "the optimizers are the servers', and workers alone have none; the trainer applies the sums itself");
  if (job.reply() != proto::REPLY_DEFAULT && job.reply() != proto::REPLY_AGGREGATE)
    return InTheWay(absl::StrCat("job.reply=", proto::Reply_Name(job.reply())),
                    "what comes back from an all-reduce is the sum (REPLY_AGGREGATE)");
  if (job.mode() != proto::MODE_BSP)
    return InTheWay(absl::StrCat("job.mode=", proto::Mode_Name(job.mode())), "all workers take part in each of its sums");
  if (job.on_worker_loss() == proto::LOSS_RESCALE)
    return InTheWay("job.on_worker_loss=LOSS_RESCALE", "an all-reduce fails at all ranks when one of them is lost");
  if (job.backup_workers() > 0) return InTheWay("job.backup_workers", "all workers take part in each of its sums");
  if (job.round_deadline_ms() > 0) return InTheWay("job.round_deadline_ms", "all workers take part in each of its sums");
  if (job.order() == proto::ORDER_EXACT)
    return InTheWay("job.order=ORDER_EXACT", "its sums are added in the fixed order of its algorithm");
  if (job.on_nonfinite() == proto::NONFINITE_SKIP)
    return InTheWay("job.on_nonfinite=NONFINITE_SKIP", "that takes the servers' verdict on the whole step");
  if (job.optimizer().clip_norm() > 0)
    return InTheWay("job.optimizer.clip_norm", "that takes the servers' verdict on the whole step");
  if (job.local_clip_norm() > 0) return InTheWay("job.local_clip_norm", "it is part of the way to the servers alone");
  if (job.momentum_correction() > 0)
    return InTheWay("job.momentum_correction", "it is part of the way to the servers alone");
  if (job.codec_warmup_rounds() > 0)
    return InTheWay("job.codec_warmup_rounds", "it is part of the way to the servers alone");
  if (job.codec() == "auto" || absl::StrContains(job.codec_rules(), "=auto"))
    return InTheWay("codec auto", "the scheduler chooses it from what pushes to servers cost");
  return absl::OkStatus();
}

absl::Status CheckExchange(const proto::JobConfig& job) {
  const std::string& exchange = job.exchange();
  if (exchange.empty() || exchange == "servers" || exchange == "auto") return absl::OkStatus();
  if (exchange == "allreduce") {
    SLUICE_RETURN_IF_ERROR(CheckAllReduceJob(job));
    return absl::InvalidArgumentError(
        "job.exchange=allreduce is not built: PushPull goes by the servers. A trainer does the same by Client::AllReduce with a "
        "residual of its own (worker/client.h); leave job.exchange at servers");
  }
  if (exchange == "sharded")
    return absl::InvalidArgumentError(
        "job.exchange=sharded is not built: the optimizers' code is the servers' alone. A trainer that has an optimizer of its "
        "own does the same by ReduceScatter, an update of its slice, and AllGather (worker/client.h); else use servers or "
        "allreduce");
  return absl::InvalidArgumentError(
      absl::StrCat("job.exchange is \"", exchange.substr(0, 64), "\"; servers and auto are possible"));
}

}  // namespace sluice
