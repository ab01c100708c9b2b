// A trainer whose gradient is a cheap pure function of (rank, step, element, current parameters): an error in any step
// shows in all that follow.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/sim/scenario.h"

namespace sluice::sim {

// What a worker saves beside the core's snapshot: enough to go on from the beginning of a step.
struct TrainerState {
  uint64_t round = 0;                  // rounds done, a broadcast included
  std::vector<std::vector<float>> x;   // by tensor
  std::vector<std::vector<float>> rows;   // by table: the rows of RowIds of the round to come
};

TrainerState InitialState(const Scenario& scenario, uint32_t rank);

// step: of gradients, from 0.
std::vector<float> Gradient(const Scenario& scenario, uint32_t rank, uint64_t step, uint32_t tensor,
                            const std::vector<float>& x);

// The rows of a table that a rank pulls for a round and then pushes to: in any order, some twice, perhaps none.
std::vector<uint64_t> RowIds(const Scenario& scenario, uint32_t rank, uint64_t round, uint32_t table);
std::vector<float> RowGradients(const Scenario& scenario, uint32_t rank, uint64_t round, uint32_t table,
                                const std::vector<float>& rows);

// Takes the answer to one step of one tensor: new parameters, or an aggregate that the trainer applies.
void TakeAnswer(const Scenario& scenario, uint32_t tensor, const std::vector<float>& answer, bool skipped,
                TrainerState* state);

}  // namespace sluice::sim
