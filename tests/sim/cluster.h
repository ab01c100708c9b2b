// Runs one scenario in one thread on simulated time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/sim/history.h"
#include "tests/sim/scenario.h"
#include "tests/sim/trainer.h"
#include "transport/sim/sim_network.h"

namespace sluice::sim {

struct Outcome {
  absl::Status status;                   // the run's own: an operation failed, no progress, memory left over
  History history;
  std::vector<TrainerState> trainers;    // by rank
  TimeNs took = 0;                       // simulated
  transport::SimStats network;
};

struct RunOptions {
  std::function<void(const std::string&)> trace;  // lines; null = none
  bool trace_frames = false;
  bool lying_copies = false;   // a planted bug: servers acknowledge what they are sent for copies, and drop it
};

Outcome RunScenario(const Scenario& scenario, const RunOptions& options = {});

// The whole judgement of a seed: the run, its history, and where the design demands it the run without faults.
absl::Status JudgeSeed(uint64_t seed, const RunOptions& options = {}, Outcome* outcome = nullptr);

}  // namespace sluice::sim
