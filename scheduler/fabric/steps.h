// How long a training step takes on a network, and which links it keeps busy. The scheduler, dry runs and benchmarks all ask
// this.
//
// By loads (StepModel): the bytes that a step puts on every arc, and so the time for which it is busy. Exchange is pipelined by
// partition, so it takes as long as the busiest arc, and what the first partition needs to get through all stages, and the
// latency of a round trip. For any size: 100,000 GPUs take well below a second.
// By simulation (SimulateStep): every transfer of every partition at max-min fair rates. For small jobs.
// Tests hold the two together; docs/topology.md says how far they are from each other and from the runtime.
//
// Bytes are of fp32 values; ratios say what travels instead. Processes on one host exchange by shared memory, in no time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/fabric/routes.h"

namespace sluice::fabric {

// proto::Tree, as far as it matters here.
struct StepTree {
  struct Node {
    uint32_t server = 0;
    int32_t parent = -1;            // node; -1: the owners
    std::vector<uint32_t> ranks;    // that push to it. Ranks of no node push to the owners
  };
  std::vector<Node> nodes;
};

struct StepSpec {
  std::vector<uint32_t> workers;    // host of each rank (vertices)
  std::vector<uint32_t> servers;    // host of each server

  // What goes through servers.
  struct Shard {
    uint32_t server = 0;            // its owner
    double bytes = 0;
    int32_t tree = -1;              // of `trees`; -1: all ranks push to the owner
  };
  std::vector<Shard> shards;
  std::vector<StepTree> trees;
  double push_ratio = 1, forward_ratio = 1, reply_ratio = 1;   // bytes on the network of one byte: to owners and aggregators, sums between these, back
  double partition_bytes = 4 << 20;

  // What workers exchange among themselves: an all-reduce, or reduce-scatter and all-gather round a sharded optimizer.
  double collective_bytes = 0;
  double reduce_ratio = 1, gather_ratio = 1;
  // Of each rank where it is, as in WorkerInfo (narrowest first): rings inside each domain of the first tier, then between
  // these inside the second one, and so on. Empty: one ring of all, in order of rank.
  std::vector<std::vector<uint32_t>> coordinates;
  double inside_bytes_per_second = 10e9;   // of a rank towards another one of its host, in rings

  double compute_s = 0;
  double overlap = 0;               // part of it during which the exchange goes on, 0 to 1
  double efficiency = 1;            // payload of what links carry, 0 to 1
  // Of the time that a link has bytes waiting for it, the share in which connections that last keep it busy, above 0 up to 1:
  // congestion control leaves gaps. One partition of each owner is over too soon for that.
  double utilization = 1;
  double server_bytes_per_second = 0;   // pushes that a server adds up; 0 = no bound
  // Bytes that other traffic puts on each arc in the same step (Routes::arcs() long); empty: none. Links are busy with it, too. By
  // loads only: SimulateStep leaves it out.
  std::vector<double> beside;
};

struct ArcLoad {
  uint32_t arc = 0;
  double bytes = 0;                 // a step
  double busy_s = 0;
};

struct StepPrediction {
  double step_s = 0;                // compute, and what of the exchange does not overlap with it
  double compute_s = 0;
  double communication_s = 0;       // alone
  double latency_s = 0;             // of it
  std::vector<ArcLoad> busiest;     // the most loaded first
  bool complete = true;             // false: some have no way to each other; they are left out
};

class StepModel {
 public:
  // Indices of `spec` that name no rank, server, tree or parent are INVALID_ARGUMENT.
  static absl::StatusOr<StepModel> Create(const Routes* routes, const StepSpec& spec);

  // Of the spec as it is.
  StepPrediction Predict(size_t busiest = 8) const { return PredictWith(server_bytes_, collective_bytes_, busiest); }
  // With other totals, exchanged in the same way: loads are linear in them.
  StepPrediction PredictWith(double server_bytes, double collective_bytes, size_t busiest = 8) const;
  double server_bytes() const { return server_bytes_; }

 private:
  StepModel() = default;
  const Routes* routes_ = nullptr;
  double compute_s_ = 0, overlap_ = 0, efficiency_ = 1, utilization_ = 1;
  double server_bytes_ = 0, collective_bytes_ = 0;
  std::vector<double> server_load_, collective_load_;   // of each arc, for one byte
  std::vector<double> beside_;
  double server_stages_ = 0, server_longest_ = 0;       // busiest arcs of the stages: sum, and the longest; for one byte
  double server_adding_ = 0;                            // seconds of the most loaded server, for one byte
  double server_latency_ = 0, collective_latency_ = 0;
  double collective_levels_ = 0;                        // sum over levels, one after the other, for one byte
  double partitions_per_byte_ = 0;
  bool complete_ = true;
};

// RESOURCE_EXHAUSTED: too large a job.
absl::StatusOr<StepPrediction> SimulateStep(const Routes& routes, const StepSpec& spec, size_t busiest = 8);

// Which tensors go through servers and which by the collective, so that the step is short: the smaller ones up to some size
// one way, the rest the other way, both links in use at once.
struct Hybrid {
  std::vector<bool> by_servers;     // of each tensor
  StepPrediction prediction, all_servers, all_collective;
};
// Beside them so many bytes go one way and the other, whatever is chosen.
Hybrid ChooseHybrid(const StepModel& model, const std::vector<double>& tensor_bytes, double by_servers = 0, double by_collective = 0);

}  // namespace sluice::fabric
