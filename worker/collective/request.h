// A call of a collective, as it is made.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "worker/collective/schedule.h"

namespace sluice::collective {

enum class Kind : uint32_t {
  kAllReduce = 1, kReduce, kBroadcast, kAllGather, kReduceScatter, kAllToAll, kSend, kReceive, kBarrier
};
absl::string_view KindName(Kind kind);   // "all-reduce"

enum class Reduction : uint32_t { kSum, kMean };

struct Request {
  Kind kind = Kind::kAllReduce;
  std::string group;                  // "" = world
  std::span<const float> input;       // untouched until released. Broadcast, receive, barrier: empty
  std::span<float> output;            // may be the input where sizes are equal, but for all-to-all. Broadcast: values in and out
  uint32_t root = 0;                  // broadcast, reduce: index in the group
  uint32_t peer = 0;                  // send, receive: index in the group
  uint32_t tag = 0;                   // send, receive
  Reduction reduction = Reduction::kSum;
  Algorithm algorithm = Algorithm::kAuto;
  std::string codec;                  // "", "none": fp32
  std::span<float> residual;          // all-reduce, reduce-scatter, all-gather with a codec: error feedback; empty = without
  std::optional<uint32_t> tensor;     // counts by this tensor's channel, not by the group's
  int32_t priority = 0;
  TimeNs deadline = 0;                // absolute; 0 = none
};

}  // namespace sluice::collective
