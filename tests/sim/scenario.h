// One run of the simulated cluster, as its seed describes it: job, model, cluster, network, faults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "transport/sim/sim_network.h"
#include "transport/transport.h"

namespace sluice::sim {

enum class OpStyle {
  kPushPull,      // into memory of its own
  kInPlace,       // into the gradient's memory
  kPushThenPull,  // two operations
};

struct Faults {
  transport::SimFaults network;
  uint32_t cuts = 0, worker_crashes = 0, scheduler_crashes = 0;
  uint32_t losses = 0;  // workers that are killed and declared out (rule "rescale")
  bool returns = false; // and a new process comes for each, with nothing of the former
  uint32_t orders = 0;          // of an operator: shards move, servers are drained, moves are cancelled
  uint32_t trees = 0;           // changes of the aggregation trees
  uint32_t server_crashes = 0;  // where the copies in sync allow it; they come back, empty
};

struct Scenario {
  uint64_t seed = 0;
  proto::JobConfig job;
  proto::NodeConfig node;    // of the scheduler
  proto::DataConfig worker_data, server_data;
  uint32_t servers = 1, lanes = 1;
  std::vector<proto::TensorSpec> tensors, tables;
  uint64_t steps = 1;        // gradient steps
  uint32_t hosts = 0;        // workers and servers are spread over them, and each has an aggregator; 0 = there are no trees
  bool broadcast = false;    // rank 0's initial values first
  bool two_calls = false;    // tables are registered when the tensors are
  OpStyle style = OpStyle::kPushPull;
  // A gradient with a NaN in it (policy "skip" only), or gradients whose sum overflows.
  struct Special {
    uint32_t rank = 0;
    uint64_t step = 0;
  };
  std::optional<Special> nonfinite;
  std::optional<uint64_t> overflow;  // step
  TimeNs max_compute = 0;    // of a step, for each rank anew
  transport::EndpointLimits limits;
  Faults faults;

  uint64_t rounds() const { return steps + (broadcast ? 1 : 0); }
  // The design demands the bits of the fault-free run.
  bool deterministic() const {
    return job.mode() == proto::MODE_BSP && job.order() != proto::ORDER_FAST &&
           job.on_worker_loss() == proto::LOSS_WAIT && !leaves_out() && (job.order() == proto::ORDER_EXACT || !tree_changes());
  }
  // Sums may be put together in another order from some round on.
  bool tree_changes() const { return hosts > 0 && (faults.trees > 0 || job.replicas() > 0); }
  // Rounds may close without some workers.
  bool leaves_out() const { return job.backup_workers() > 0 || job.round_deadline_ms() > 0; }
  bool has_optimizer() const { return job.optimizer().kind() != "none"; }
  std::string ToString() const;
};

Scenario MakeScenario(uint64_t seed);
Scenario WithoutFaults(Scenario scenario);

}  // namespace sluice::sim
