// Whether a job's dense tensors may be summed up among its workers instead of on servers (job.exchange). Scheduler and workers
// ask the same question.
#pragma once

#include "absl/status/status.h"
#include "proto/config.pb.h"

namespace sluice {

// INVALID_ARGUMENT names the key that is in the way, why, and what to do. (What `auto` does then: servers.)
absl::Status CheckAllReduceJob(const proto::JobConfig& job);

// job.exchange as a whole. "" and "auto" mean servers in this release, "allreduce" and "sharded" are refused with what a
// trainer can call instead.
absl::Status CheckExchange(const proto::JobConfig& job);

}  // namespace sluice
