// Judges a history: every push was applied exactly once, no step is torn, nothing stale was taken, and the reference
// (tests/sim/reference.h) comes to the same bits. What it finds is said by one line that names worker, partition, round.
#pragma once

#include "absl/status/status.h"
#include "tests/sim/history.h"

namespace sluice::sim {

// steps: rounds that every worker has finished, broadcasts included.
//   once      each (rank, partition, round) was taken at most once, and each round's contributors are those taken
//   complete  each push that a worker sent was taken with the bytes that it sent, and applied (no push is lost); all
//             rounds below `steps` were applied, by the partition's owner in the plan, under its term
//   fresh     no contribution of a life of a rank after one of a later life, at any lane; terms never fall
//   rows      each part of a push of rows has what the trainer handed over for its segment; under BSP pulled rows are those
//             after the rounds that the worker has pushed, no more and no fewer
//   whole     under BSP a round has all ranks (under rule "rescale": all that are not out of it by the plan), and all
//             partitions of a step have one verdict
//   bits      the reference agrees about verdict, rate, value, reply and what the workers got
//   bound     under SSP no answer came earlier than the bound allows
//   feedback  each payload is the encoding of the gradient and the residual that the pushes before it have left
absl::Status CheckHistory(const History& history, uint64_t steps);

// A run under faults against the one without: the same payloads and values in every round, bit for bit.
absl::Status CompareHistories(const History& expected, const History& actual);

}  // namespace sluice::sim
