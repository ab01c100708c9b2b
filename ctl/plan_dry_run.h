// `sluicectl plan --dry-run`: a job planned on topology files, without a cluster.
#pragma once

#include "absl/status/statusor.h"
#include "ctl/arguments.h"
#include "proto/config.pb.h"
#include "proto/topology.pb.h"

namespace sluice::ctl {

inline constexpr size_t kMaxJobFileBytes = size_t{64} << 20;

// The files that arguments.topology and arguments.job_file name. INVALID_ARGUMENT says file, line and key; RESOURCE_EXHAUSTED
// how much room the job lacks.
absl::StatusOr<proto::Explanation> PlanDryRun(const Arguments& arguments, const proto::TopologyConfig& config);

}  // namespace sluice::ctl
