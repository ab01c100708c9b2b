// From a call to what carries it out: its algorithm, schedule and buffers. Private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/groups.h"
#include "worker/collective/choose.h"
#include "worker/collective/operation.h"
#include "worker/collective/request.h"

namespace sluice::collective {

inline constexpr uint64_t kPieceBytes = 512 << 10;   // of a schedule's step; more where that makes more than kMaxPieces of the whole
inline constexpr uint64_t kMaxPieces = 512;

struct MadeOperation {
  std::unique_ptr<Operation> operation;   // null: nothing is to be done (a group of one)
  std::shared_ptr<std::byte> work;        // a buffer beside the caller's memory, which goes with the operation
  std::span<float> values;                // the work buffer of the schedule, wherever it lies
  uint32_t signature = 0;                 // of the call: equal on all members (docs/wire.md)
};

struct CallIdentity {
  std::string job;   // its name
  uint32_t rank = 0;
  OpName name;
};

// The call has passed the checks of Collectives.
absl::StatusOr<MadeOperation> MakeOperation(const Request& request, OperationEnv env, const Network& network,
                                            const CallIdentity& identity);
// When all steps are done: what belongs into the caller's output, and the mean.
void FinishValues(const Request& request, const RankGroup& group, std::span<float> values);

// OK if the call's codec is none, or known and of use for such a call.
absl::Status CheckCodec(const Request& request, const RankGroup& group);

std::string DescribeRequest(const Request& request, const RankGroup& group);   // "all-reduce of 512 values in group data"

}  // namespace sluice::collective
