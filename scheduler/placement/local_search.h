// Improves a placement by swaps and moves. See solver.h.
#pragma once

#include "scheduler/placement/objective.h"

namespace sluice::placement {

// Takes apart what belongs apart, as far as there are free places and swaps for it. Returns evaluations made.
uint64_t TakeApart(Objective* objective, uint64_t seed, uint64_t budget);

// Never worse than before. Returns evaluations made, at most `budget` and one.
uint64_t Refine(Objective* objective, uint64_t seed, uint64_t budget);

}  // namespace sluice::placement
