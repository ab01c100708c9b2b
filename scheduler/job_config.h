// A job's configuration as its workers bring it: defaults filled in, contradictions refused, compared with the others'.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/config.pb.h"

namespace sluice::scheduler {

inline constexpr uint32_t kMaxWorkers = 65536;
inline constexpr size_t kMaxNameBytes = 128;

// Fills the defaults of proto/config.proto where "0" or "" can mean nothing else, so that two ways to say the same
// compare equal. A rate, momentum or threshold of 0 stays: whoever loaded a configuration (base/config.h) has the
// defaults already.
void NormaliseJobConfig(proto::JobConfig* config);

// INVALID_ARGUMENT with key, value and what would do, for values that no job can have and combinations that contradict
// each other (docs/design.md, "SSP and ASP").
absl::Status CheckJobConfig(const proto::JobConfig& config);

// The first key in which two configurations differ, e.g. `job.optimizer.rate: 0.1 and 0.2`; "" if they are equal.
std::string FirstDifference(const proto::JobConfig& a, const proto::JobConfig& b);

}  // namespace sluice::scheduler
