// The step coordinator of one job: gathers the records of every partition of the plan, decides, remembers.
//
//   1. Owners send the records of step t, phase 0 (in any order, in pieces, more than once): Add.
//   2. When every partition's record is there, the values are added in order of the partitions' index, whatever came
//      first, so placement never changes a bit. Skip if a record says so or the sum is not finite; else scale and rate.
//   3. Layer-wise optimizers: the same with phase 1, summed tensor by tensor into trust ratios.
//   4. Everyone who sent a record gets the verdict; later repeats of the last two steps are answered from memory.
// No partition can be at step t+1 before step t is decided. So one step is gathered at a time, but for a coordinator that is
// new (its server took over from one that was lost): owners that have applied a step tell it the verdict, which some of
// them are behind and some ahead of. A verdict that one of them has applied stands. What is behind a decided step is forgotten.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/step_messages.h"

namespace sluice::server {

struct StepRules {
  double clip_norm = 0;                                       // 0 = off
  bool layerwise = false;                                     // phase 1 follows
  std::function<uint32_t(uint64_t step)> rate_bits;
  // From the sums of squares of a tensor's parameters and update.
  std::function<double(uint32_t tensor, double parameters, double update)> trust;
};

class Coordinator {
 public:
  using Sender = uint64_t;   // whom to answer: a link, or 0 for this lane itself

  explicit Coordinator(StepRules rules) : rules_(std::move(rules)) {}

  // A partition that no step decides about: a table's segment.
  static constexpr uint32_t kNoTensor = UINT32_MAX;

  // tensor_of[p]: the tensor of partition p, or kNoTensor, for every partition of the plan. May grow.
  void SetLayout(std::vector<uint32_t> tensor_of);

  // Takes records. Returns whom to send Find(step, phase) now. FAILED_PRECONDITION if the records cannot be of a step of
  // this job (docs/wire.md: every tensor is pushed in every step), with what is missing.
  absl::StatusOr<std::vector<Sender>> Add(Sender sender, uint64_t step, uint32_t phase,
                                          std::span<const StepRecord> records);
  const Verdict* Find(uint64_t step, uint32_t phase) const;   // null: not decided, or forgotten
  void Forget(Sender sender);                                 // its link is gone: it asks again over the next

  // For people: "step 7 waits for partition 3 and 4 more", or "".
  std::string WaitingFor() const;

 private:
  using Key = std::pair<uint64_t, uint32_t>;   // step, phase

  static constexpr uint64_t kMostSteps = 3;    // that are gathered at a time
  struct Gather {
    std::vector<std::optional<StepRecord>> records;
    size_t have = 0;
    std::set<Sender> senders;
  };
  Verdict Decide(const Key& key, const Gather& gather) const;

  const StepRules rules_;
  bool Counts(size_t partition) const { return tensor_of_[partition] != kNoTensor; }

  std::vector<uint32_t> tensor_of_;
  size_t wanted_ = 0;                             // partitions that count
  std::map<Key, Gather> open_;
  std::map<Key, Verdict> decided_;
};

}  // namespace sluice::server
