// Replays the contributions of a history in the order that it names and says what every round must have been: verdict,
// rate, value, reply and what workers see. Written from the documents, with slow_math.h; of the product's code only a
// codec's Encode is used, for the bytes of change replies (their decoding is this folder's own).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/table/segment.h"
#include "tests/sim/history.h"
#include "tests/sim/slow_math.h"

namespace sluice::sim {

// What a round must have been.
struct Expected {
  bool skipped = false, assigned = false;
  double scale = 1.0, trust = 1.0;
  uint32_t rate_bits = 0;
  std::vector<float> value;                   // of the server
  Bytes reply;                                // as RoundRecord::reply
  std::optional<std::vector<float>> answer;   // what a worker has in its output then; nullopt: it is left as it was
};

class Reference {
 public:
  // plan: configuration as the scheduler normalised it, tensors, partitions.
  explicit Reference(const proto::Plan& plan);

  // BSP: one round of every partition. contributions[p]: in the order of reduction, not empty. nesting[p]: how they were added
  // where a tree did so, as RoundRecord has it; empty: one by one.
  absl::StatusOr<std::vector<Expected>> CloseStep(
      const std::vector<std::vector<const Contribution*>>& contributions, const std::vector<std::vector<int32_t>>& nesting = {});

  // SSP and ASP: one contribution, or the ranks of one broadcast, of one partition.
  absl::StatusOr<Expected> CloseOne(uint32_t partition, const std::vector<const Contribution*>& contributions);

  // What a pull of this partition gives now.
  const std::vector<float>& Visible(uint32_t partition) const;
  // The same of rows of a table, whichever segments they lie in.
  std::vector<float> VisibleRows(uint32_t tensor, const std::vector<uint64_t>& ids) const;

 private:
  struct State {
    SlowOptimizer optimizer;
    std::optional<std::vector<float>> replica;  // y, where replies are changes
    std::string reply_codec;
    uint64_t steps = 0;                   // gradient rounds closed
    std::map<uint32_t, uint64_t> of_rank; // SSP, ASP: the same for each rank
  };
  struct Table {   // a segment
    std::unique_ptr<server::TableSegment> rows;
    proto::OptimizerConfig schedule;      // of its rate
    uint64_t rounds = 0;
    std::map<uint32_t, uint64_t> of_rank;
  };
  struct Sum {
    std::vector<float> gradient;
    bool finite = true, asked_to_skip = false, broadcast = false;
    std::optional<std::vector<float>> root;
  };
  absl::StatusOr<Sum> Reduce(uint32_t partition, const std::vector<const Contribution*>& contributions,
                             const std::vector<int32_t>& nesting = {}) const;
  Expected Broadcast(State& state, const Sum& sum) const;
  absl::StatusOr<Expected> Apply(State& state, Sum sum, Expected verdict) const;
  void AddTable(const proto::TableSpec& spec, const PartitionLayout& layout, uint32_t partition, int servers);
  // step: which rate.
  absl::StatusOr<Expected> CloseTable(uint32_t partition, const std::vector<const Contribution*>& contributions,
                                      uint64_t step);

  const proto::JobConfig config_;
  const std::vector<PartitionLayout> layout_;
  std::vector<State> states_;  // by partition
  std::map<uint32_t, Table> tables_;  // by partition: those that are a table's
};

}  // namespace sluice::sim
