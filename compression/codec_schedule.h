// Which codec one tensor's pushes travel in, round by round. A payload says its codec itself, so only whoever encodes needs
// to know.
//
// Three things make a schedule:
//   the policy   one codec for all rounds (compression/policy.h)
//   warm-up      a codec with a ratio r below 1/4 begins at 1/4 and comes down to r in five equal factors over so many
//                rounds: gradients of the first rounds change fast, and what is sent late is old (Deep Gradient Compression,
//                Lin et al. 2018, section 3.3)
//   choices      job.codec = auto: "none" until the plan names another from some round on
//
// Not thread-safe. A codec is alive until the next Change or the schedule's end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compression/codec.h"

namespace sluice::compression {

struct ScheduleOptions {
  uint64_t columns = 0;  // of the tensor's rows, for codecs that take a partition as a matrix; 0 = not known
  uint64_t warmup_rounds = 0;
  double momentum = 0;   // of momentum correction (compression/momentum.h); 0 = none
};

class CodecSchedule {
 public:
  // codec: as PolicyFor names it, kAutoCodec included.
  static absl::StatusOr<CodecSchedule> Make(std::string_view codec, const ScheduleOptions& options = {});

  const Codec& At(uint64_t round) const;
  // From this round on another codec; what was planned from there on is dropped, and what has long passed is forgotten.
  absl::Status Change(uint64_t from_round, std::string_view codec);
  uint64_t last_change() const { return stages_.back().from; }
  bool chosen() const { return chosen_; }   // by plan: Change may come

  // Name of each stage and the round it begins at, for people: "topk:0.25, from round 20 topk:0.119, …".
  std::string ToString() const;

 private:
  struct Stage {
    uint64_t from = 0;
    std::unique_ptr<const Codec> codec;
  };
  absl::Status Append(uint64_t from, std::string_view codec);

  ScheduleOptions options_;
  bool chosen_ = false;
  std::vector<Stage> stages_;   // rising; the first begins at 0
};

// The ratio of topk, randk and threshold:auto, alone or as the first part of a chain.
std::optional<double> RatioOf(std::string_view codec);
// The same codec with another ratio, of four digits; one without a ratio as it is.
std::string WithRatio(std::string_view codec, double ratio);

}  // namespace sluice::compression
