// Whether a job's dense tensors may be exchanged among its workers instead of over servers (job.exchange): allreduce, where every
// rank has the sum and does the whole update, and sharded, where each updates the block that it owns. docs/topology/collectives.md
#pragma once

#include "absl/status/status.h"
#include "proto/config.pb.h"

namespace sluice {

// What else the job asks for, of a job that is to exchange tensors among its workers. INVALID_ARGUMENT names the key that is in the
// way, why, and what to do. With job.exchange=auto: whether it may be anything else than servers.
absl::Status CheckAllReduceJob(const proto::JobConfig& job);

// job.exchange as a whole: "" and servers, allreduce and sharded where CheckAllReduceJob has nothing against them, and auto.
absl::Status CheckExchange(const proto::JobConfig& job);

}  // namespace sluice
