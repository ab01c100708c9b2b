// What workers should have sent: replays each rank's gradients with a residual of its own keeping and compares payloads.
//
// With g the gradient, e the residual, r the rate of the push's round and k the rate that e was kept at:
//   p = g + clamp(k / r, 0.1, 10) e, payload = encode(p), e' = p - decode(payload), k' = r
// With momentum correction the velocity u' = m u + g stands for g, and u' is 0 where a sparse codec sent something.
// e' and k', and the codec's new state, hold from the next round on, unless the step was skipped; if the push was rejected,
// e' = p - decode + decode. A zero rate scales nothing and keeps k. A life that goes on from a snapshot begins with what the
// rounds before it have left. The bytes are made by the product's encoders (which have tests against slow ones of their own),
// without their error feedback. Codecs that draw random numbers are given those of docs/codecs.md: by job, rank, round and
// place.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "compression/codec_schedule.h"
#include "tests/sim/history.h"

namespace sluice::sim {

class ErrorFeedback {
 public:
  explicit ErrorFeedback(const proto::Plan& plan);

  // In the order of the history. skipped: nothing of the round was applied; rejected: not this push.
  absl::Status Check(const Encoded& push, bool broadcast, bool skipped, bool rejected);
  // A life without a residual begins with this round.
  void Join(uint32_t rank, uint32_t partition, uint64_t round) { before_[{rank, partition, round}] = {}; }

 private:
  struct Residual {
    std::vector<float> e;   // empty: none yet
    float kept_at = 0;
    Bytes state;            // the codec's own
    std::vector<float> velocity;   // of momentum correction; empty: none yet
    uint64_t steps = 0;     // gradient rounds of this rank so far
  };

  const proto::JobConfig config_;
  const std::vector<PartitionLayout> layout_;
  std::map<uint32_t, compression::CodecSchedule> codecs_;   // by tensor
  // (rank, partition, round) -> what there is at its beginning.
  std::map<std::tuple<uint32_t, uint32_t, uint64_t>, Residual> before_;
};

}  // namespace sluice::sim
