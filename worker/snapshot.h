// A worker's own state between two steps, as bytes: docs/snapshots.md is the format's page.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "proto/plan.pb.h"
#include "worker/op.h"

namespace sluice::worker {

std::vector<std::byte> EncodeSnapshot(const proto::Plan& plan, uint32_t rank,
                                      const std::map<uint32_t, std::unique_ptr<TensorState>>& tensors,
                                      const std::map<std::string, uint64_t>& barrier_counts);

// Everything is checked before anything is changed. open_round(partition): what the owner said at admission.
// INVALID_ARGUMENT: not a whole snapshot. FAILED_PRECONDITION: of another job or rank, other tensors, or too old.
absl::Status RestoreSnapshot(ConstBytes snapshot, const proto::Plan& plan, uint32_t rank, OpQueue& ops,
                             const std::function<uint64_t(uint32_t)>& open_round,
                             std::map<std::string, uint64_t>* barrier_counts);

}  // namespace sluice::worker
